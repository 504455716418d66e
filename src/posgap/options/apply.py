"""Options of `apply`."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from posgap.foundation.fields import ModelName, OptionalInputPath, Values
from posgap.mitigations.registry import MITIGATIONS
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class ApplyConfig(StageConfig):
    """Writes a model folder that loads with a mitigation in force: the same parameters, and another config."""

    model: ModelName = Field(description="Hugging Face folder or hub name of the model")
    found: OptionalInputPath = Field(
        None,
        description="folder from `mitigate` or `scale search` with the settings; empty: `mitigation_settings`",
    )
    mitigation: Annotated[str, AfterValidator(MITIGATIONS.require_name_if_any)] = Field(
        "", description="mitigation to apply; empty: the best in `found` that a model can have"
    )
    certain: bool = Field(
        True,
        description="from `found`, take only a mitigation that is certainly better than the unmodified model; "
        "false: the best that was measured",
    )
    mitigation_settings: Values = Field({}, description='its settings as JSON, like {"factors": [1, 1.5]}')

    @model_validator(mode="after")
    def _one_source(self) -> "ApplyConfig":
        if not self.found and not self.mitigation:
            raise ValueError(
                "give a `mitigation` with its `mitigation_settings`, or `found`, a folder from `mitigate` or `scale "
                "search`"
            )
        if self.found and self.mitigation_settings:
            raise ValueError("`found` has settings already: leave out `mitigation_settings`")
        return self


VERB = Verb(
    ApplyConfig,
    "--model Qwen/Qwen3-0.6B --found run/mitigate --out run/mitigated",
    results=("mitigation.json", "scaling.json"),
    kind=Kind.STAGE,
)
