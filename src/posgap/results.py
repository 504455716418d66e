"""What `posgap.sweep` and `posgap.load` return: a sweep to look at, to compare and to keep."""

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from posgap.errors import PosgapError
from posgap.measurement.comparison import Comparison, compare_sweeps, named_apart
from posgap.measurement.plots import picture_of, placement_differences
from posgap.measurement.reading import reading
from posgap.measurement.sweeps import Evidence, Prediction, Sweep, outcome_of, read_predictions, read_sweep
from posgap.positions import format_positions
from posgap.storage.lineage import training_examples

if TYPE_CHECKING:
    import datasets
    import pandas
    from matplotlib.figure import Figure

    from posgap.measurement.explored import Swept
    from posgap.tasks.examples import AnyExample
    from posgap.tasks.prompts import TextPromptBuilder


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
        build: "TextPromptBuilder | None" = None,
        folder: Path | None = None,
    ):
        self.figures, self.predictions = figures, list(predictions)
        self._learnt, self._examples, self._build, self._folder = sorted(learnt), examples, build, folder

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The sweep of a folder that `posgap sweep`, `merge` or `grade`, or `save`, wrote.

        Raises `PosgapError` where it holds none.
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
        import pandas as pd

        low, high = zip(*self.figures.ci95)
        return pd.DataFrame(
            {"placement": self.figures.names, "accuracy": self.figures.accuracy, "low": low, "high": high}
        )

    @cached_property
    def frame(self) -> "pandas.DataFrame":
        """A row a response: `id` of the example, `placement` as text, `sample`, `response`, `correct` from 0 to 1,
        `outcome` ("answered", or why not), `cut`, `thoughts` and `reason`; and `position`, where there is one gold
        document."""
        import pandas as pd

        rows = [
            {
                "id": row["id"],
                "placement": format_positions(row["placement"]),
                "sample": row.get("sample", 0),
                "response": row["response"],
                "correct": float(row["correct"]),
                "outcome": outcome_of(row),
                "cut": row.get("cut", False),
                "thoughts": row.get("thoughts", ""),
                "reason": row.get("reason", ""),
            }
            for row in self.predictions
        ]
        frame = pd.DataFrame(rows)
        if not self.figures.categories:
            frame.insert(2, "position", [row["placement"][0] for row in self.predictions])
        return frame

    def dataset(self) -> "datasets.Dataset":
        """The rows of `frame` as a `datasets` dataset, whose description says the figures: `push_to_hub` and the like.

        Raises `PosgapError` where the package `datasets` is not installed.
        """
        try:
            import datasets
        except ImportError:
            raise PosgapError("a dataset needs the package of that name: pip install datasets") from None
        info = datasets.DatasetInfo(description=str(self))
        return datasets.Dataset.from_pandas(self.frame, info=info, preserve_index=False)

    def plot(self) -> "Figure":
        """The curve with its intervals, as matplotlib's figure: a notebook shows it, `savefig` writes it."""
        return _closed(picture_of([self.figures]))

    def report(self, path: str | Path) -> Path:
        """Writes the sweep as one HTML page, which needs nothing beside itself, and returns its path."""
        from posgap.measurement.explored import explored_together
        from posgap.measurement.report import write_page

        path = Path(path)
        write_page([self.figures], path, self.figures.title, explored_together([self._swept()]))
        return path

    def compare(self, other: "SweepResult", *, allow: Sequence[str] = ()) -> "ComparisonResult":
        """How `other` differs from this sweep, of the same examples asked in the same way.

        `allow` names what may be asked otherwise, like `["template"]`. Raises `PosgapError` where more is.
        """
        evidence = named_apart([self._evidence("this"), other._evidence("other")])
        swept = [each._swept()._replace(evidence=own) for each, own in zip((self, other), evidence)]
        return ComparisonResult(compare_sweeps(evidence, allow), swept)

    def save(self, folder: str | Path) -> Path:
        """Writes the folder that `posgap sweep` writes, which every command reads, and returns its path.

        Raises `PosgapError` where the folder holds anything.
        """
        from posgap.measurement.explored import explored_together
        from posgap.measurement.sweep_folder import write_sweep

        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PosgapError(f"{folder}: is there already, and is not replaced; name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
            partial = Path(place) / "sweep"
            partial.mkdir()
            explored = explored_together([self._swept()])
            write_sweep(self.figures, self.predictions, self._learnt, partial, explored)
            partial.replace(folder)
        return folder

    def write_evidence(self, folder: Path) -> None:
        """Writes what a gate reads of the sweep into a folder that is there."""
        from posgap.measurement.sweep_folder import write_evidence

        write_evidence(self.figures, self.predictions, self._learnt, folder)

    def _swept(self) -> "Swept":
        from posgap.measurement.explored import Swept, read_texts, texts_of

        if self._build:
            texts = texts_of(self.figures, self._examples, self._build)
        else:
            texts = (read_texts(self._folder) if self._folder else {}).get
        return Swept(self._evidence("this"), self.predictions, texts)

    def _evidence(self, name: str) -> Evidence:
        return Evidence(Path(name), self.figures, self.predictions)

    def __repr__(self) -> str:
        figures = self.figures
        return (
            f"<SweepResult {figures.label!r}: task {figures.task}, {figures.n_examples} examples at "
            f"{len(figures.placements)} placements, gap {self.gap}, mean {self.mean}>"
        )

    def __str__(self) -> str:
        return "\n".join(reading(self.figures))


class ComparisonResult:
    """How one sweep differs from another. `figures` is all that `comparison.json` says of it."""

    def __init__(self, figures: Comparison, swept: "Sequence[Swept]"):
        self.figures, self._swept = figures, swept

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
        """What the intervals say, in words."""
        return self.figures.differences[0].verdict

    @property
    def curve(self) -> "pandas.DataFrame":
        """A row a placement: the `difference` of accuracy in points, and the `low` and `high` ends of its 95 %
        interval."""
        import pandas as pd

        difference = self.figures.differences[0]
        low, high = zip(*difference.ci95)
        return pd.DataFrame(
            {"placement": self.figures.names, "difference": difference.accuracy, "low": low, "high": high}
        )

    def plot(self) -> "Figure":
        """The differences with their intervals, as matplotlib's figure."""
        return _closed(placement_differences(self.figures))

    def report(self, path: str | Path) -> Path:
        """Writes both sweeps and their difference as one HTML page, and returns its path."""
        from posgap.measurement.explored import explored_together
        from posgap.measurement.report import write_page

        path = Path(path)
        sweeps = [each.evidence.sweep for each in self._swept]
        write_page(sweeps, path, self.figures.title, explored_together(self._swept), comparison=self.figures)
        return path

    def __repr__(self) -> str:
        return f"<ComparisonResult: {self.verdict}>"

    def __str__(self) -> str:
        return self.verdict


def _closed(figure: "Figure") -> "Figure":
    """The figure, of which pyplot no longer knows, so that a notebook shows it once."""
    import matplotlib.pyplot as plt

    plt.close(figure)
    return figure
