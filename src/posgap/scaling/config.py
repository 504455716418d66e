"""Parameters of RoPE scaling: its search, its application, its transfer, and the check of a served model."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from posgap.foundation.config import Config, StageConfig
from posgap.foundation.fields import POSITIONAL, InputPath, ModelName, ModelPath, OptionalInputPath
from posgap.generation.config import GenerationConfig
from posgap.measurement.answered import MaxUnanswered
from posgap.scaling.curve_kinds import CURVES
from posgap.tasks.fields import Placements


class _Searched(GenerationConfig):
    examples_for: ClassVar[str] = "search"
    exclude: OptionalInputPath = Field(
        None, description="evaluation examples; the search refuses to run on any of them"
    )
    positions: Placements = Field([], description="positions to score, separated by commas; empty: all")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")
    strategy: Literal["genetic", "cma", "ms_poe"] = Field(
        "genetic",
        description="genetic: genetic algorithm; cma: CMA-ES; ms_poe: Ms-PoE's factors per head, not searched",
    )
    curve: Annotated[str, CURVES, AfterValidator(CURVES.checked)] = Field(
        "bezier", description=f"how the factors vary over depth; {CURVES.described()}"
    )


class ScaleSearchConfig(*CURVES.bases(), _Searched):  # type: ignore[misc]  # registered choices' parameters
    """Searches RoPE factors, one per layer, that close the gap without training (LPES)."""

    low: float = Field(1.0, gt=0, description="lowest factor")
    high: float = Field(2.0, description="highest factor")
    monotone: Literal["none", "increasing", "decreasing"] = Field(
        "none", description="constrain the factors to rise or fall with depth"
    )
    population: int = Field(16, ge=2, description="candidates in a generation")
    generations: int = Field(10, ge=1, description="largest number of generations")
    patience: int = Field(4, ge=0, description="stop after this many generations without improvement; 0: never")
    elite: int = Field(2, ge=0, description="genetic: number of best candidates that survive a generation")
    tournament: int = Field(3, ge=1, description="genetic: number of candidates that compete to be a parent")
    mutation: float = Field(0.25, gt=0, description="genetic: largest change of a control point by mutation")
    mutation_rate: float = Field(0.5, ge=0, le=1, description="genetic: share of control points that mutate")
    objective: Literal["mean", "worst", "mean_minus_gap"] = Field(
        "mean", description="what is maximised: mean accuracy over positions, the worst position's, or mean minus gap"
    )
    weights: Literal["middle", "uniform"] = Field(
        "middle", description="weights of positions in the mean; middle: in the middle twice as high as at the ends"
    )
    evaluation: Literal["auto", "teacher_forced", "generation"] = Field(
        "auto",
        description="how answers are judged; auto: teacher_forced if each question has only one right response, and "
        "the model begins with it",
    )
    holdout: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="share of the examples that the search is kept from, to say what the factors gain; 0: none",
    )
    halving: bool = Field(
        False,
        description="drop the weaker half of the candidates after a quarter, and again after half, of the examples",
    )

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"the highest factor must not be below the lowest, {info.data['low']:g}")
        return high

    @field_validator("elite")
    @classmethod
    def _below_population(cls, elite: int, info: ValidationInfo) -> int:
        if elite >= info.data.get("population", elite + 1):
            raise ValueError(f"must be less than the population, {info.data['population']}")
        return elite


class ScaleApplyConfig(StageConfig):
    """Writes a model folder that loads scaled: the same parameters, with the RoPE factors in its config."""

    model: ModelName = Field(description="Hugging Face folder or hub name of the model the scaling was searched for")
    scaling: InputPath = Field(description="folder from `scale search`")


class ScaleTransferConfig(MaxUnanswered, StageConfig):
    """Sweeps a model unscaled and scaled on other tasks and lengths, and says where the scaling helps."""

    targets: Annotated[list[str], POSITIONAL] = Field(
        min_length=1,
        description="settings to sweep: TASK:N_DOCS:EXAMPLES, or EXAMPLES for the search's task and length",
    )
    model: ModelName = Field(description="Hugging Face folder or hub name of the model the scaling was searched for")
    scaling: InputPath = Field(description="folder from `scale search`")
    n_positions: int = Field(0, ge=0, description="number of evenly spaced positions to sweep; 0: all")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="transformers: tokens in a batch, padding included")


class ServeCheckConfig(Config):
    """Prints the RoPE factors that a loaded model applies, layer by layer, beside those of its config."""

    model: ModelPath = Field(description="Hugging Face model folder")
    backend: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="auto: vllm if it is installed, else transformers"
    )
