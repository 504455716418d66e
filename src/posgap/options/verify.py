"""Options of `verify`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    POSITIONAL,
    InputPaths,
)
from posgap.options.base import Config
from posgap.options.verb import Verb


class VerifyConfig(Config):
    """Compares outputs, and what they were made from, with their manifests, by sha256, and judges the verdict of `gate`
    again if a folder has one. Exit code 1: something differs."""

    folders: Annotated[InputPaths, POSITIONAL] = Field(min_length=1, description="folders that stages wrote")


VERB = Verb(VerifyConfig, "run/after")
