"""Theory of position bias."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from posgap.choices import POSITION_ENCODINGS, TASKS
from posgap.config.base import StageConfig
from posgap.config.fields import (
    InputPath,
    ModelPath,
    Numbers,
    OptionalInputPath,
    OptionalTaskName,
    WorkPath,
)


class _Described(StageConfig):
    measurement: OptionalInputPath = Field(None, description="folder `rollout measure` wrote: what is 0 or asked of it")
    sequence_length: int = Field(0, ge=0, description="tokens (N); 0: the measurement's")
    layers: int = Field(0, ge=0, description="layers (L); 0: the measurement's")
    heads: int = Field(0, ge=0, description="attention heads (H); 0: the measurement's")
    mask: Literal["causal", "full", "window", "prefix"] = Field("causal", description="which tokens a token sees")
    window: int = Field(0, ge=0, description="window: tokens seen, the token itself included (w)")
    prefix: int = Field(0, ge=0, description="prefix: first tokens that all tokens see (K)")
    encoding: Annotated[str, POSITION_ENCODINGS, AfterValidator(POSITION_ENCODINGS.checked)] = Field(
        "none", description=f"position encoding; {POSITION_ENCODINGS.described()}"
    )


class RolloutPredictConfig(*POSITION_ENCODINGS.bases(), _Described):  # type: ignore[misc]  # choices' parameters
    """Predicts, from mask, position encoding, residuals and depth alone, what reaches the last token."""

    residual: Literal["constant", "power", "measured"] = Field(
        "constant", description="residual strength by layer; power: lambda * layer^-power; measured: the measurement's"
    )
    residual_strength: float = Field(
        0.5, ge=0, le=1, description="lambda: share of attention in a layer, R = (1 - lambda) I + lambda A"
    )
    residual_power: float = Field(1.0, ge=0, description="power: exponent of the decay with depth")
    content: Literal["none", "constant", "mean", "heads"] = Field(
        "none",
        description="extra score of a token on itself: none, `content-score`, or the measurement's mean or per layer "
        "and head",
    )
    content_score: float = Field(0.0, description="constant: that score")
    head_weights: Numbers = Field([], description="weight of each head in the average; empty: uniform")
    temperature: float = Field(1.0, gt=0, description="divides all scores")
    label: str = Field("predicted", description="what plots and tables call this prediction")


class RolloutMeasureConfig(StageConfig):
    """Measures residual strengths, attention and what of the input reaches the last token, on a model."""

    texts: InputPath = Field(description="a text, .jsonl(.gz) with a field `text`, or with `task` examples")
    model: ModelPath = Field(description="Hugging Face model folder or hub name")
    task: OptionalTaskName = Field(
        "", description=f"read `texts` as examples of this task; {TASKS.described()}; empty: as text"
    )
    n_docs: int = Field(20, ge=1, description="with `task`: documents in a prompt")
    length: int = Field(0, ge=0, description="tokens of every text (N); 0: 256, or with `task` the shortest prompt's")
    limit: int = Field(0, ge=0, description="use the first so many texts; 0: all")
    batch_tokens: int = Field(4096, ge=1, description="tokens read at once")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    sink_threshold: float = Field(0.2, gt=0, lt=1, description="attention above which a token counts as a sink (tau)")
    label: str = Field("model", description="what plots and tables call this model")


class RolloutCompareConfig(StageConfig):
    """Lays predicted and measured distributions, and a sweep's accuracy, over each other."""

    prediction: InputPath = Field(description="folder `rollout predict` wrote")
    measurement: InputPath = Field(description="folder `rollout measure` wrote")
    influence: Literal["gradient", "gradient_times_input", "rollout", "rollout_without_residuals"] = Field(
        "gradient", description="the measured distribution to compare with; all are in the table"
    )
    sweep: OptionalInputPath = Field(None, description="sweep whose accuracy curve is drawn too")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the texts")


class RolloutExperimentConfig(StageConfig):
    """Trains attention-only networks in which one cause of position bias at a time is switched on."""

    preset: Literal[
        "quick",
        "figure2",
        "figure3",
        "figure6",
        "figure7",
        "figure8",
        "figure9",
        "figure10",
        "figure11",
        "figure12",
        "figure13",
    ] = Field(
        "quick", description="a figure of Wu et al. (2025) at its sizes, or smaller networks for minutes on two cores"
    )
    seeds: int = Field(0, ge=0, description="networks trained for each setting; 0: the preset's")
    iterations: int = Field(0, ge=0, description="training steps; 0: the preset's")
    batch: int = Field(0, ge=0, description="sequences a step; 0: the preset's")
    learning_rate: float = Field(0.0, ge=0, description="of AdamW; 0: the preset's")
    tests: int = Field(0, ge=0, description="sequences of each test set; 0: the preset's")
    as_coded: bool = Field(
        False, description="deviation 1/d and middle n/2 + 1, as the paper's code has them, not variance 1/d and n/2"
    )
    side_by_side: int = Field(8, ge=1, description="networks trained at once")
    work: WorkPath = Field(None, description="folder of checkpoints and finished trials; empty: beside `out`")
