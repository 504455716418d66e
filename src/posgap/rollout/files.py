"""The files of the rollout verbs: `prediction.json`, and `measurement.json` with its arrays beside it."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Required, Self
from zipfile import BadZipFile

import numpy as np
from pydantic import ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, atomic, read_model
from posgap.measurement.sweeps import read_sweep
from posgap.rollout.agreement import Agreement
from posgap.tasks.prompts import PromptBuilder

SINK_THRESHOLD = 0.2  # attention above which a token counts as a sink (tau)
BINS = 100  # stretches of a prompt, where prompts differ in length
PREDICTION_FILE, MEASUREMENT_FILE, ARRAYS_FILE = "prediction.json", "measurement.json", "arrays.npz"


# Of a whole, give or take its rounding: what is far from one would overflow where it is drawn and described.
Share = Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)]


class Prediction(Record):
    """A predicted rollout: `distribution` [N] and, for lambda = 1 at every layer, `without_residuals` [N]."""

    label: str
    sequence_length: int = Field(ge=1)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    lambdas: list[float]
    distribution: list[Share]
    without_residuals: list[Share]
    description: dict
    summary: str
    settings: dict

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        _require_lengths(self, {"lambdas": self.layers, "distribution": self.sequence_length})
        return self


@with_config(ConfigDict(allow_inf_nan=False, extra="allow"))
class Encoding(TypedDict, total=False):
    """A model's position encoding: its kind, and ALiBi's slope of each head, or RoPE's base, head size and factors.

    `frequencies` [L] are the angles per token by which each layer was seen to turn the planes of its queries and keys,
    greatest first, whatever base, factors or scaling they come from: empty where a layer turns nothing, None where the
    model does not hand them to its layers.
    """

    kind: Required[str]
    slopes: list[float]
    theta: Annotated[float, Field(gt=0)]
    head_size: Annotated[int, Field(ge=2)]
    factors: list[float] | list[list[float]]
    frequencies: list[list[float] | None]


class Accuracy(Record):
    """Of a sweep of the measured model: accuracy in percent at each gold position that was measured, and its gap."""

    label: str
    gap: float
    n_docs: int
    metric: str
    positions: list[int]
    accuracy: list[float]

    @classmethod
    def of_sweep(cls, path: Path, build: PromptBuilder | None, n_docs: int) -> Self:
        """Reads it from a sweep folder. Raises `PosgapError` where that did not ask the prompts of `build`."""
        if not build:
            raise PosgapError("sweep: asked prompts: give the `task` and examples that it asked")
        sweep = read_sweep(path)
        sweep.require_model_alone(path, "give a sweep without one, whose positions are those that the model reads")
        if sweep.categories:
            raise PosgapError(
                f"{path}: a sweep of pairs has no curve over positions; give one of a task with one gold document"
            )
        if (sweep.task, sweep.n_docs) != (build.task.name, n_docs):
            raise PosgapError(
                f"{path}: asked {sweep.n_docs} documents of the task {sweep.task}, and not {n_docs} of "
                f"{build.task.name}; measure what was swept"
            )
        if sweep.prompt_digest != build.digest():
            raise PosgapError(
                f"{path}: asked other prompts than are measured (another order, system message, template or "
                "tokenizer); sweep the model by the task's own prompts"
            )
        return cls(**{name: getattr(sweep, name) for name in cls.model_fields})


class Measurement(Record):
    """A model's attention and influence, measured over texts of at most `sequence_length` tokens, the `shortest` of
    which has fewer where they are prompts.

    `lambdas` [L] are by layer; `content`, `first_mass`, `diagonal_mass`, `entropy` (nats) and `first_sink`, [L, H]
    each, by layer and head. `encoding` is the model's position encoding as `predict` takes it. `windows` [L] are the
    numbers of tokens, itself included, that a token sees (None: no window that ends with it). `attention_layers` [L]
    are the layers' numbers, counted from 1; a hybrid has others between them, of which nothing is measured.
    `unattended` is the share of each rollout that went to the logits of sinks beside the tokens, empty without such.
    `influence` holds, for each measure, a distribution averaged over texts: over tokens, or over `BINS` stretches of
    the prompt where prompts differ in length; `agreement` says how alike every two of them order what a text has
    (`agreement.agreement`). The distributions of single texts, the attention by distance and the sink metric of every
    position are in the arrays beside it.
    """

    label: str
    model: str
    n_texts: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    shortest: int = Field(ge=1)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    encoding: Encoding
    lambdas: list[float]
    content: list[list[float]]
    first_mass: list[list[float]]
    diagonal_mass: list[list[float]]
    entropy: list[list[float]]
    first_sink: list[list[float]]
    influence: dict[str, list[Share]]
    windows: list[int | None] = Field(default_factory=list)  # those written before it was measured lack it
    unattended: dict[str, Share] = Field(default_factory=dict)
    attention_layers: list[int] = Field(default_factory=list)
    agreement: Agreement | None = None
    documents: dict | None = None  # see documents.summary; None where texts are no prompts with documents
    sweep: Accuracy | None = None  # where a sweep was given
    summary: str
    settings: dict

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        per_head = ("content", "first_mass", "diagonal_mass", "entropy", "first_sink")
        _require_lengths(self, dict.fromkeys(("lambdas", *per_head), self.layers))
        if any(len(row) != self.heads for name in per_head for row in getattr(self, name)):
            raise ValueError(f"{', '.join(per_head)}: not all have {self.heads} heads in each layer")
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


def _require_lengths(record: Record, lengths: dict[str, int]) -> None:
    for name, length in lengths.items():
        if (number := len(getattr(record, name))) != length:
            raise ValueError(f"{name}: {number} numbers, not {length}")


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
    names = {f"documents_{name}": name for name in measured.documents["measures"]}
    return {names[name]: values for name, values in _read_arrays(path, names, shape).items()}


def read_document_edges(path: Path, measured: Measurement) -> np.ndarray:
    """Where each prompt's documents begin and end, `[E, 2 n]`, as shares of the prompt's length."""
    assert measured.documents is not None
    shape = (measured.n_texts, 2 * int(measured.documents["n_docs"]))
    return _read_arrays(path, ["edges"], shape)["edges"]


def _read_arrays(path: Path, names: Iterable[str], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    file = (path if path.is_dir() else path.parent) / ARRAYS_FILE
    try:
        with np.load(file) as arrays:
            influences = {name: arrays[name] for name in names}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, BadZipFile, zlib.error) as error:
        raise PosgapError(f"{file}: cannot be read: {str(error) or type(error).__name__}; measure again") from None
    for name, values in influences.items():
        if values.shape != shape or values.dtype.kind != "f" or not np.isfinite(values).all():
            raise PosgapError(f"{file}: {name}: no finite numbers of shape {list(shape)}; measure again")
    return influences
