"""The training methods: Pos2Distill's R1 and R2, and the baselines, which share their data and training loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from posgap.choices import Number, Parameters

if TYPE_CHECKING:
    from posgap.distillation.batches import Pair
    from posgap.distillation.objectives import Objective
    from posgap.tasks.prompts import PromptBuilder


@dataclass(frozen=True)
class Method:
    """A way to close the gap, by its name for `posgap distill --method` and the pipeline's form.

    `made_by` is the stage that writes its models; the methods of `distill` are those that train. `needs_teacher` says
    that its loss reads the frozen model's distributions at an example's advantageous placement; its prompts are then
    drawn from the other placements. `needs_rope` says that it works on rotary positions. `most_gold` is the largest
    number of gold documents of the tasks it can be used for (0: any number).
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
        """Whether this is a method of the stage `distill`."""
        return self.made_by == "distill"

    def learnt(self, pairs: "list[Pair]", build: "PromptBuilder") -> "list[Pair]":
        """The pairs of example and response to learn, made of those that the stage `teacher` wrote."""
        return pairs

    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        """The objective: loss and prompts of each step. By default the cross-entropy on the pairs' responses."""
        from posgap.distillation.objectives import CrossEntropy

        return CrossEntropy(pairs)


class R1Parameters(Parameters):
    alignment: Literal["", "none", "paper", "balanced", "authors"] = Field(
        "",
        description="r1: how placements are weighed; paper: Pos2Distill's alpha; balanced: alpha, but independent of "
        "how often a placement was drawn; authors: as their code does; none: equally; empty: the recipe's",
    )
    anchoring: Number = Field(None, ge=0, description="r1: weight of the anchoring loss (lambda); empty: the recipe's")


class _R1(Method):
    def learnt(self, pairs: "list[Pair]", build: "PromptBuilder") -> "list[Pair]":
        from posgap.distillation.averaging import in_all_orders

        return in_all_orders(pairs, build) if build.task.slot_names else pairs

    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        from posgap.distillation import objectives
        from posgap.distillation.batches import advantageous

        assert isinstance(parameters, R1Parameters)
        return objectives.R1(advantageous(pairs), parameters.alignment, parameters.anchoring)


class _GoldAnswers(Method):
    def learnt(self, pairs: "list[Pair]", build: "PromptBuilder") -> "list[Pair]":
        from posgap.distillation.batches import with_gold

        return [with_gold(pair, build) for pair in pairs]


R1 = _R1("r1", "KL to the teacher's distributions, for retrieval", R1Parameters, needs_teacher=True)
R2 = Method("r2", "cross-entropy on the teacher's chains of thought, for two-hop reasoning")
SFT = _GoldAnswers("sft", "a baseline, cross-entropy on gold answers")
SEQKD = Method("seqkd", "a baseline, cross-entropy on the teacher's responses")
