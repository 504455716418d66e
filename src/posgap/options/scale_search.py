"""Options of `scale search`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from posgap.foundation.fields import OptionalInputPath
from posgap.mitigations.curve_kinds import CURVES
from posgap.models import OWN_TABLES_KEY
from posgap.models.precision import device_class
from posgap.options.generation import LocalBackendConfig
from posgap.options.verb import Kind, Verb
from posgap.scaling.search_settings import SearchSettings
from posgap.tasks.fields import Placements


class ScaleSearchConfig(*CURVES.bases(), LocalBackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """Searches RoPE factors, one per layer, that close the gap without training, after LPES."""

    examples_for: ClassVar[str] = "search"
    vllm_options: ClassVar[Mapping[str, Any]] = {
        "worker_extension_cls": "posgap.scaling.vllm_plugin.FactorSetter",
        "hf_overrides": {OWN_TABLES_KEY: True},
    }

    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    exclude: OptionalInputPath = Field(
        None, description="evaluation examples; the search refuses to run on any of them"
    )
    positions: Placements = Field([], description="positions to score, separated by commas; empty: all")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")
    curve: Annotated[str, CURVES, AfterValidator(CURVES.require_name)] = Field(
        "bezier", description=f"how the factors vary over depth; {CURVES.help_text()}"
    )
    low: float = Field(1.0, gt=0, description="lowest factor")
    high: float = Field(2.0, description="highest factor")
    population: int = Field(16, ge=2, description="candidates in a generation")
    generations: int = Field(
        10, ge=1, description="largest number of generations; four without improvement end the search"
    )
    objective: Literal["mean", "uniform", "worst"] = Field(
        "mean",
        description="fitness to maximise; mean: mean accuracy, with the middle weighed twice as much as the ends; "
        "uniform: unweighted mean accuracy; worst: accuracy at the worst position",
    )

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"the highest factor must not be below the lowest, {info.data['low']:g}")
        return high

    def search_settings(self) -> SearchSettings:
        """Returns the settings of the search."""
        parameters = CURVES[self.curve].parameters.of(self).model_dump()
        own = [each.name for each in fields(SearchSettings) if each.name in type(self).model_fields]
        return SearchSettings(curve_parameters=parameters, **{name: getattr(self, name) for name in own})

    def resolve_auto(self) -> Self:
        """Returns this config with its dtype. The search chooses the backend, once it knows whether answers are forced.

        A processor forces them in float32, since ties lose right answers in 16 bits.
        """
        of_device = "float32" if device_class() == "cpu" else "bfloat16"
        return self.model_copy(update={"dtype": of_device if self.dtype == "auto" else self.dtype})


VERB = Verb(
    ScaleSearchConfig,
    "--model Qwen/Qwen3-0.6B --examples search.jsonl.gz --exclude run/eval --out run/scaling",
    results=("scaling.json",),
    kind=Kind.STAGE,
)
