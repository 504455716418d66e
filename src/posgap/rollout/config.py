"""Theory of position bias."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from posgap.foundation.choices import Numbers, NumbersOrRows, PositiveNumbers, split_commas
from posgap.foundation.config import SeededConfig
from posgap.foundation.fields import MODEL, RARE, InputPath, ModelName, OptionalInputPath, WorkPath
from posgap.generation.config import GenerationConfig
from posgap.rollout.position_encodings import POSITION_ENCODINGS
from posgap.tasks.fields import MAX_DOCS, OptionalTaskName, Placements
from posgap.tasks.registry import TASKS

MAX_TOKENS, MAX_PARTS = 10_000_000, 10_000
Influence = Literal[
    "gradient", "gradient_times_input", "rollout", "rollout_without_residuals", "value_norm", "gradient_rollout"
]
TokenCounts = Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(split_commas)]


class _Described(SeededConfig):
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
    encoding: Annotated[str, POSITION_ENCODINGS, AfterValidator(POSITION_ENCODINGS.checked)] = Field(
        "none", description=f"position encoding; {POSITION_ENCODINGS.described()}"
    )


class RolloutPredictConfig(*POSITION_ENCODINGS.bases(), _Described):  # type: ignore[misc]  # choices' parameters
    """Predicts each input position's share in the last token from mask, position encoding, residuals and depth.

    With a measurement it also says whether the prediction describes the model.
    """

    residual: Literal["constant", "power", "measured"] = Field(
        "constant",
        description="residual strength by layer; constant: the same in all; power: lambda * layer^-power; "
        "measured: the measurement's",
    )
    residual_strength: Annotated[Numbers, Field(min_length=1)] = Field(
        [0.5],
        description="lambda: share of attention in a layer, R = (1 - lambda) I + lambda A; or, in place of `residual`, "
        "that of each layer, from the first, separated by commas",
    )
    residual_power: float = Field(1.0, ge=0, description="residual power: exponent of the decay with depth")
    content: Literal["none", "constant", "mean", "heads"] = Field(
        "none",
        description="extra score of a token on itself; constant: `content-score`; mean: the measurement's mean; heads: "
        "the measurement's of each layer and head",
    )
    content_score: Annotated[NumbersOrRows, Field(min_length=1)] = Field(
        [0.0],
        description="content constant: the extra score of a token on itself; or, in place of `content`, one for each "
        "layer, separated by commas, or, by head, a row for each layer, separated by semicolons",
    )
    head_weights: Annotated[PositiveNumbers, RARE] = Field(
        [], description="one positive weight per head for the average over heads; empty: uniform"
    )
    temperature: float = Field(1.0, gt=0, description="divides all scores")
    influence: Influence = Field(
        "gradient",
        description="with `measurement`: the measured distribution that plot and summary show; all are compared in "
        "the file",
    )
    label: str = Field("predicted", description="what plots and tables call this prediction")


class RolloutMeasureConfig(SeededConfig):
    """Measures how much each part of a prompt reaches the last token, and, with a sweep, what tells right answers."""

    named_by = ("model", "task", "texts")

    texts: InputPath = Field(
        description="a text file, a .jsonl(.gz) with a field `text` or, with `task`, a file of examples"
    )
    model: ModelName = Field(description=MODEL)
    task: OptionalTaskName = Field(
        "", description=f"task whose examples `texts` holds; {TASKS.described()}; empty: `texts` holds plain text"
    )
    n_docs: int = Field(20, ge=1, le=MAX_DOCS, description="with `task`: documents in a prompt")
    sweep: OptionalInputPath = Field(
        None, description="with `task`: folder from a `sweep` of the model with these examples, whose answers are told"
    )
    length: int = Field(
        0, ge=0, description="number of tokens of every text (N); 0: 256. Prompts of a `task` are measured whole"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` texts; 0: all")
    batch_tokens: int = Field(4096, ge=1, description="tokens in a batch")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    label: str = Field("", description="what plots and tables call this model; empty: its name")


class RolloutAdviseConfig(GenerationConfig):
    """Finds the attention heads that make the bias, predicts what turning them changes, and checks it."""

    examples_for: ClassVar[str] = "search"
    named_by = ("model", "task", "examples")

    positions: Placements = Field([], description="gold positions to look at, separated by commas; empty: a spread")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")
    check: int = Field(
        6, ge=0, description="number of the best changes to make and measure; as many of the others are too"
    )
    label: str = Field("", description="what plots and tables call this model; empty: its name")


class RolloutExperimentConfig(SeededConfig):
    """Trains small attention-only networks with one cause of position bias at a time, and reports its effect."""

    preset: Literal["quick", "learned"] = Field(
        "quick",
        description="the experiment; learned: causal, window and prefix masks, five seeds each, half an hour; "
        "quick: two of its masks, one seed, minutes",
    )
    seeds: int = Field(0, ge=0, description="networks trained for each setting; 0: the preset's")
    iterations: int = Field(0, ge=0, description="training steps; 0: the preset's")
    batch: int = Field(0, ge=0, description="sequences in a training step; 0: the preset's")
    tests: int = Field(0, ge=0, description="sequences of each test set; 0: the preset's")
    work: WorkPath = Field(None, description="folder for finished trials; empty: one beside `out`")
