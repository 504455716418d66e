"""Options of `view`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    POSITIONAL,
)
from posgap.options.base import Config
from posgap.options.verb import Verb


class ViewConfig(Config):
    """Lists the sweeps, checks, verdicts and mitigations below a folder on one page, to compare them: `index.html`.

    Of a registered model it prints every version with its figures, and which was champion when and why.
    """

    folder: Annotated[Path, POSITIONAL] = Field(
        Path("runs"), description="folder with results to list, or a registered model, models:/NAME"
    )


VERB = Verb(ViewConfig, "runs")
