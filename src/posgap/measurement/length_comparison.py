"""Compares models at several lengths of their prompts: what training at one length costs at others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, write_json
from posgap.foundation.printing import Lines, printable
from posgap.foundation.tables import markdown
from posgap.measurement import statistics
from posgap.measurement.comparison import Comparison, compare_sweeps, with_distinct_labels
from posgap.measurement.evidence import Evidence
from posgap.measurement.lengths import folder_at, read_lengths
from posgap.measurement.report import render_page, save_page
from posgap.measurement.statistics import Points
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions

COMPARED_LENGTHS_FILE, COMPARED_LENGTHS_PAGE = "comparison-lengths.json", "comparison-lengths.html"


class ModelCurve(Record):
    """A model's figures at one length."""

    label: str = Field(description="name of the model in reports")
    accuracy: list[Points] = Field(description="accuracy at each placement, in percent")
    mean: Points = Field(description="mean accuracy over placements")
    gap: Points = Field(description="best minus worst placement")


class AtLength(Record):
    """All models at one length."""

    length: str = Field(description='length of the prompts, like "20 documents" or "1,024 tokens"')
    curves: list[ModelCurve] = Field(description="curve of each model, the reference first")
    comparison: Comparison = Field(description="comparison of the other models with the reference")


class LengthComparison(Record):
    """Models beside each other at several lengths, the shortest first."""

    reference: str = Field(description="label of the reference model")
    lengths: list[AtLength] = Field(min_length=1, description="the curves and comparison at each length")

    @property
    def title(self) -> str:
        """The heading of the page."""
        others = [curve.label for curve in self.lengths[0].curves[1:]]
        return f"{', '.join(others)} against {self.reference}, by length"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Returns the head and a row for each length: every model's accuracy at the first, middle and last placement,
        its gap and mean, and how its mean differs from the reference's."""
        labels = [curve.label for curve in self.lengths[0].curves]
        head = ["length", *(f"{label}: first, middle, last (gap; mean)" for label in labels)]
        head += [f"{label}: change of mean" for label in labels[1:]]
        rows = []
        for at in self.lengths:
            cells = [at.length]
            for curve in at.curves:
                shown = [curve.accuracy[place] for place in (0, len(curve.accuracy) // 2, -1)]
                by_place = ", ".join(f"{accuracy:.0f}" for accuracy in shown)
                cells.append(f"{by_place} ({curve.gap:.0f}; {curve.mean:.0f})")
            for difference in at.comparison.differences:
                cells.append(f"{difference.mean:+.1f} ({statistics.ends(difference.mean_ci95, '+.1f')})")
            rows.append(cells)
        return head, rows

    def losses(self) -> list[str]:
        """Returns sentences on the lengths at which a model is certainly worse, in the mean or at a placement."""
        sentences = []
        for at in self.lengths:
            for difference in at.comparison.differences:
                where = ["in the mean"] if difference.mean_ci95[1] < 0 else []
                where += [f"at position {format_positions(placement)}" for placement in difference.worse]
                if where:
                    worse = f"{difference.label} is worse than {self.reference} for certain"
                    sentences.append(f"At {at.length} {worse} {', '.join(where)}.")
        return sentences


def compare_lengths(by_length: Mapping[str, Sequence[Evidence]], allow: Sequence[str] = ()) -> LengthComparison:
    """Compares at each length, by its name, every model's sweep with the first model's. Raises `PosgapError` if they
    did not ask alike."""
    lengths = []
    for name, evidence in by_length.items():
        curves = [
            ModelCurve(label=swept.label, accuracy=swept.accuracy, mean=swept.mean, gap=swept.gap)
            for swept in (each.sweep for each in evidence)
        ]
        lengths.append(AtLength(length=name, curves=curves, comparison=compare_sweeps(evidence, allow)))
    return LengthComparison(reference=lengths[0].comparison.reference, lengths=lengths)


def read_swept_lengths(folders: Sequence[Path]) -> dict[str, list[Evidence]]:
    """Reads the sweeps in folders of several lengths, one of each folder for every length that all of them have.

    Raises `PosgapError` if they have none in common.
    """
    maps = [read_lengths(folder) for folder in folders]
    by_length = {}
    for length in maps[0].lengths:
        if all(length in each.lengths for each in maps):
            tokens = [each.tokens[each.lengths.index(length)] for each in maps]
            evidence = [Evidence(folder_at(folder, at)) for folder, at in zip(folders, tokens)]
            by_length[f"{tokens[0]:,} tokens"] = with_distinct_labels(evidence)
    if not by_length:
        raise PosgapError(f"{folders[0]}: shares no length with {folders[1]}; sweep both at the same --lengths")
    return by_length


def write_length_comparison(comparison: LengthComparison, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `comparison-lengths.json` and its page; `sweeps` holds each length's sweeps."""
    write_json(out / COMPARED_LENGTHS_FILE, comparison.model_dump(mode="json"))
    head, rows = comparison.table()
    shown = {"title": comparison.title, "head": head, "rows": rows, "losses": comparison.losses()}
    page = render_page("posgap.measurement", "compared_lengths.html.j2", sweeps, None, lengths=comparison, **shown)
    save_page(page, out / COMPARED_LENGTHS_PAGE)


def table_text(comparison: LengthComparison) -> Lines:
    """Returns the table in Markdown, and what is certainly worse."""
    head, rows = comparison.table()
    return Lines("\n".join([markdown(head, rows), *map(printable, comparison.losses())]))
