"""The sweep file: `sweep.json` with `predictions.jsonl` beside it."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.errors import PosgapError, first_fault
from posgap.files import read_json, read_jsonl
from posgap.measurement import statistics
from posgap.measurement.shape import Shape, shape_of
from posgap.positions import format_positions
from posgap.tasks.placements import CATEGORIES, category

SWEEP_FILE, PREDICTIONS_FILE = "sweep.json", "predictions.jsonl"


class Worst(BaseModel):
    """The placement with the lowest accuracy."""

    placement: list[int]
    accuracy: float


class Flatness(BaseModel):
    """Cochran's Q test of whether accuracy is the same at every placement: a small `p` says it is not."""

    q: float
    df: int
    p: float

    @property
    def refuted(self) -> bool:
        """Whether position matters, at the 5 % level."""
        return self.p < statistics.LEVEL


class CategoryFigures(BaseModel):
    """Mean accuracy over the placements of a category of pairs, and the gap among them, in points."""

    accuracy: float
    ci95: tuple[float, float]
    gap: float


class Sweep(BaseModel):
    """What was asked of a model, and its accuracy in points at every placement.

    `categories` (of each placement) and `by_category` are empty where there is one gold document; `shape` is
    None where there are two, or fewer than three positions.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    model: str
    label: str
    scaling: dict | None
    metric: str
    n_docs: int
    n_examples: int
    placements: list[list[int]]
    accuracy: list[float]
    ci95: list[tuple[float, float]]
    mean: float
    mean_ci95: tuple[float, float]
    gap: float
    gap_ci95: tuple[float, float]
    gap_noise: float
    flatness: Flatness
    shape: Shape | None = None
    worst: Worst
    categories: list[str] = []
    by_category: dict[str, CategoryFigures] = {}
    examples_digest: str
    model_digest: str
    prompt_digest: str
    settings: dict

    @property
    def positions(self) -> list[int]:
        """The gold document's position of each single placement."""
        return [placement[0] for placement in self.placements]

    @property
    def names(self) -> list[str]:
        """Each placement as text: "7", or "3+7"."""
        return [format_positions(placement) for placement in self.placements]

    @property
    def advantageous(self) -> list[int]:
        """The placement with the highest accuracy; the first of equals."""
        return self.placements[int(np.argmax(self.accuracy))]


def summarize(correct: np.ndarray, placements: list[list[int]], seed: int) -> dict:
    """The statistics of a sweep from `correct [E, P]`, under the field names of `Sweep`."""
    accuracy = statistics.accuracy(correct)
    worst = int(np.argmin(accuracy))
    flatness = Flatness(**dict(zip(("q", "df", "p"), statistics.cochran_q(correct))))
    of_pairs = any(len(placement) > 1 for placement in placements)
    return {
        "n_examples": len(correct),
        "placements": placements,
        "accuracy": accuracy.tolist(),
        "ci95": statistics.mean_interval(correct).tolist(),
        "mean": float(accuracy.mean()),
        "mean_ci95": statistics.mean_interval(correct.mean(axis=1)).tolist(),
        "gap": float(statistics.gap(accuracy)),
        "gap_ci95": statistics.gap_interval(correct),
        "gap_noise": statistics.gap_noise(correct, np.random.default_rng(seed)),
        "flatness": flatness,
        "worst": {"placement": placements[worst], "accuracy": float(accuracy[worst])},
        **(
            _of_categories(correct, placements)
            if of_pairs
            else {"shape": shape_of(correct, [position for (position,) in placements], uneven=flatness.refuted)}
        ),
    }


def _of_categories(correct: np.ndarray, placements: list[list[int]]) -> dict:
    """Categories of pairs from `correct [E, P]`, those there are in order."""
    categories = [category(placement) for placement in placements]
    figures = {}
    for name in (c for c in CATEGORIES if c in categories):
        within = correct[:, [i for i, found in enumerate(categories) if found == name]]
        accuracy = statistics.accuracy(within)
        figures[name] = {
            "accuracy": float(accuracy.mean()),
            "ci95": statistics.mean_interval(within.mean(axis=1)).tolist(),
            "gap": float(statistics.gap(accuracy)),
        }
    return {"categories": categories, "by_category": figures}


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep from the folder the stage wrote, or from its `sweep.json`."""
    file = path / SWEEP_FILE if path.is_dir() else path
    try:
        return Sweep.model_validate(read_json(file))
    except ValidationError as error:
        raise PosgapError(f"{file}: {first_fault(error)}") from None


def read_correct(path: Path) -> tuple[list[str], np.ndarray]:
    """Example ids [E] and scores `correct [E, P]` of a sweep's predictions, columns as in `placements`."""
    folder = path if path.is_dir() else path.parent
    sweep, file = read_sweep(path), folder / PREDICTIONS_FILE
    column = {tuple(p): i for i, p in enumerate(sweep.placements)}
    rows: dict[str, list[float | None]] = {}
    for number, row in read_jsonl(file):
        try:
            rows.setdefault(row["id"], [None] * len(column))[column[tuple(row["placement"])]] = row["correct"]
        except (KeyError, TypeError) as error:
            raise PosgapError(f"{file}:{number}: no prediction of this sweep: {error}") from None
    if any(None in outcomes for outcomes in rows.values()) or len(rows) != sweep.n_examples:
        raise PosgapError(f"{file}: predictions are missing; sweep again with --force")
    return list(rows), np.array(list(rows.values()), dtype=float)


class Evidence:
    """A sweep with its scores `correct [E, P]`."""

    def __init__(self, path: Path):
        self.path = path
        self.sweep: Sweep = read_sweep(path)
        self.ids, self.correct = read_correct(path)

    def require_same_questions(self, other: "Evidence") -> None:
        """Paired comparisons need the same examples at the same placements, asked alike."""
        for what, mine, theirs in (
            ("examples", self.ids, other.ids),
            ("example files", self.sweep.examples_digest, other.sweep.examples_digest),
            ("placements", self.sweep.placements, other.sweep.placements),
            ("numbers of documents", self.sweep.n_docs, other.sweep.n_docs),
            ("metrics", self.sweep.metric, other.sweep.metric),
        ):
            if mine != theirs:
                raise PosgapError(
                    f"{self.path} and {other.path}: sweeps of different {what} cannot be compared; "
                    "sweep both models on the same examples"
                )
