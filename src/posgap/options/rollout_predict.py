"""Options of `rollout predict`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from posgap.foundation.fields import RARE, OptionalInputPath
from posgap.foundation.registry import Numbers, PositiveNumbers, split_commas
from posgap.options.base import SeededConfig
from posgap.options.verb import Kind, Verb

MAX_TOKENS, MAX_PARTS = 10_000_000, 10_000


TokenCounts = Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(split_commas)]


def _require_word_alone(values: list[Any]) -> list[Any]:
    if len(values) > 1 and any(isinstance(value, str) for value in values):
        raise ValueError("give one word for all layers, or numbers")
    return values


Strengths = Annotated[
    list[float | Literal["measured"]],
    BeforeValidator(split_commas), Field(min_length=1), AfterValidator(_require_word_alone),
]  # fmt: skip


SelfScores = Annotated[
    list[float | Literal["heads"]],
    BeforeValidator(split_commas), Field(min_length=1), AfterValidator(_require_word_alone),
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
        "each, separated by commas; 0: all earlier tokens",
    )
    prefix: Annotated[int, RARE] = Field(0, ge=0, description="prefix: number of first tokens that all tokens see (K)")
    encoding: Literal["measured", "none", "decay", "alibi", "rope"] = Field(
        "none",
        description="position encoding; measured: the measured model's; none: none; decay: scores fall linearly with "
        "distance; alibi: the same, with ALiBi's slope for each head; rope: queries and keys are rotated by their "
        "positions",
    )
    slope: Numbers = Field(
        [0.223],
        description="decay: how much the score falls per token of distance (m): one number, or one for each head, "
        "separated by commas",
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
        description="extra score of a token on itself: one number, one for each layer, separated by commas, or "
        "heads: the measurement's of each layer and head",
    )


VERB = Verb(
    RolloutPredictConfig,
    "--encoding rope --layers 12 --out run/prediction",
    results=("prediction.json",),
    kind=Kind.STAGE,
)
