"""Options of `data version`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    POSITIONAL,
    OptionalOutputPath,
    Place,
    RegisteredName,
)
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class DataVersionConfig(StageConfig):
    """Picks the newest data version: the highest date or number among names with a prefix.

    It prints its location; with --out it also says whether data, base model or recipe are those of the champion.
    """

    out: OptionalOutputPath = Field(  # type: ignore[assignment]  # without it there is no stage to run
        None, description="folder to write; empty: only print the location"
    )
    data: Annotated[Place, POSITIONAL] = Field(
        min_length=1,
        description="beginning of the data versions' names, like s3://bucket/data/ or s3://bucket/data/train-; or a "
        "single file or folder",
    )
    data_eval: Place = Field(
        "", description="beginning of the evaluation data's names, or a single file or folder; empty: none"
    )
    model: Place = Field("", description="base model: Hugging Face folder, s3:// URI or hub name; empty: none")
    recipe: str = Field("", description="digest of how models are made, from `preflight`; empty: any way")
    name: RegisteredName = Field("posgap", description="registered model; its champion is compared with")
    only_new: bool = Field(
        True,
        description="report `skip` if the champion was made from this data, base model and recipe; false: never skip",
    )
    force: bool = Field(
        True, description="run again even if the output is complete, since the champion may have changed"
    )


VERB = Verb(DataVersionConfig, "s3://bucket/data/train-", results=("version.json",), kind=Kind.STAGE_WITH_CHECKS)
