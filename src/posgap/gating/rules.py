"""The gate's rules: what a sweep must show before its model enters the registry.

Each rule is a claim of which the candidate has to convince us. It passes where the one-sided 95 % bound that speaks
against the candidate still fulfils the claim, and fails where the other bound breaks it. Between them the evidence
allows both. As all claims must hold, a model that breaks one is admitted in at most 5 %. Why each rule is what it is
stands in docs/statistics.md. Where several verdicts share the error, each has a part of the 5 %.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, computed_field

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import RARE
from posgap.foundation.files import Record
from posgap.foundation.registry import Parameters, Registry
from posgap.tasks.positions import format_positions

if TYPE_CHECKING:
    import numpy as np

    from posgap.measurement.simulated_sweeps import SimulatedSweeps
    from posgap.measurement.sweeps import Evidence
from posgap.measurement.max_unanswered import NOTABLE, MaxUnanswered


class Ruling(Record):
    """What a rule found on its claim that a figure is `at most` or `at least` so much."""

    name: str = Field(description="of the rule")
    meaning: str = Field(description="what the figure is")
    claim: Literal["at most", "at least"] = Field(description="at most or at least")
    threshold: float = Field(description="in points")
    estimate: float = Field(description="the figure")
    interval: tuple[float, float] = Field(
        description="its one-sided bounds, of 95 % where the verdict has all of the error"
    )
    needs: int | None = Field(
        None, description="of an unsure rule: examples with which a flat model would pass in 80 %"
    )

    @property
    def is_counted(self) -> bool:
        """Whether the figure is a fact of this sweep, and not an estimate of what other examples would give."""
        return self.interval[0] == self.interval[1]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def value(self) -> float:
        """The bound that decides whether the rule passes: the one that speaks against the candidate."""
        return self.interval[1] if self.claim == "at most" else self.interval[0]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcome(self) -> Literal["pass", "fail", "unsure"]:
        """Whether the claim holds for certain, is broken for certain, or neither."""
        low, high = self.interval
        if self.claim == "at most":
            return "pass" if high <= self.threshold else "fail" if low > self.threshold else "unsure"
        return "pass" if low >= self.threshold else "fail" if high < self.threshold else "unsure"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether the claim holds for certain."""
        return self.outcome == "pass"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """The claim in words."""
        return f"{self.meaning}: {self.claim} {self.threshold:g} for certain"


@dataclass(frozen=True)
class GateInputs:
    """The sweeps a gate looks at. Where there is no champion, the base stands in for it; a check has neither.

    `anchor` is the best champion that there has been, where that is not the champion of today. Rules take every figure
    from the scores, and none that a file says of them. `share` is the part of the error of 5 %
    that this verdict may spend, where it is one of several (`verdict.share_of_error`).
    """

    candidate: "Evidence"
    base: "Evidence | None" = None
    champion: "Evidence | None" = None
    anchor: "Evidence | None" = None
    share: float = 1.0

    @property
    def error(self) -> float:
        """The chance with which each bound of this verdict may be wrong."""
        from posgap.measurement import statistics

        return statistics.LEVEL * self.share

    @property
    def best(self) -> "Evidence":
        """The champion, else the base; raises `PosgapError` where there is neither."""
        reference = self.champion or self.base
        if reference is None:
            raise PosgapError("a rule compares with a base, and a check has none: its GateRule needs a reference")
        return reference

    @property
    def reference(self) -> str:
        """What the candidate is compared with, in a word."""
        return "champion" if self.champion else "base"


def always(parameters: Parameters) -> bool:
    """A rule that every gate asks for."""
    return True


@dataclass(frozen=True)
class GateRule:
    """A rule of the gate.

    `judge(parameters, case)` gives its ruling. `passes(parameters, drawn)` says which of R simulated sweeps pass [R],
    just as `judge` would; None where what is simulated does not decide it. `asked(parameters)` is false where the
    threshold asks for nothing, so that the rule is left out. `posgap check`, which has neither base nor champion,
    applies the rules for which `needs_reference` is false: they look at `case.candidate` alone. `help` says what the
    rule asks, as a whole clause, and `broken` what is the matter where it is broken.
    """

    name: str
    help: str
    judge: "Callable[[Any, GateInputs], Ruling]"
    parameters: type[Parameters] = Parameters
    passes: "Callable[[Any, SimulatedSweeps], np.ndarray] | None" = None
    asked: Callable[[Any], bool] = always
    needs_reference: bool = True
    broken: str = ""


def _answered(parameters: MaxUnanswered, case: GateInputs) -> Ruling:
    """What was not answered is known of every prompt of the sweep, and nothing about it is estimated."""
    share = case.candidate.outcomes.worst_share
    return Ruling(
        name="answered",
        meaning="prompts without an answer, in percent, at the worst position",
        claim="at most",
        threshold=parameters.max_unanswered,
        estimate=share,
        interval=(share, share),
    )


class MaxGap(Parameters):
    max_gap: float = Field(
        10.0, ge=0, le=100, description="largest gap in points that the interval of the gap may reach"
    )


def _gap(parameters: MaxGap, case: GateInputs) -> Ruling:
    from posgap.measurement import statistics

    correct = case.candidate.correct
    return Ruling(
        name="gap",
        meaning="gap, best minus worst position",
        claim="at most",
        threshold=parameters.max_gap,
        estimate=statistics.gap(statistics.accuracy(correct)),
        interval=statistics.gap_interval(correct, case.error),
    )


def _gap_passes(parameters: MaxGap, drawn: "SimulatedSweeps") -> "np.ndarray":
    from posgap.measurement import statistics

    return statistics.gap_ends_by(drawn.candidate, parameters.max_gap / 100, drawn.error)


class MeanTolerance(Parameters):
    mean_tolerance: float = Field(
        2.0,
        gt=-100,
        description="points of mean the candidate may lose to the champion, or to the base; below 0: that it must gain",
    )


def _mean(parameters: MeanTolerance, case: GateInputs) -> Ruling:
    against = {case.reference: case.best} | ({"best champion so far": case.anchor} if case.anchor else {})
    rulings = [
        _lost(
            "mean",
            f"mean against the {name}",
            (case.candidate.correct - reference.correct).mean(axis=-1),
            parameters.mean_tolerance,
            case.error,
        )
        for name, reference in against.items()
    ]
    # Both must hold, so the worse one decides; beside a champion alone each successor could lose the tolerance anew.
    return min(rulings, key=lambda ruling: ruling.interval[0])


def _mean_passes(parameters: MeanTolerance, drawn: "SimulatedSweeps") -> "np.ndarray":
    from posgap.measurement import statistics

    differences = (drawn.candidate - drawn.reference).mean(axis=-1, dtype=float)
    return statistics.difference_reaches(differences, -parameters.mean_tolerance / 100, drawn.error)


class AdvantageousTolerance(Parameters):
    advantageous_tolerance: float = Field(
        5.0,
        ge=0,
        description="points that the candidate may lose at the position where the champion, else the base, is best",
    )


def _advantageous(parameters: AdvantageousTolerance, case: GateInputs) -> Ruling:
    reference = case.best
    chosen, differences = _where_best(case.candidate.correct, reference.correct)
    where = " or ".join(format_positions(reference.sweep.placements[column]) for column in sorted(set(chosen)))
    meaning = f"accuracy where the {case.reference} is best (position {where}), against it"
    return _lost("advantageous", meaning, differences, parameters.advantageous_tolerance, case.error)


def _advantageous_passes(parameters: AdvantageousTolerance, drawn: "SimulatedSweeps") -> "np.ndarray":
    from posgap.measurement import statistics

    _, differences = _where_best(drawn.candidate, drawn.reference)
    return statistics.difference_reaches(differences, -parameters.advantageous_tolerance / 100, drawn.error)


def _where_best(candidate: "np.ndarray", reference: "np.ndarray") -> tuple["np.ndarray", "np.ndarray"]:
    """Of scores [E, ..., P] the placement [E, ...] where the other half of the examples has the reference at its best,
    and the candidate's score there minus the reference's [E, ...]."""
    import numpy as np

    from posgap.measurement import statistics

    chosen, _ = statistics.extremes_elsewhere(reference)
    there = (np.take_along_axis(scores, chosen[..., None], axis=-1)[..., 0] for scores in (candidate, reference))
    return chosen, np.subtract(*there, dtype=float)


def _lost(name: str, meaning: str, differences: "np.ndarray", tolerance: float, error: float) -> Ruling:
    """Of paired differences [E], candidate minus reference, no more than `tolerance` was lost on average."""
    from posgap.measurement import statistics

    return Ruling(
        name=name,
        meaning=meaning,
        claim="at least",
        threshold=0.0 - tolerance,  # which is never "-0"
        estimate=100 * differences.mean(),
        interval=statistics.difference_interval(differences, error).tolist(),
    )


class MinMean(Parameters):
    min_mean: float = Field(
        5.0,
        ge=0,
        lt=100,
        description="points that the mean must reach, or the task's chance level if that is higher; 0: none",
    )


def _useful(parameters: MinMean, case: GateInputs) -> Ruling:
    """The ruling on the claim that comes off worst: that the mean reaches a number, or what a sweep answered without
    documents. All of these claims must hold, so that none needs a stricter level (intersection-union)."""
    from posgap.measurement import statistics

    sweep, means = case.candidate.sweep, case.candidate.correct.mean(axis=1)
    chance = 100 * sweep.asked_task.chance(sweep.filled.documents if sweep.filled else sweep.n_docs)
    number = Ruling(
        name="useful",
        meaning="mean, against guessing",
        claim="at least",
        threshold=max(parameters.min_mean, chance),
        estimate=100 * means.mean(),
        interval=statistics.mean_interval(means, case.error).tolist(),
    )
    sweeps = {"its own": case.candidate, "the base's": case.base, "the champion's": case.champion}
    closed = {
        of: evidence.baselines["closed-book"].scores
        for of, evidence in sweeps.items()
        if evidence and "closed-book" in evidence.baselines
    }
    # Documents must not lose against none: a paired difference, since easy questions are easy without documents too.
    differences = [
        _lost("useful", f"mean, against {of} answers without documents", means - scores, 0.0, case.error)
        for of, scores in closed.items()
    ]
    worst_first = ("fail", "unsure", "pass")
    return min([number, *differences], key=lambda r: (worst_first.index(r.outcome), r.value - r.threshold))


def _useful_passes(parameters: MinMean, drawn: "SimulatedSweeps") -> "np.ndarray":
    from posgap.measurement import statistics

    means = drawn.candidate.mean(axis=-1, dtype=float)
    return statistics.mean_interval(means, drawn.error)[..., 0] >= parameters.min_mean


class MinWorst(Parameters):
    min_worst: float = Field(
        0.0, ge=0, le=100, description="points that even the worst position must reach for certain; 0: not asked"
    )


def _worst(parameters: MinWorst, case: GateInputs) -> Ruling:
    """Each placement's lower bound must reach the threshold (intersection-union); that any falls short is said only
    where it does so together with all others (Bonferroni)."""
    from posgap.measurement import statistics

    correct = case.candidate.correct
    low = statistics.mean_interval(correct, case.error)[:, 0].min()
    high = statistics.mean_interval(correct, case.error / correct.shape[1])[:, 1].min()
    return Ruling(
        name="worst",
        meaning="accuracy at the worst position",
        claim="at least",
        threshold=parameters.min_worst,
        estimate=statistics.accuracy(correct).min(),
        interval=(low, high),
    )


def _worst_passes(parameters: MinWorst, drawn: "SimulatedSweeps") -> "np.ndarray":
    import numpy as np

    from posgap.measurement import statistics

    reached = statistics.mean_interval(drawn.candidate, drawn.error)[..., 0] >= parameters.min_worst
    return np.asarray(reached.all(axis=-1))


class MaxRegionGap(Parameters):
    max_region_gap: Annotated[float, RARE] = Field(
        100.0,
        ge=0,
        le=100,
        description="highest gap between beginning, middle and end, or categories of pairs, pooled; 100: not asked",
    )


def _regions(parameters: MaxRegionGap, case: GateInputs) -> Ruling:
    from posgap.measurement import statistics
    from posgap.measurement.shape import regions

    columns = regions(case.candidate.sweep.placements, case.candidate.sweep.categories)
    pooled = _pooled(case.candidate.correct, columns)
    return Ruling(
        name="regions",
        meaning=f"gap between regions ({', '.join(columns)})",
        claim="at most",
        threshold=parameters.max_region_gap,
        estimate=statistics.gap(statistics.accuracy(pooled)),
        interval=statistics.gap_interval(pooled, case.error),
    )


def _pooled(correct: "np.ndarray", columns: "dict[str, list[int]]") -> "np.ndarray":
    """Means of scores [E, ..., P] over the columns of each region [E, ..., regions]."""
    import numpy as np

    return np.stack([correct[..., of_region].mean(axis=-1, dtype=float) for of_region in columns.values()], axis=-1)


def _regions_passes(parameters: MaxRegionGap, drawn: "SimulatedSweeps") -> "np.ndarray":
    import numpy as np

    from posgap.measurement import statistics
    from posgap.measurement.shape import regions

    pooled = np.moveaxis(_pooled(drawn.candidate, regions([[at] for at in range(drawn.candidate.shape[-1])])), -1, 0)
    most, error = parameters.max_region_gap / 100, statistics.upper_error(len(pooled), drawn.error)
    if len(pooled) < 2:  # one region says nothing of a gap
        return np.zeros(drawn.candidate.shape[1], bool)
    pairs = permutations(pooled, 2)
    return np.asarray(
        np.all([statistics.difference_reaches(one - other, -most, error) for one, other in pairs], axis=0)
    )


class MinConsistency(Parameters):
    min_consistency: Annotated[float, RARE] = Field(
        0.0,
        ge=0,
        le=100,
        description="percent of the examples in which the same item must be chosen in every order, of the tasks judge "
        "and options; 0: not asked",
    )


def _consistency(parameters: MinConsistency, case: GateInputs) -> Ruling:
    from posgap.measurement import statistics
    from posgap.measurement.option_bias import same_item
    from posgap.measurement.sweeps import read_predictions, swept_rows

    sweep = case.candidate.sweep
    task = sweep.asked_task
    if not task.slot_names:
        raise PosgapError(f"min_consistency: the task {task.name} has no items to choose from; leave it out")
    rows = swept_rows(read_predictions(case.candidate.path))
    same = same_item(task, ((row["id"], row["placement"][0], row["response"]) for row in rows), sweep.n_docs)
    return Ruling(
        name="consistency",
        meaning="examples in which the same item is chosen in every order, in percent",
        claim="at least",
        threshold=parameters.min_consistency,
        estimate=100 * same.mean(),
        interval=statistics.mean_interval(same, case.error).tolist(),
    )


class MaxUnclean(Parameters):
    max_unclean: Annotated[float, RARE] = Field(
        NOTABLE,
        ge=0,
        le=100,
        description="percent of the prompts at any placement whose answers may repeat the prompt or be cut at the "
        "limit of tokens, and so be right by chance; 100: not asked",
    )


def _clean(parameters: MaxUnclean, case: GateInputs) -> Ruling:
    """What answers repeat and where they are cut is known of every prompt, but for sweeps by an older posgap: of these
    only how many are cut."""
    outcomes = case.candidate.outcomes
    cut = max(counts.percent(counts.cut) for counts in outcomes.by_placement)
    known = all(counts.is_known for counts in outcomes.by_placement)
    share = outcomes.worst_unclean if known else cut
    return Ruling(
        name="clean",
        meaning="answers that repeat the prompt or are cut, in percent, at the worst position",
        claim="at most",
        threshold=parameters.max_unclean,
        estimate=share,
        interval=(share, share if known else 100.0),
    )


ANSWERED = GateRule(
    "answered",
    "nearly every prompt was answered, at every position",
    _answered,
    MaxUnanswered,
    asked=lambda p: p.max_unanswered < 100,
    needs_reference=False,
    broken="too many prompts were not answered at some position",
)
GAP = GateRule(
    "gap",
    "no position is much worse than another",
    _gap,
    MaxGap,
    _gap_passes,
    needs_reference=False,
    broken="some positions are much worse than others",
)
MEAN = GateRule(
    "mean",
    "nothing was lost on average",
    _mean,
    MeanTolerance,
    _mean_passes,
    broken="accuracy was lost on average",
)
ADVANTAGEOUS = GateRule(
    "advantageous",
    "nothing was lost where the reference answers best",
    _advantageous,
    AdvantageousTolerance,
    _advantageous_passes,
    broken="accuracy was lost where the reference answers best",
)
USEFUL = GateRule(
    "useful",
    "the model is better than guessing",
    _useful,
    MinMean,
    _useful_passes,
    asked=lambda p: p.min_mean > 0,
    needs_reference=False,
    broken="its mean is too low to be of use",
)
WORST = GateRule(
    "worst",
    "even the worst position is right often enough",
    _worst,
    MinWorst,
    _worst_passes,
    asked=lambda p: p.min_worst > 0,
    needs_reference=False,
    broken="the worst position is right too rarely",
)
REGIONS = GateRule(
    "regions",
    "neither end nor the middle is much worse",
    _regions,
    MaxRegionGap,
    _regions_passes,
    asked=lambda p: p.max_region_gap < 100,
    needs_reference=False,
    broken="the beginning, the middle or the end is much worse than the rest",
)
CLEAN = GateRule(
    "clean",
    "answers are neither copies of the prompt nor cut",
    _clean,
    MaxUnclean,
    asked=lambda p: p.max_unclean < 100,
    needs_reference=False,
    broken="too many answers at some position repeat the prompt or are cut at the limit of tokens",
)
CONSISTENCY = GateRule(
    "consistency",
    "the order makes no difference to what is chosen",
    _consistency,
    MinConsistency,
    asked=lambda p: p.min_consistency > 0,
    needs_reference=False,
    broken="the order decides too often what is chosen",
)

GATE_RULES: Registry[GateRule] = Registry(
    "gate rule",
    "posgap.gate_rules",
    GAP,
    MEAN,
    ADVANTAGEOUS,
    USEFUL,
    WORST,
    REGIONS,
    ANSWERED,
    CLEAN,
    CONSISTENCY,
)

CHECK_RULES = GATE_RULES.where(lambda rule: not rule.needs_reference)  # all that `posgap check` can apply
