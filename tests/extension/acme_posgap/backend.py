"""A backend: answers by rule, for trying out prompts without a model."""

from pydantic import Field

from posgap.foundation.registry import Parameters
from posgap.generation.backends import Backend
from posgap.generation.generator import Completion


class Rule(Parameters):
    said: str = Field("yes", description="rule: what is answered to every prompt")


class Ruled(Backend):
    def generator(self, access, builder):
        self_said = access.parameters_of(Rule).said

        class Generator:
            def generate(self, groups, sampling):
                for index, group in enumerate(groups):
                    for number in range(len(group)):
                        yield index, number, Completion(self_said, [])

        return Generator()


RULE = Ruled("rule", "one answer to everything", Rule, local=False)
