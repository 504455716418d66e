"""The base classes of all options, with the parameters that several verbs share."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from posgap.foundation.fields import (
    NO_OPTION,
    POSITIONAL,
    VERBATIM,
    OutputPath,
    RegisteredName,
    role,
)
from posgap.foundation.locations import last_name
from posgap.foundation.redaction import HIDDEN, redact_value
from posgap.foundation.registry import SECRET, WITHOUT_EFFECT

NO_PARAMETERS = ("force", "estimate")  # repeats the work, or does none; neither changes an output
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")
MAX_INTEGER = 2**32 - 1  # of whole numbers; numpy takes no larger seed


class Config(BaseModel):
    """The base of every verb's config. Its numbers are finite, and its texts can be written down.

    `named_by` has the fields whose values name the folder in `runs` if the command line has no `out`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    named_by: ClassVar[Sequence[str]] = ()

    @field_validator("*", mode="after")
    @classmethod
    def _ordinary(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(f"must not be above {MAX_INTEGER}")
        for text in value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]:
            if isinstance(text, str | Path) and _UNWRITABLE.search(str(text)):
                raise ValueError("is not UTF-8 text")
        return value

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of one parameter, for KFP and MLproject, which must repeat it, and have no null."""
        default = cls.model_fields[name].get_default(call_default_factory=True)
        return "" if default in (None, PydanticUndefined) else default

    @classmethod
    def must_be_said(cls, name: str) -> bool:
        """Returns whether the command line must give a field a value: it has no default, and no folder in `runs`."""
        return cls.model_fields[name].is_required() and not (name == "out" and cls.named_by)

    @classmethod
    def shown_defaults(cls) -> dict[str, str]:
        """Returns help's words for the default of fields whose empty value another field decides."""
        return {}

    @classmethod
    def parameters(cls) -> dict[str, FieldInfo]:
        """The plain parameters by name: all fields but paths and `NO_PARAMETERS`."""
        fields = cls.model_fields.items()
        return {name: field for name, field in fields if role(field) is None and name not in NO_PARAMETERS}

    @classmethod
    def options(cls) -> dict[str, FieldInfo]:
        """The fields by name that the command line and MLproject take."""
        return {name: field for name, field in cls.model_fields.items() if NO_OPTION not in field.metadata}

    @classmethod
    def cache_key_fields(cls) -> list[str]:
        """The names of the plain parameters that decide what comes out, rather than how fast."""
        return [name for name, field in cls.parameters().items() if WITHOUT_EFFECT not in field.metadata]

    def in_runs(self, verb: str) -> Path:
        """Returns the output's folder in `runs`, named after the verb and the fields of `named_by` that are no
        defaults."""
        words = [verb]
        for name in self.named_by:
            value = getattr(self, name)
            if value not in (None, self.default(name)):
                places = value if isinstance(value, list) else [value]
                words += [last_name(place).partition(".jsonl")[0] for place in places]
        return Path("runs") / re.sub(r"[^\w.-]+", "-", "-".join(words)).strip(".-")

    def is_served(self, name: str) -> bool:
        """Returns whether the input of this name is a served model's name, in whatever form."""
        return False

    def further_inputs(self) -> dict[str, str]:
        """Places of inputs by name that are no fields themselves, but stand within one."""
        return {}

    def redacted_dump(self) -> dict[str, Any]:
        """All fields as JSON values, as manifests keep them: without secrets."""
        plain = self.model_dump(mode="json")
        values = redact_value(plain)
        for name, field in type(self).model_fields.items():
            if VERBATIM in field.metadata:
                values[name] = plain[name]
            if SECRET in field.metadata and values[name]:
                values[name] = HIDDEN
        return values

    def parameter_values(self) -> dict[str, Any]:
        """The values of the plain parameters by name, as `redacted_dump` has them."""
        values = self.redacted_dump()
        return {name: values[name] for name in self.parameters()}


class FileConfig(Config):
    out: OutputPath = Field(description="file to write")
    force: bool = Field(False, description="replace another file of this name")


class StageConfig(Config):
    out: OutputPath = Field(description="folder to write")
    force: bool = Field(False, description="run again even if the output is complete")
    is_costly: ClassVar[bool] = False  # whether only --force replaces an output that answers another question
    examples_for: ClassVar[str] = ""  # what a stage that has the input `examples` uses them for
    _digests: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def with_digests(self, digests: Mapping[str, str]) -> Self:
        """This config, which knows the sha256 of each of its inputs, by field."""
        config = self.model_copy()
        config._digests = digests
        return config

    def resolve_auto(self) -> Self:
        """Returns this config with a choice in place of each "auto" that depends on the machine and changes the result.

        A stage's work gets this one, and the manifest names the choice.
        """
        return self

    def digest(self, name: str) -> str:
        """The sha256 of an input, which the stage's frame has computed before the stage began to work, so that a model
        of many gigabytes is not read for it again; empty for a model on the hub."""
        return self._digests[name]


class FreshConfig(StageConfig):
    """The base of the configs of stages that look at what may have changed since, and so reuse no earlier output."""

    force: ClassVar[bool] = True  # type: ignore[misc]  # no field, and no option


class SeededConfig(StageConfig):
    """The base of the configs of stages that draw random numbers."""

    seed: int = Field(0, ge=0, description="seed of all random numbers in this stage")


class RegisteredConfig(Config):
    name: Annotated[RegisteredName, POSITIONAL] = Field(description="name of the registered model in MLflow")
