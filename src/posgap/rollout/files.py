"""The files of the rollout verbs: `prediction.json`, and `measurement.json` with its arrays beside it."""

from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.errors import PosgapError, first_fault
from posgap.files import atomic, read_json

PREDICTION_FILE, MEASUREMENT_FILE, ARRAYS_FILE = "prediction.json", "measurement.json", "arrays.npz"
M = TypeVar("M", bound=BaseModel)


class Prediction(BaseModel):
    """A predicted rollout: `distribution` [N] and, for lambda = 1 at every layer, `without_residuals` [N]."""

    model_config = ConfigDict(frozen=True)

    label: str
    sequence_length: int
    layers: int
    heads: int
    lambdas: list[float]
    distribution: list[float]
    without_residuals: list[float]
    description: dict
    reading: str
    settings: dict


class Measurement(BaseModel):
    """A model's attention and influence, measured over texts of equal length.

    `lambdas` [L] are by layer; `content`, `first_mass`, `diagonal_mass`, `entropy` (nats) and `first_sink`, [L, H]
    each, by layer and head. `encoding` is the model's position encoding as `predict` takes it. `influence` holds, for
    each measure, a distribution over positions [N] averaged over texts. The distributions of single texts, the
    attention by distance and the sink metric of every position are in the arrays beside it.
    """

    model_config = ConfigDict(frozen=True)

    label: str
    model: str
    n_texts: int
    sequence_length: int
    layers: int
    heads: int
    encoding: dict
    lambdas: list[float]
    content: list[list[float]]
    first_mass: list[list[float]]
    diagonal_mass: list[list[float]]
    entropy: list[list[float]]
    first_sink: list[list[float]]
    influence: dict[str, list[float]]
    descriptions: dict[str, dict]
    reading: str
    settings: dict


def read_measurement(path: Path) -> Measurement:
    """Reads a folder that `rollout measure` wrote, or its `measurement.json`."""
    return _read(Measurement, path, MEASUREMENT_FILE)


def read_prediction(path: Path) -> Prediction:
    """Reads a folder that `rollout predict` wrote, or its `prediction.json`."""
    return _read(Prediction, path, PREDICTION_FILE)


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes named arrays as `arrays.npz`."""
    with atomic(folder / ARRAYS_FILE) as partial:
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]  # mypy: a name could be `allow_pickle`


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Reads the arrays beside a measurement, by name."""
    try:
        with np.load(folder / ARRAYS_FILE) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise PosgapError(f"{folder / ARRAYS_FILE}: cannot be read: {error}") from None


def _read(model: type[M], path: Path, name: str) -> M:
    file = path / name if path.is_dir() else path
    try:
        return model.model_validate(read_json(file))
    except ValidationError as error:
        raise PosgapError(f"{file}: {first_fault(error)}") from None
