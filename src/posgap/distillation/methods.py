"""The training methods: Pos2Distill's R1 and R2, and the baselines, which share their data and training loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from posgap.foundation.errors import BadOption
from posgap.foundation.fields import RARE
from posgap.foundation.locations import last_name
from posgap.foundation.registry import Parameters, Registry
from posgap.storage.inputs import Manifest, read_manifest

if TYPE_CHECKING:
    from posgap.distillation.batches import Pair
    from posgap.distillation.objectives import Objective
    from posgap.tasks.prompts import PromptBuilder
    from posgap.tasks.task import Task


@dataclass(frozen=True)
class Method:
    """A way to close the gap, by its name for `posgap distill --method` and the pipeline's form.

    `made_by` is the stage that writes its models; `distill` offers the methods that train. `needs_teacher` says that
    its loss reads the frozen model's distributions at an example's advantageous placement; its prompts are then drawn
    from the other placements.
    """

    name: str
    help: str
    parameters: type[Parameters] = Parameters
    made_by: str = "distill"
    needs_teacher: bool = False

    @property
    def trains(self) -> bool:
        """Whether this is a method of the stage `distill`."""
        return self.made_by == "distill"

    def require_suited(self, task: "Task") -> None:
        """Raises `PosgapError` if the method makes answers alike at all placements, and the task's name theirs."""
        if self.needs_teacher and task.slot_names:
            raise BadOption(
                f"method: {self.name} makes answers equal at all placements, but answers of {task.name} name the "
                "placement; use sft or seqkd"
            )

    def learnt(self, pairs: "list[Pair]", builder: "PromptBuilder") -> "list[Pair]":
        """The pairs of example and response to learn, made of those that the stage `teacher` wrote."""
        return pairs

    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        """The objective: loss and prompts of each step. By default the cross-entropy on the pairs' responses."""
        from posgap.distillation.objectives import CrossEntropy

        return CrossEntropy(pairs)


class R1Parameters(Parameters):
    alignment: Annotated[Literal["paper", "none"], RARE] = Field(
        "paper", description="r1: how placements are weighed; paper: Pos2Distill's alpha; none: equally"
    )
    anchoring: Annotated[float, RARE] = Field(1.0, ge=0, description="r1: weight of the anchoring loss (lambda)")
    teacher_temperature: Annotated[float, RARE] = Field(
        0.0,
        ge=0,
        description="r1: the teacher's logits are divided by it; below 1 the student becomes surer than the teacher; "
        "0: by the teacher's confidence in its correct answers, 1 if it is sure",
    )


class _R1(Method):
    def objective(self, parameters: Parameters, pairs: "Sequence[Pair]") -> "Objective":
        from posgap.distillation import objectives
        from posgap.distillation.batches import advantageous_positions

        assert isinstance(parameters, R1Parameters)
        n_docs = [pair.response.n_docs for pair in pairs]
        mixed = n_docs if len(set(n_docs)) > 1 else ()
        return objectives.R1(advantageous_positions(pairs), parameters.alignment, parameters.anchoring, mixed)


class _GoldAnswers(Method):
    def learnt(self, pairs: "list[Pair]", builder: "PromptBuilder") -> "list[Pair]":
        from posgap.distillation.batches import replace_by_gold

        return [replace_by_gold(pair, builder) for pair in pairs]


R1 = _R1("r1", "KL to the teacher's distributions, for retrieval", R1Parameters, needs_teacher=True)
R2 = Method("r2", "cross-entropy on the teacher's chains of thought, for two-hop reasoning")
SFT = _GoldAnswers("sft", "a baseline, cross-entropy on gold answers")
SEQKD = Method("seqkd", "a baseline, cross-entropy on the teacher's responses")

MITIGATE = Method(
    "mitigate",
    "the remedy without training that measures best of those that suit the model",
    made_by="apply",
)

METHODS: Registry[Method] = Registry(
    "method",
    "posgap.methods",
    R1,
    R2,
    SFT,
    SEQKD,
    MITIGATE,
)


def method_of(model: str | Path) -> str:
    """Returns the name of the method that made a model, as in `METHODS`; empty for a model from elsewhere.

    If a method without training was put on top of another, both: `r1 then mitigate`.
    """
    return method_in(read_manifest(Path(model)))


def method_in(manifest: Manifest) -> str:
    """Returns the method's name by the manifest of the model's folder; see `method_of`."""
    made = [method.name for method in METHODS if not method.trains and method.made_by == manifest.get("stage")]
    if not made:
        return str(manifest.get("config", {}).get("method", ""))
    return " then ".join(filter(None, (manifest.get("model_made_by"), made[0])))


def label_of(model: str | Path, mitigation: str) -> str:
    """Returns the default name in plots and tables: the method that made the model, or its own name, and the
    mitigation."""
    return ", ".join(filter(None, (method_of(model) or last_name(model), mitigation)))
