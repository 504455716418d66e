"""Options of `teacher`."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from posgap.foundation.fields import (
    OptionalInputPath,
)
from posgap.foundation.registry import split_commas
from posgap.options.generation import LocalBackendConfig
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import MAX_DOCS, Placements


class TeacherConfig(LocalBackendConfig):
    """Samples the model's own responses with the gold documents at the position where it answers best.

    Distillation learns token ids, so it takes a backend that returns them.
    """

    examples_for: ClassVar[str] = "training"

    sweep: OptionalInputPath = Field(
        None, description="folder from a `sweep` of this model, which gives the best placement"
    )
    advantageous: Placements = Field(
        [],
        description="placement of the gold documents, like 1, or 19+20 for two; several, like 1,20: the model answers "
        "at each of them; empty: the best placement of `sweep`",
    )
    mix_docs: Annotated[list[Annotated[int, Field(ge=1, le=MAX_DOCS)]], BeforeValidator(split_commas)] = Field(
        [],
        description="further numbers of documents, like 10,40: each example is asked with one of these or of `n_docs`, "
        "drawn by its content, and placements are at the same depths",
    )
    keep_incorrect: bool = Field(False, description="keep responses that are not correct, too")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


VERB = Verb(
    TeacherConfig,
    "--model Qwen/Qwen3-0.6B --examples run/train --sweep run/base --out run/responses",
    results=("teacher.json",),
    kind=Kind.STAGE,
)
