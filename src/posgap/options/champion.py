"""Options of `champion`."""

from pydantic import Field

from posgap.foundation.fields import (
    InputPath,
    OptionalInputPath,
    RegisteredName,
)
from posgap.options.base import FreshConfig
from posgap.options.verb import Kind, Verb


class ChampionConfig(FreshConfig):
    """Sweeps the champion of a registered model, if it has one, to compare candidates with or to watch it."""

    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")
    version: str = Field("", pattern=r"^[0-9]*$", description="number of the version to sweep; empty: the champion")
    examples: InputPath = Field(description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`")
    like: OptionalInputPath = Field(
        None,
        description="sweep of the same examples, whose settings the champion is asked with; empty: those with which it "
        "was promoted",
    )


VERB = Verb(
    ChampionConfig,
    "--name my-model --examples run/eval --out run/champion",
    results=("champion.json",),
    kind=Kind.STAGE,
)
