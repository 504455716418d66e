"""Options of `teacher`."""

from typing import ClassVar

from pydantic import Field

from posgap.foundation.fields import (
    OptionalInputPath,
)
from posgap.generation.backends import LocalBackendConfig
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import Placements


class TeacherConfig(LocalBackendConfig):
    """Samples the model's own responses with the gold documents at the position where it answers best.

    Distillation learns token ids, so it takes a backend that returns them.
    """

    examples_for: ClassVar[str] = "training"

    sweep: OptionalInputPath = Field(
        None, description="folder from a `sweep` of this model, from which the best placement is read"
    )
    advantageous: Placements = Field(
        [],
        description="placement of the gold documents, like 1, or 19+20 for two; several, like 1,20: the model answers "
        "at each of them; empty: the best placement of `sweep`",
    )
    keep_incorrect: bool = Field(False, description="keep responses that are not correct, too")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


VERB = Verb(
    TeacherConfig,
    "--model Qwen/Qwen3-0.6B --examples run/train --sweep run/base --out run/responses",
    results=("teacher.json",),
    kind=Kind.STAGE,
)
