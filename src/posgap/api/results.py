"""The results of `posgap.sweep` and `posgap.load`: a sweep to look at, to compare and to keep."""

import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from posgap.foundation.errors import BadOutput
from posgap.foundation.extras import import_extra
from posgap.measurement import length_pages
from posgap.measurement.comparison import Comparison, compare_sweeps, with_distinct_labels
from posgap.measurement.evidence import Evidence
from posgap.measurement.lengths import EffectiveLength, effective_length, folder_at, length_map, read_lengths
from posgap.measurement.page_examples import SweepToShow, example_texts, pack_examples, read_texts
from posgap.measurement.plots import picture_of, placement_differences
from posgap.measurement.predictions import Prediction, outcome_of, read_predictions, swept_rows
from posgap.measurement.report import page, save_page
from posgap.measurement.summary import summary_text
from posgap.measurement.sweep_folder import write_evidence, write_sweep
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.storage.lineage import training_examples
from posgap.tasks.positions import format_positions

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from posgap.tasks.examples import AnyExample


class Estimate(NamedTuple):
    """A figure in points with its 95 % interval, as text like "38.5 (31.0 to 46.2)"."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"

    def __float__(self) -> float:
        return self.value


class SweepResult:
    """A sweep: accuracy with the gold documents at each placement, and every response.

    `figures` is all that `sweep.json` says of it, `predictions` are the rows of `predictions.jsonl`.
    """

    def __init__(
        self,
        figures: Sweep,
        predictions: Sequence[Prediction],
        learnt: Sequence[str] = (),
        examples: "Sequence[AnyExample]" = (),
        folder: Path | None = None,
    ):
        self.figures = figures
        self.predictions = list(predictions)
        self._learnt = sorted(learnt)
        self._examples = examples
        self._folder = folder

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The sweep of a folder that `posgap sweep` or `merge`, or `save`, wrote.

        Raises `PosgapError` if it holds none.
        """
        folder = Path(folder)
        return cls(read_sweep(folder), read_predictions(folder), sorted(training_examples(folder)), folder=folder)

    @property
    def gap(self) -> Estimate:
        """Accuracy at the best placement minus that at the worst, in points."""
        return Estimate(self.figures.gap, *self.figures.gap_ci95)

    @property
    def mean(self) -> Estimate:
        """Mean accuracy over the placements, in percent."""
        return Estimate(self.figures.mean, *self.figures.mean_ci95)

    @property
    def curve(self) -> "pandas.DataFrame":
        """A row a placement: `placement` as text ("7", or "3+7"), `accuracy` in percent, and the `low` and `high` ends
        of its 95 % interval."""
        pd = import_extra("pandas")
        low, high = zip(*self.figures.ci95)
        return pd.DataFrame(
            {"placement": self.figures.placement_names, "accuracy": self.figures.accuracy, "low": low, "high": high}
        )

    @cached_property
    def frame(self) -> "pandas.DataFrame":
        """Returns a row for each response: `id` of the example, `placement` as text, `sample`, `response`, `correct`
        from 0 to 1, `outcome` ("answered", or why not), `cut`, `echo`, `others`, `thoughts` and `reason`, as in
        docs/formats.md; and `position`, if there is one gold document."""
        pd = import_extra("pandas")
        swept = swept_rows(self.predictions)
        rows = [
            {
                "id": row["id"],
                "placement": format_positions(row["placement"]),
                "sample": row.get("sample", 0),
                "response": row["response"],
                "correct": float(row["correct"]),
                "outcome": outcome_of(row),
                "cut": row.get("cut", False),
                "echo": row.get("echo"),
                "others": row.get("others", ""),
                "thoughts": row.get("thoughts", ""),
                "reason": row.get("reason", ""),
            }
            for row in swept
        ]
        frame = pd.DataFrame(rows)
        if not self.figures.categories:
            frame.insert(2, "position", [row["placement"][0] for row in swept])
        return frame

    def plot(self) -> "Figure":
        """The curve with its intervals, as matplotlib's figure: a notebook shows it, `savefig` writes it."""
        return _closed(picture_of([self.figures]))

    def report(self, path: str | Path) -> Path:
        """Writes the sweep as one HTML page, which needs nothing beside itself, and returns its path."""
        path = Path(path)
        save_page(page([self.figures], self.figures.title, pack_examples([self._swept()])), path)
        return path

    def compare(self, other: "SweepResult", *, allow: Sequence[str] = ()) -> "ComparisonResult":
        """Compares `other` with this sweep; both must have the same examples and settings.

        `allow` names the settings that may differ, like `["template"]`. Raises `PosgapError` if more is.
        """
        evidence = with_distinct_labels([self._evidence("this"), other._evidence("other")])
        swept = [each._swept()._replace(sweep=own.sweep) for each, own in zip((self, other), evidence)]
        return ComparisonResult(compare_sweeps(evidence, allow), swept)

    def save(self, folder: str | Path) -> Path:
        """Writes the folder that `posgap sweep` writes, which every command reads, and returns its path.

        Raises `PosgapError` if the folder holds anything.
        """
        return _saved(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        write_sweep(self.figures, self.predictions, self._learnt, folder, pack_examples([self._swept()]))

    def write_evidence(self, folder: Path) -> None:
        """Writes what a gate reads of the sweep into a folder that is there."""
        write_evidence(self.figures, self.predictions, self._learnt, folder)

    def _swept(self) -> SweepToShow:
        texts = read_texts(self._folder) if self._folder else example_texts(self._examples)
        return SweepToShow(self.figures, self.predictions, texts)

    def _evidence(self, name: str) -> Evidence:
        return Evidence(Path(name), self.figures, self.predictions)

    def __repr__(self) -> str:
        figures = self.figures
        return (
            f"<SweepResult {figures.label!r}: task {figures.task}, {figures.sample_text} at "
            f"{len(figures.placements)} placements, gap {self.gap}, mean {self.mean}>"
        )

    def __str__(self) -> str:
        return "\n".join(summary_text(self.figures))


class LengthsResult:
    """Sweeps of a model at several lengths: accuracy by length and depth, and how long prompts may get.

    `figures` is all that `lengths.json` says, and `sweeps` are the sweeps by their lengths in tokens.
    """

    def __init__(self, sweeps: "Sequence[SweepResult]", context: int, most_gap: float):
        self._evidence = [each._evidence("this") for each in sweeps]
        self.figures = length_map(self._evidence, context, most_gap)
        self.sweeps = dict(zip(self.figures.tokens, sweeps))

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The map of a folder that `posgap sweep`, or `save`, wrote; raises `PosgapError` if it holds none."""
        folder = Path(folder)
        figures = read_lengths(folder)
        sweeps = [SweepResult.read(folder_at(folder, tokens)) for tokens in figures.tokens]
        return cls(sweeps, figures.context, figures.effective.most_gap)

    @property
    def frame(self) -> "pandas.DataFrame":
        """A row for each `tokens` and `depth`, which is in percent: `accuracy` in percent, and the `low` and `high`
        ends of its 95 % interval."""
        pd = import_extra("pandas")
        figures = self.figures
        rows = []
        for tokens, values, intervals in zip(figures.tokens, figures.accuracy, figures.ci95):
            for depth, accuracy, (low, high) in zip(figures.depths, values, intervals):
                rows.append({"tokens": tokens, "depth": depth, "accuracy": accuracy, "low": low, "high": high})
        return pd.DataFrame(rows)

    def effective(self, most_gap: float | None = None) -> EffectiveLength:
        """Returns the longest length with a gap of at most this many points at it and every shorter length, with its
        bounds; by default the sweep's `most_gap`."""
        most_gap = self.figures.effective.most_gap if most_gap is None else most_gap
        return effective_length(self.figures.tokens, [each.correct for each in self._evidence], most_gap)

    def plot(self) -> "Figure":
        """The heat map, as matplotlib's figure."""
        return _closed(length_pages.picture(self.figures))

    def report(self, path: str | Path) -> Path:
        """Writes the map as one HTML page, which needs nothing beside itself, and returns its path."""
        path = Path(path)
        save_page(length_pages.page(self.figures, [each.sweep for each in self._evidence]), path)
        return path

    def save(self, folder: str | Path) -> Path:
        """Writes the folder that `posgap sweep` writes, which every command reads, and returns its path.

        Raises `PosgapError` if the folder holds anything.
        """

        def write(partial: Path) -> None:
            for tokens, swept in self.sweeps.items():
                place = folder_at(partial, tokens)
                place.mkdir()
                swept._write(place)
            length_pages.write_map(self.figures, [each.sweep for each in self._evidence], partial)

        return _saved(Path(folder), write)

    def __repr__(self) -> str:
        figures = self.figures
        return (
            f"<LengthsResult {figures.label!r}: task {figures.task}, {figures.n_examples} examples at "
            f"{len(figures.tokens)} lengths and {len(figures.depths)} depths>"
        )

    def __str__(self) -> str:
        return "\n".join(self.figures.summary_text())


class ComparisonResult:
    """Differences between two sweeps. `figures` is all that `comparison.json` says of it."""

    def __init__(self, figures: Comparison, swept: Sequence[SweepToShow]):
        self.figures = figures
        self._swept = swept

    @property
    def gap(self) -> Estimate:
        """The other's gap minus the reference's, in points."""
        difference = self.figures.differences[0]
        return Estimate(difference.gap, *difference.gap_ci95)

    @property
    def mean(self) -> Estimate:
        """The other's mean accuracy minus the reference's, in points."""
        difference = self.figures.differences[0]
        return Estimate(difference.mean, *difference.mean_ci95)

    @property
    def verdict(self) -> str:
        """The verdict of the intervals, in words."""
        return self.figures.differences[0].verdict

    @property
    def curve(self) -> "pandas.DataFrame":
        """A row a placement: the `difference` of accuracy in points, and the `low` and `high` ends of its 95 %
        interval."""
        pd = import_extra("pandas")
        difference = self.figures.differences[0]
        low, high = zip(*difference.ci95)
        return pd.DataFrame(
            {"placement": self.figures.placement_names, "difference": difference.accuracy, "low": low, "high": high}
        )

    def plot(self) -> "Figure":
        """The differences with their intervals, as matplotlib's figure."""
        return _closed(placement_differences(self.figures))

    def report(self, path: str | Path) -> Path:
        """Writes both sweeps and their difference as one HTML page, and returns its path."""
        path = Path(path)
        sweeps = [each.sweep for each in self._swept]
        save_page(page(sweeps, self.figures.title, pack_examples(self._swept), self.figures), path)
        return path

    def __repr__(self) -> str:
        return f"<ComparisonResult: {self.verdict}>"

    def __str__(self) -> str:
        return self.verdict


def _saved(folder: Path, write: Callable[[Path], None]) -> Path:
    """The folder, new, with what `write` has written there: whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadOutput(f"{folder}: already exists; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        partial = Path(place) / "sweep"
        partial.mkdir()
        write(partial)
        partial.replace(folder)
    return folder


def _closed(figure: "Figure") -> "Figure":
    """Returns the figure after removing it from pyplot, so that a notebook shows it once."""
    import matplotlib.pyplot as plt

    from posgap.measurement.plots import show_as_text

    plt.close(figure)
    return show_as_text(figure)
