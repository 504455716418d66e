"""Sweeps of several models over the same examples, and how each differs from the first."""

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from posgap.foundation.files import Record, read_model
from posgap.measurement import statistics
from posgap.measurement.comparability import align_comparable
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions

COMPARISON_FILE = "comparison.json"


class Difference(Record):
    """A model minus the reference, in points."""

    label: str = Field(description="name of the model in reports")
    accuracy: list[float] = Field(description="difference in accuracy at each placement, in points")
    ci95: list[tuple[float, float]] = Field(description="95 % interval of each difference, paired (Tango)")
    mean: float = Field(description="difference in mean accuracy, in points")
    mean_ci95: tuple[float, float] = Field(description="95 % interval of the difference in mean accuracy")
    gap: float = Field(description="difference of the gaps, estimated from halves of the examples")
    gap_ci95: tuple[float, float] = Field(description="95 % interval of the difference of the gaps")
    better: list[list[int]] = Field(
        description="placements that are certainly better, over all placements together (Bonferroni)"
    )
    worse: list[list[int]] = Field(description="placements that are certainly worse")
    asked_otherwise: list[str] = Field(description="settings that differ, and were allowed to")
    verdict: str = Field(description="the result in words")


class Comparison(Record):
    """Every model against the reference, over the same examples at the same placements."""

    reference: str = Field(description="label of the reference sweep")
    metric: str = Field(description="metric that scored the answers")
    n_examples: int = Field(description="number of examples")
    n_docs: int = Field(description="documents in a prompt")
    placements: list[list[int]] = Field(description="placements of the sweeps")
    differences: list[Difference] = Field(description="one difference for each other sweep")

    @property
    def title(self) -> str:
        """The heading of the comparison's page."""
        return f"{', '.join(model.label for model in self.differences)} against {self.reference}"

    @property
    def placement_names(self) -> list[str]:
        """Each placement as text: "7", or "3+7"."""
        return [format_positions(placement) for placement in self.placements]


def read_comparison(path: Path) -> Comparison:
    """Reads a comparison from the folder `compare` wrote, or from its `comparison.json`."""
    return read_model(Comparison, path, COMPARISON_FILE)


def with_distinct_labels(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Returns the evidence; if several sweeps share a label, the name of each one's folder is added to it."""
    often = Counter(each.sweep.label for each in evidence)
    distinct = []
    for each in map(copy.copy, evidence):
        if often[each.sweep.label] > 1:
            each.sweep = each.sweep.model_copy(update={"label": f"{each.sweep.label} ({each.path.name})"})
        distinct.append(each)
    return distinct


def compare_sweeps(evidence: Sequence[Evidence], allow: Sequence[str] = (), together: bool = False) -> Comparison:
    """Compares every sweep with the first; `PosgapError` if their settings differ by more than is allowed.

    Intervals hold for one model with 95 %; `together` for all of them at once (Bonferroni).
    """
    reference, *others = evidence
    models = len(others) if together else 1
    differences = []
    for other in others:
        paired, otherwise = align_comparable(other, reference, allow)
        differences.append(_difference(paired, reference, otherwise, models))
    known = reference.sweep
    return Comparison(
        **known.model_dump(include={"metric", "n_examples", "n_docs", "placements"}),
        reference=known.label,
        differences=differences,
    )


def _difference(candidate: Evidence, reference: Evidence, asked_otherwise: list[str], models: int) -> Difference:
    new = candidate.correct
    old = reference.correct
    placements = reference.sweep.placements
    error = statistics.EACH_END / models
    mean, mean_ci95 = statistics.paired_difference(new, old, error)
    gap, gap_ci95 = statistics.gap_difference(new, old, error)
    better = []
    worse = []
    for placement, (low, high) in zip(placements, statistics.placement_differences(new, old, len(placements) * models)):
        if low > 0:
            better.append(placement)
        elif high < 0:
            worse.append(placement)
    figures = {
        "label": candidate.sweep.label,
        "accuracy": (statistics.accuracy(new) - statistics.accuracy(old)).tolist(),
        "ci95": statistics.placement_differences(new, old, models).tolist(),
        "mean": mean,
        "mean_ci95": mean_ci95,
        "gap": gap,
        "gap_ci95": gap_ci95,
        "better": better,
        "worse": worse,
        "asked_otherwise": asked_otherwise,
    }
    notes = [_word_mitigations(candidate.sweep, reference.sweep)]
    for each in (candidate, reference):
        unanswered = each.outcomes.unanswered_text(placements)
        notes.append(unanswered and f"{each.sweep.label}: {unanswered}")
    verdict = _word_verdict(figures, reference.sweep.label, placements)
    return Difference(**figures, verdict=" ".join(filter(None, [verdict, *notes])))


def _word_mitigations(candidate: Sweep, reference: Sweep) -> str:
    """Returns the mitigations that each sweep was asked with, in words; empty if there were none, or the same ones."""
    if candidate.mitigation == reference.mitigation:
        return ""
    asked = []
    for each in sorted([candidate, reference], key=lambda each: not each.mitigation):
        how = f"by the mitigation {each.mitigation.phrase}" if each.mitigation else "without any"
        asked.append(f"{each.label} was asked {how}")
    return f"{', '.join(asked)}."


def _word_verdict(figures: dict, reference: str, placements: list[list[int]]) -> str:
    """Returns the verdict of the intervals, in words."""
    label = figures["label"]
    apart = bool(figures["better"] or figures["worse"])
    # A difference at a placement can be told from the reference, whatever the means say.
    unsure = f"{label} may be as good as {reference}" if apart else f"{label} cannot be told from {reference}"
    means = _direction(figures["mean_ci95"], ("is better than", "is worse than"))
    gaps = _direction(figures["gap_ci95"], ("its gap is larger", "its gap is smaller"))
    clauses = [
        f"{f'{label} {means} {reference}' if means else unsure} in the mean "
        f"({_format_signed(figures['mean'], figures['mean_ci95'])})",
        f"{gaps or 'its gap may be as large'} ({_format_signed(figures['gap'], figures['gap_ci95'])})",
    ]
    for word in ("better", "worse"):
        if figures[word]:
            clauses.append(f"it is {word} at {_where(figures[word], placements)}")
    if not apart:
        clauses.append("no single placement differs for certain")
    if figures["asked_otherwise"]:
        clauses.append(f"what was asked differs in {' and '.join(figures['asked_otherwise'])}")
    return "; ".join(clauses) + "."


def _where(places: list[list[int]], placements: list[list[int]]) -> str:
    """Returns these placements in few words: runs as "4 to 17", or the ones left out if they are fewer."""
    rest = [placement for placement in placements if placement not in places]
    if not rest:
        return "every placement"
    if len(places[0]) > 1:
        few = rest if len(rest) < len(places) / 2 else places
        return ("every placement but " if few is rest else "") + ", ".join(map(format_positions, few))
    runs: list[list[int]] = []
    for at in (placements.index(placement) for placement in places):
        runs = [*runs[:-1], [*runs[-1], at]] if runs and runs[-1][-1] == at - 1 else [*runs, [at]]
    names = [format_positions(placement) for placement in placements]
    phrases = []
    for run in runs:
        phrases += [f"{names[run[0]]} to {names[run[-1]]}"] if len(run) > 2 else [names[at] for at in run]
    return ", ".join(phrases)


def _direction(interval: Sequence[float], words: tuple[str, str]) -> str:
    """Returns the first word if the interval lies above 0, the second if it lies below, else ""."""
    low, high = interval
    return words[0] if low > 0 else words[1] if high < 0 else ""


def _format_signed(estimate: float, interval: Sequence[float]) -> str:
    return f"{estimate:+.1f} points, {statistics.ends(interval, '+.1f')}"
