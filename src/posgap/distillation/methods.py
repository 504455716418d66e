"""The methods of training: Pos2Distill's R1 and R2, and the baselines that share their data and engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from posgap.choices import Parameters

if TYPE_CHECKING:
    from posgap.distillation.batches import Pair
    from posgap.distillation.objectives import Objective
    from posgap.tasks.prompts import PromptBuilder


@dataclass(frozen=True)
class Method:
    """One way to close the gap, as `posgap distill --method` and the pipeline's form name it.

    `made_by` is the stage that writes its models; the methods of `distill` are those that train. A method
    `needs_teacher` where its loss reads the distributions of the frozen model at the advantageous placement; its
    prompts are then drawn from the other placements. It `needs_rope` where it works on rotary positions, and takes
    tasks of at most `most_gold` gold documents (0: any).
    """

    name: str
    help: str
    parameters: type[Parameters] = Parameters
    made_by: str = "distill"
    needs_teacher: bool = False
    needs_rope: bool = False
    most_gold: int = 0

    @property
    def trains(self) -> bool:
        return self.made_by == "distill"

    def learnt(self, pairs: "list[Pair]", build: "PromptBuilder") -> "list[Pair]":
        """The pairs of example and response to learn, from those that the stage `teacher` wrote."""
        return pairs

    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        """The loss, and the prompts of each step. By default the cross-entropy on the pairs' responses."""
        from posgap.distillation.objectives import CrossEntropy

        return CrossEntropy(pairs)


class R1Parameters(Parameters):
    alignment: Literal["none", "paper", "balanced"] = Field(
        "paper", description="r1: how placements are weighed against each other; none: equally"
    )
    anchoring: float = Field(1.0, ge=0, description="r1: weight of the anchoring loss (lambda)")


class _R1(Method):
    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        from posgap.distillation import objectives

        assert isinstance(parameters, R1Parameters)
        advantageous = pairs[0].response.at.positions
        return objectives.R1(advantageous, parameters.alignment, parameters.anchoring)


class _GoldAnswers(Method):
    def learnt(self, pairs: "list[Pair]", build: "PromptBuilder") -> "list[Pair]":
        from posgap.distillation.batches import with_gold

        return [with_gold(pair, build) for pair in pairs]


R1 = _R1("r1", "KL to the teacher's distributions, for retrieval", R1Parameters, needs_teacher=True)
R2 = Method("r2", "cross-entropy on the teacher's chains of thought, for two-hop reasoning")
SFT = _GoldAnswers("sft", "a baseline, cross-entropy on gold answers")
SEQKD = Method("seqkd", "a baseline, cross-entropy on the teacher's responses")
