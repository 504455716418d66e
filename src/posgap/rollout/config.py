"""Config of rollout: the parameters of the theory of position bias."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from posgap.foundation.config import SeededConfig
from posgap.foundation.fields import MODEL, RARE, InputPath, ModelName, OptionalInputPath
from posgap.foundation.registry import Numbers, NumbersOrRows, PositiveNumbers, split_commas, split_rows
from posgap.tasks.fields import MAX_DOCS, OptionalTaskName
from posgap.tasks.registry import TASKS

MAX_TOKENS, MAX_PARTS = 10_000_000, 10_000
TokenCounts = Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(split_commas)]


def _require_word_alone(values: list[Any]) -> list[Any]:
    if len(values) > 1 and any(isinstance(value, str) for value in values):
        raise ValueError("a word stands for all layers: give it alone, or numbers")
    return values


Strengths = Annotated[
    list[float | Literal["measured"]],
    BeforeValidator(split_commas), Field(min_length=1), AfterValidator(_require_word_alone),
]  # fmt: skip
SelfScores = Annotated[
    list[float | list[float] | Literal["heads"]],
    BeforeValidator(split_rows), Field(min_length=1), AfterValidator(_require_word_alone),
]  # fmt: skip


class RolloutPredictConfig(SeededConfig):
    """Predicts each input position's share in the last token from mask, position encoding, residuals and depth.

    With a measurement it also says whether the prediction describes the model.
    """

    measurement: OptionalInputPath = Field(
        None,
        description="folder from `rollout measure`; supplies options left at 0 or set to `measured`, and is compared "
        "with the prediction",
    )
    sequence_length: int = Field(0, ge=0, le=MAX_TOKENS, description="tokens (N); 0: the measurement's")
    layers: int = Field(0, ge=0, le=MAX_PARTS, description="layers (L); 0: the measurement's")
    heads: int = Field(0, ge=0, le=MAX_PARTS, description="attention heads (H); 0: the measurement's")
    mask: Literal["causal", "full", "window", "prefix", "measured"] = Field(
        "causal", description="which tokens a token sees; measured: causal, with the measured model's windows"
    )
    window: TokenCounts = Field(
        [],
        description="window: number of tokens seen, the token itself included (w): one for all layers, or one for "
        "each, separated by commas, where 0 is all tokens before it",
    )
    prefix: Annotated[int, RARE] = Field(0, ge=0, description="prefix: number of first tokens that all tokens see (K)")
    encoding: Literal["measured", "none", "decay", "alibi", "rope"] = Field(
        "none",
        description="position encoding; measured: the measured model's; none: none; decay: scores fall linearly with "
        "distance; alibi: the same, with ALiBi's slope for each head; rope: queries and keys are rotated by their "
        "positions",
    )
    slope: NumbersOrRows = Field(
        [0.223],
        description="decay: how much the score falls per token of distance (m): one number, or one for each head, "
        "separated by commas, or a row of those for each layer, separated by semicolons",
    )
    rope_theta: Numbers = Field(
        [10000.0],
        description="rope: base of RoPE's angles (theta): one number, or one for each layer, separated by commas; 0: a "
        "layer without positions",
    )
    rope_factors: PositiveNumbers = Field(
        [], description="rope: one factor per layer that divides positions (LPES); empty: the measured model's, or none"
    )
    residual: Strengths = Field(
        [0.5],
        description="lambda: share of attention in a layer, R = (1 - lambda) I + lambda A: one number, one for each "
        "layer, from the first, separated by commas, or measured: the measurement's",
    )
    content: SelfScores = Field(
        [0.0],
        description="extra score of a token on itself: one number, one for each layer, separated by commas, or, by "
        "head, a row for each layer, separated by semicolons; heads: the measurement's of each layer and head",
    )


class RolloutMeasureConfig(SeededConfig):
    """Measures how much each part of a prompt reaches the last token."""

    named_by = ("model", "task", "texts")

    texts: InputPath = Field(
        description="a text file, a .jsonl(.gz) with a field `text` or, with `task`, a file of examples"
    )
    model: ModelName = Field(description=MODEL)
    task: OptionalTaskName = Field(
        "", description=f"task whose examples `texts` holds; {TASKS.help_text()}; empty: `texts` holds plain text"
    )
    n_docs: int = Field(20, ge=1, le=MAX_DOCS, description="with `task`: documents in a prompt")
    sweep: OptionalInputPath = Field(
        None,
        description="with `task`: folder from a `sweep` of the model, whose positions are measured, and whose accuracy "
        "`rollout predict` compares",
    )
    length: int = Field(
        0, ge=0, description="number of tokens of every text (N); 0: 256. Prompts of a `task` are measured whole"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` texts; 0: all")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    label: str = Field("", description="what plots and tables call this model; empty: its name")


class RolloutExperimentConfig(SeededConfig):
    """Trains small attention-only networks with one cause of position bias at a time, and reports its effect."""

    preset: Literal["quick", "learned"] = Field(
        "quick",
        description="the experiment; learned: causal, window and prefix masks, five seeds each, half an hour; "
        "quick: two of its masks, one seed, minutes",
    )
    iterations: int = Field(0, ge=0, description="training steps; 0: the preset's")
