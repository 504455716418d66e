"""Config of workflows: the parameters of the champion's sweep, and the watch over it."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from posgap.foundation.config import Config, FreshConfig
from posgap.foundation.fields import (
    POSITIONAL,
    InputPath,
    OptionalInputPath,
    RegisteredName,
    SettingsText,
)
from posgap.measurement.config import SweepConfig


class SweepVerbConfig(SweepConfig):
    """Measures accuracy with the gold documents at every position, and the gap between the best and the worst.

    With a model and nothing else it takes a first look: made examples at five positions, in about two minutes.
    `posgap plan sweep` says how many examples figures take that one can rely on.
    """

    named_by = ("model", "task", "examples")

    examples: OptionalInputPath = Field(  # type: ignore[assignment]  # the stage does not make its own
        None,
        description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`; empty: as many made ones as two "
        "minutes allow",
    )


class ViewConfig(Config):
    """Lists the sweeps, checks, verdicts and mitigations below a folder on one page, to compare them: `index.html`.

    Of a registered model it prints every version with its figures, and which was champion when and why.
    """

    folder: Annotated[Path, POSITIONAL] = Field(
        Path("runs"), description="folder whose results are listed, or a registered model, models:/NAME"
    )


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


class WatchConfig(FreshConfig):
    """Judges the champion's sweep on fresh data by its policy. Exit code 3: the champion breaks the policy."""

    champion: InputPath = Field(description="folder from `champion`")
    mitigate: SettingsText = Field(
        "{}",
        description="parameters of the mitigation pipeline as YAML, like {methods: r1, ...}, which is started on the "
        "KFP server when the champion has left its policy; empty: it is not started",
    )
    namespace: str = Field(
        "",
        description="namespace in which `mitigate` is started, if KFP is a multi-user installation; empty: it is not",
    )
