"""The files of the rollout verbs: `prediction.json`, and `measurement.json` with its arrays beside it."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Required, Self
from zipfile import BadZipFile

import numpy as np
from pydantic import ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from posgap.foundation.errors import BadOption, Malformed, Unreadable
from posgap.foundation.files import Record, atomic, read_model
from posgap.measurement.sweeps import read_sweep
from posgap.rollout.agreement import Agreement
from posgap.tasks.prompts import PromptBuilder

SINK_THRESHOLD = 0.2  # attention above which a token counts as a sink (tau)
BINS = 100  # stretches of a prompt, if prompts differ in length
PREDICTION_FILE = "prediction.json"
MEASUREMENT_FILE = "measurement.json"
ARRAYS_FILE = "arrays.npz"


# A share of a whole, within rounding: values far from it would overflow in plots and descriptions.
Share = Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)]


class Prediction(Record):
    """A predicted rollout."""

    label: str = Field(description="name of the prediction in plots and tables")
    sequence_length: int = Field(ge=1, description="N, number of tokens")
    layers: int = Field(ge=1, description="L, number of layers")
    heads: int = Field(ge=1, description="H, number of attention heads")
    lambdas: list[float] = Field(description="[L] residual strengths")
    distribution: list[Share] = Field(description="[N] rollout's share of each token")
    without_residuals: list[Share] = Field(description="[N] the same shares with lambda = 1")
    description: dict = Field(description="shape of the curve")
    summary: str = Field(description="the result in words")
    settings: dict = Field(description="all parameters")


@with_config(ConfigDict(allow_inf_nan=False, extra="allow"))
class Encoding(TypedDict, total=False):
    """A model's position encoding: its kind, and ALiBi's slope of each head, or RoPE's base, head size and factors.

    `frequencies` [L] are the measured angles per token by which each layer rotates the planes of its queries and keys,
    greatest first, including base, factors and scaling. They are empty if a layer rotates nothing, None if the model
    does not hand them to its layers.
    """

    kind: Required[str]
    slopes: list[float]
    theta: Annotated[float, Field(gt=0)]
    head_size: Annotated[int, Field(ge=2)]
    factors: list[float]
    frequencies: list[list[float] | None]


class Accuracy(Record):
    """A sweep of the measured model."""

    label: str = Field(description="name of the model in reports")
    gap: float = Field(description="position gap, in points")
    n_docs: int = Field(description="documents in a prompt")
    metric: str = Field(description="metric that scored the answers")
    positions: list[int] = Field(description="positions of the gold document")
    accuracy: list[float] = Field(description="accuracy at each position, in percent")

    @classmethod
    def of_sweep(cls, path: Path, builder: PromptBuilder | None, n_docs: int) -> Self:
        """Reads it from a sweep folder. Raises `PosgapError` if that did not ask the prompts of `builder`."""
        if not builder:
            raise BadOption("sweep: asked prompts: give the `task` and examples that it asked")
        sweep = read_sweep(path)
        sweep.require_model_alone(path, "give a sweep without one, whose positions are those that the model reads")
        if sweep.categories:
            raise BadOption(
                f"{path}: a sweep of pairs has no curve over positions; give one of a task with one gold document"
            )
        if (sweep.task, sweep.n_docs) != (builder.task.name, n_docs):
            raise BadOption(
                f"{path}: asked {sweep.n_docs} documents of the task {sweep.task}, and not {n_docs} of "
                f"{builder.task.name}; measure what was swept"
            )
        if sweep.prompt_digest != builder.digest():
            raise BadOption(
                f"{path}: asked other prompts than are measured (another order, system message, template or "
                "tokenizer); sweep the model by the task's own prompts"
            )
        return cls(**{name: getattr(sweep, name) for name in cls.model_fields})


class Measurement(Record):
    """A model's attention and influence, measured over texts; the arrays beside it have single texts."""

    label: str = Field(description="name of the model in plots and tables")
    model: str = Field(description="address of the model")
    n_texts: int = Field(ge=1, description="number of texts")
    sequence_length: int = Field(ge=1, description="N, tokens of the longest text")
    shortest: int = Field(ge=1, description="tokens of the shortest text")
    layers: int = Field(ge=1, description="L, number of layers with attention")
    heads: int = Field(ge=1, description="H, number of attention heads")
    encoding: Encoding = Field(
        description="kind of position encoding, with slopes, or theta, head size and factors; frequencies [L] as "
        "measured in each layer"
    )
    lambdas: list[float] = Field(description="[L] residual strengths")
    content: list[list[float]] = Field(description="[L, H] extra score of a token on itself")
    first_mass: list[list[float]] = Field(description="[L, H] share of attention on the first token")
    diagonal_mass: list[list[float]] = Field(description="[L, H] share of attention on the token itself")
    entropy: list[list[float]] = Field(description="[L, H] entropy of attention, in nats")
    first_sink: list[list[float]] = Field(description="[L, H] share of queries for which the first token is a sink")
    influence: dict[str, list[Share]] = Field(
        description="each measure's distribution over tokens [N], or over 100 stretches of prompts of unlike length"
    )
    windows: list[int | None] = Field(
        default_factory=list, description="[L] number of tokens that a token sees; null: all"
    )
    unattended: dict[str, Share] = Field(
        default_factory=dict, description="share of each rollout that went to logits of sinks"
    )
    attention_layers: list[int] = Field(default_factory=list, description="[L] numbers of these layers, from 1")
    agreement: Agreement | None = Field(None, description="Spearman's correlation of each pair of measures")
    documents: dict | None = Field(
        None, description="shares among documents and of the gold one by each measure, with shape and tests"
    )
    sweep: Accuracy | None = Field(None, description="the accuracies of the sweep, if one was given")
    summary: str = Field(description="the findings in words")
    settings: dict = Field(description="all parameters")

    @model_validator(mode="after")
    def _require_own_lengths(self) -> Self:
        per_head = ("content", "first_mass", "diagonal_mass", "entropy", "first_sink")
        for name in ("lambdas", *per_head):
            if len(getattr(self, name)) != self.layers:
                raise ValueError(f"{name}: not {self.layers} layers")
        for name in per_head:
            if {*map(len, getattr(self, name))} - {self.heads}:
                raise ValueError(f"{name}: not {self.heads} heads in each layer")
        if any(len(values) != self.bins for values in self.influence.values()):
            raise ValueError(f"influence: not all distributions are over {self.bins} places")
        return self

    @property
    def bins(self) -> int:
        """The places of each distribution of `influence`: tokens, or stretches of prompts of different lengths."""
        return places(self.shortest, self.sequence_length)


def places(shortest: int, longest: int) -> int:
    """Over how many places distributions of texts of these lengths can be averaged."""
    return longest if shortest == longest else min(BINS, shortest)


def read_measurement(path: Path) -> Measurement:
    """Reads a folder that `rollout measure` wrote, or its `measurement.json`."""
    return read_model(Measurement, path, MEASUREMENT_FILE)


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes named arrays as `arrays.npz`."""
    with atomic(folder / ARRAYS_FILE) as partial:
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]  # mypy: a name could be `allow_pickle`


def read_influences(path: Path, measured: Measurement, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Each text's distributions `[E, bins]` by the measures of these names, from the arrays beside `measured`."""
    return _read_arrays(path, names, (measured.n_texts, measured.bins))


def read_document_shares(path: Path, measured: Measurement) -> dict[str, np.ndarray]:
    """Each prompt's shares among documents `[E, n]`, by measure, from the arrays beside `measured`; empty without
    any."""
    if not measured.documents:
        return {}
    shape = (measured.n_texts, int(measured.documents["n_docs"]))
    measures = list(measured.documents["measures"])
    arrays = _read_arrays(path, [f"documents_{name}" for name in measures], shape)
    return dict(zip(measures, arrays.values()))


def read_document_edges(path: Path, measured: Measurement) -> np.ndarray:
    """Reads the beginnings and ends of each prompt's documents, `[E, 2 n]`, as shares of the prompt's length."""
    assert measured.documents is not None
    shape = (measured.n_texts, 2 * int(measured.documents["n_docs"]))
    return _read_arrays(path, ["edges"], shape)["edges"]


def _read_arrays(path: Path, names: Iterable[str], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    file = (path if path.is_dir() else path.parent) / ARRAYS_FILE
    try:
        with np.load(file) as arrays:
            influences = {name: arrays[name] for name in names}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, BadZipFile, zlib.error) as error:
        raise Unreadable(f"{file}: cannot be read: {str(error) or type(error).__name__}; measure again") from None
    for name, values in influences.items():
        if values.shape != shape or values.dtype.kind != "f" or not np.isfinite(values).all():
            raise Malformed(f"{file}: {name}: no finite numbers of shape {list(shape)}; measure again")
    return influences
