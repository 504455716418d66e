"""Config of scaling: the parameters of the search of RoPE factors."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from posgap.foundation.errors import faults
from posgap.foundation.fields import RARE, OptionalInputPath, Values
from posgap.generation.config import GenerationConfig
from posgap.mitigations.curve_kinds import CURVES
from posgap.tasks.fields import Placements


class Genetics(BaseModel):
    """How the genetic algorithm varies candidates: the number of best ones that survive a generation, the number that
    compete to be a parent, the largest change of a control point by mutation, and the share of points that mutate."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    elite: int = Field(2, ge=0)
    tournament: int = Field(3, ge=1)
    mutation: float = Field(0.25, gt=0)
    mutation_rate: float = Field(0.5, ge=0, le=1)


def _check_genetic(given: dict[str, Any]) -> dict[str, Any]:
    if wrong := faults(lambda: Genetics(**given)):
        raise ValueError(wrong[0])
    return Genetics(**given).model_dump(include=set(given))


class ScaleSearchConfig(*CURVES.bases(), GenerationConfig):  # type: ignore[misc]  # registered choices' parameters
    """Searches RoPE factors, one per layer, that close the gap without training, after LPES."""

    examples_for: ClassVar[str] = "search"
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
    generations: int = Field(10, ge=1, description="largest number of generations")
    patience: Annotated[int, RARE] = Field(
        4, ge=0, description="stop after this many generations without improvement; 0: never"
    )
    genetic: Annotated[Values, RARE, AfterValidator(_check_genetic)] = Field(
        {}, description='the genetic algorithm\'s own settings as JSON, like {"mutation": 0.1, "elite": 1}'
    )
    objective: Literal["mean", "worst", "mean_minus_gap"] = Field(
        "mean", description="what is maximised: mean accuracy over positions, the worst position's, or mean minus gap"
    )
    weights: Annotated[Literal["middle", "uniform"], RARE] = Field(
        "middle", description="weights of positions in the mean; middle: in the middle twice as high as at the ends"
    )
    evaluation: Literal["auto", "teacher_forced", "generation"] = Field(
        "auto",
        description="how answers are judged; auto: teacher_forced if each question has only one right response, and "
        "the model begins with it, scaled too",
    )
    holdout: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="share of the examples that the search is kept from, to say what the factors gain; 0: none",
    )

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"the highest factor must not be below the lowest, {info.data['low']:g}")
        return high
