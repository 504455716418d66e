"""Options of `mitigate`."""

import re
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posgap.foundation.fields import ModelName, OptionalInputPath
from posgap.foundation.registry import split_commas
from posgap.generation.backends import BACKENDS
from posgap.measurement.max_unanswered import MaxUnanswered
from posgap.measurement.settings import SweepSettings
from posgap.mitigations.registry import MITIGATIONS
from posgap.options.generation import BackendConfig
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SWEPT_MODEL, SweepConfig
from posgap.options.verb import Kind, Verb
from posgap.scaling.search_settings import SearchSettings
from posgap.tasks.fields import Placements

_UNITS = {"s": 1, "m": 60, "h": 3600}


_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")


def _duration(text: str) -> str:
    parts = _DURATION.fullmatch(text)
    if not parts or not float(parts[1]):
        raise ValueError("must be a time like 90s, 30m or 2h")
    return text


def seconds_of(duration: str) -> float:
    """A time like 30m in seconds."""
    number = duration[:-1]
    unit = duration[-1]
    return float(number) * _UNITS[unit]


Duration = Annotated[str, AfterValidator(_duration)]


MitigationNames = Annotated[
    list[Annotated[str, AfterValidator(MITIGATIONS.require_name)]], BeforeValidator(split_commas)
]


_ELSEWHERE = BACKENDS.where(lambda backend: not backend.local)


class MitigateConfig(
    MaxUnanswered,
    *BACKENDS.bases(),  # type: ignore[misc]  # registered choices' parameters
    BackendConfig,
):
    """Tries the mitigations that suit a model on one half of the examples, and measures the best on the other half.

    vLLM and an endpoint can only have mitigations of prompts.
    """

    examples_for: ClassVar[str] = "search"
    named_by = ("model", "task", "examples")

    model: ModelName = Field(description=SWEPT_MODEL)
    exclude: OptionalInputPath = Field(
        None, description="evaluation examples; the comparison refuses to run on any of them"
    )
    methods: MitigationNames = Field(
        [], description=f"mitigations to try, like lpes,reordering; {MITIGATIONS.help_text()}; empty: all"
    )
    budget: Duration = Field(
        "30m",
        description="time to spend, like 90s, 30m or 2h: half of it to choose settings, half to measure; a slow model "
        "is asked fewer examples",
    )
    positions: Placements = Field([], description="positions to measure, separated by commas; empty: all")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")

    @model_validator(mode="after")
    def _each_once(self) -> "MitigateConfig":
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("name each of the `methods` once")
        return self

    def why_in_memory(self) -> str:
        changing = [name for name in self.methods or MITIGATIONS.names() if MITIGATIONS[name].of_model]
        return f"a model in memory is changed by {', '.join(changing)}, and all are compared there" if changing else ""

    def comparison_key(self) -> dict[str, Any]:
        """The parameters that decide answers."""
        without_effect = {"budget", "methods", *(self.parameters().keys() - {*self.cache_key_fields()})}
        return {name: value for name, value in self.parameter_values().items() if name not in without_effect}

    def sweep_settings(self) -> SweepSettings:
        """Returns the settings of a sweep of all examples without a mitigation."""
        shared = type(self).model_fields.keys() & SweepConfig.model_fields.keys() - {"force", "limit"}
        return SweepConfig(**{name: getattr(self, name) for name in shared}).sweep_settings()

    def search_settings(self) -> SearchSettings:
        """Returns the settings of the search of RoPE factors: the defaults of `scale search`, with equal weight for all
        placements."""
        shared = type(self).model_fields.keys() & ScaleSearchConfig.model_fields.keys() - {"backend"}
        searching = ScaleSearchConfig(**{name: getattr(self, name) for name in shared}, objective="uniform")
        return replace(searching.search_settings(), backend=self.backend)  # an endpoint's model is not searched

    def parameter_values(self) -> dict[str, Any]:
        """Returns the plain parameters, with those of endpoints only for an endpoint."""
        known = super().parameter_values()
        if not BACKENDS[self.backend].local:
            return known
        for parameters in _ELSEWHERE.bases():
            for name in parameters.model_fields:
                known.pop(name, None)
        return known


VERB = Verb(
    MitigateConfig,
    "--model Qwen/Qwen3-0.6B --examples run/eval --task kv --budget 30m --out run/mitigate",
    results=("mitigate.json",),
    kind=Kind.STAGE,
)
