"""The gate's rules: what a sweep must show before its model enters the registry.

Each rule is a claim that the candidate has to prove. It passes if the one-sided 95 % bound against the candidate
fulfils the claim, fails if the other bound breaks it, and else is undecided. All claims must hold, so a model that
breaks one is admitted in at most 5 %. docs/statistics.md gives the reasons for each rule. If several verdicts share the
error, each has a part of the 5 %.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, computed_field

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import NO_OPTION
from posgap.foundation.files import Record
from posgap.foundation.lazy import LazyModule
from posgap.foundation.registry import Parameters, Registry
from posgap.measurement.max_unanswered import NOTABLE, MaxUnanswered
from posgap.tasks.positions import format_positions

if TYPE_CHECKING:
    import numpy as np

    from posgap.measurement import statistics
    from posgap.measurement.evidence import Evidence  # noqa: F401  # the argument of a base class is a text
    from posgap.measurement.simulated_sweeps import SimulatedSweeps
else:
    statistics = LazyModule("posgap.measurement.statistics")  # which loads numpy, and the rules' options do not


class Ruling(Record):
    """A rule's result on its claim that a figure is `at most` or `at least` the threshold."""

    name: str = Field(description="name of the rule")
    meaning: str = Field(description="what the rule measures")
    claim: Literal["at most", "at least"] = Field(
        description="which side of the threshold passes: at most, or at least"
    )
    threshold: float = Field(description="the threshold, in points, or in nats a token for plain text")
    estimate: float = Field(description="the measured figure")
    interval: tuple[float, float] = Field(
        description="one-sided bounds of the figure, of 95 % if the verdict has the whole error"
    )
    needs: int | None = Field(
        None, description="of an unsure rule: examples with which a flat model would pass in 80 %"
    )
    would_do: dict[str, float] = Field(
        {}, description="of an unsure rule: the threshold by its name, with which these examples would have passed"
    )

    digits: int = Field(1, description="decimal places to show")

    def text(self, figure: float) -> str:
        """Formats a figure."""
        return f"{figure:.{self.digits}f}"

    @property
    def found(self) -> str:
        """The figure with its bounds, like "3.6 (0.0 to 7.9)"; alone if it was counted."""
        low, high = map(self.text, self.interval)
        return self.text(self.estimate) if self.is_counted else f"{self.text(self.estimate)} ({low} to {high})"

    @property
    def is_counted(self) -> bool:
        """Whether the figure is a fact of this sweep, and not an estimate for other examples."""
        return self.interval[0] == self.interval[1]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def value(self) -> float:
        """The bound that decides whether the rule passes: the less favourable one for the candidate."""
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
        """The claim in words; what was counted is no more certain than it is."""
        certainty = "" if self.is_counted else " for certain"
        return f"{self.meaning}: {self.claim} {self.threshold:g}{certainty}"


E = TypeVar("E")


@dataclass(frozen=True)
class Judged(Generic[E]):
    """What is known of the models that a gate compares. If there is no champion, the base stands in for it; a check has
    neither.

    `anchor` is the best champion so far, if that is not today's champion. `share` is the part of the error of 5 % that
    this verdict may spend if it is one of several (`verdict.share_of_error`).
    """

    candidate: E
    base: E | None = None
    champion: E | None = None
    anchor: E | None = None
    share: float = 1.0

    @property
    def error(self) -> float:
        """The error rate of each bound of this verdict."""
        return statistics.LEVEL * self.share

    @property
    def reference(self) -> E:
        """The champion, else the base; raises `PosgapError` if there is neither."""
        reference = self.champion or self.base
        if reference is None:
            raise PosgapError("a rule compares with a base, and a check has none: its GateRule needs a reference")
        return reference

    @property
    def reference_role(self) -> str:
        """The role of the model that the candidate is compared with, in a word."""
        return "champion" if self.champion else "base"

    @property
    def references(self) -> dict[str, E]:
        """The models that the candidate must not fall behind, by role: the champion, else the base, and the best
        champion."""
        return {self.reference_role: self.reference} | ({"best champion so far": self.anchor} if self.anchor else {})


class GateInputs(Judged["Evidence"]):
    """The sweeps that a gate judges. Rules take every figure from the scores, and none that a file says of them."""


class GateRule:
    """A rule of the gate. A subclass defines it; the registry holds one object of each.

    `help` states the rule's demand as a whole clause, and `broken` the fault if the rule is broken. `parameters` are
    its thresholds, which become options. `posgap check` has neither base nor champion. It applies the rules with a
    false `needs_reference`, which look at `inputs.candidate` alone.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    broken: ClassVar[str] = ""
    parameters: ClassVar[type[Parameters]] = Parameters
    needs_reference: ClassVar[bool] = True

    @property
    def is_simulated(self) -> bool:
        """Whether simulated sweeps decide the rule: whether it has its own `simulate`."""
        return type(self).simulate is not GateRule.simulate

    def is_asked(self, limits: Any) -> bool:
        """Whether the thresholds demand anything; else the rule is left out."""
        return True

    def threshold_for(self, bound: float) -> dict[str, float]:
        """Returns the threshold, by its parameter's name, that a ruling with this deciding bound just passes; empty if
        there is no such parameter."""
        return {}

    def judge(self, limits: Any, inputs: GateInputs) -> Ruling:
        """The ruling on the sweeps, by the thresholds."""
        raise NotImplementedError

    def is_passed(self, limits: Any, inputs: GateInputs) -> bool:
        """Returns whether the ruling is a pass; a rule may find that faster than its full ruling."""
        return self.judge(limits, inputs).passed

    def simulate(self, limits: Any, sweeps: "SimulatedSweeps") -> "np.ndarray":
        """Which of R simulated sweeps pass [R], as `judge` would say of each."""
        raise NotImplementedError

    def rule_on_loss(self, meaning: str, differences: "np.ndarray", tolerance: float, error: float) -> Ruling:
        """The ruling that paired differences [E], candidate minus reference, lose at most `tolerance` on average."""
        interval = statistics.difference_interval(differences, error).tolist()
        return self.rule_at_least(0.0 - tolerance, meaning, 100 * differences.mean(), interval)  # which is never "-0"

    def rule_at_most(self, most: float, meaning: str, estimate: float, interval: tuple[float, float]) -> Ruling:
        """Returns the ruling that a figure, described by `meaning`, is at most the threshold."""
        claim = {"name": self.name, "meaning": meaning, "claim": "at most", "threshold": most}
        return Ruling(**claim, estimate=estimate, interval=interval)

    def rule_at_least(self, least: float, meaning: str, estimate: float, interval: tuple[float, float]) -> Ruling:
        """Returns the ruling that a figure, described by `meaning`, is at least the threshold."""
        claim = {"name": self.name, "meaning": meaning, "claim": "at least", "threshold": least}
        return Ruling(**claim, estimate=estimate, interval=interval)


def round_up(points: float) -> float:
    """Points to a tenth, upwards."""
    return math.ceil(10 * points - 1e-9) / 10


class Gap(GateRule):
    name, help = "gap", "no position is much worse than another"
    broken = "some positions are much worse than others"
    needs_reference = False

    class Limits(Parameters):
        max_gap: float = Field(
            10.0, ge=0, le=100, description="largest gap in points that the interval of the gap may reach"
        )

    parameters = Limits

    def threshold_for(self, bound: float) -> dict[str, float]:
        return {"max_gap": round_up(bound)}

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        correct = inputs.candidate.correct
        estimate = statistics.gap(statistics.accuracy(correct))
        interval = statistics.gap_interval(correct, inputs.error)
        return self.rule_at_most(limits.max_gap, "gap, best minus worst position", estimate, interval)

    def is_passed(self, limits: Limits, inputs: GateInputs) -> bool:
        return statistics.gap_upper_end(inputs.candidate.correct, inputs.error) <= limits.max_gap

    def simulate(self, limits: Limits, sweeps: "SimulatedSweeps") -> "np.ndarray":
        return statistics.gap_ends_by(sweeps.candidate, limits.max_gap / 100, sweeps.error)


class Mean(GateRule):
    name, help = "mean", "nothing was lost on average"
    broken = "accuracy was lost on average"

    class Limits(Parameters):
        mean_tolerance: Annotated[float, NO_OPTION] = Field(
            3.5,
            gt=-100,
            description="points of mean the candidate may lose to the champion, or to the base; below 0: that it must "
            "gain",
        )

    parameters = Limits

    def threshold_for(self, bound: float) -> dict[str, float]:
        return {"mean_tolerance": round_up(-bound)}

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        """Returns the worse of the rulings against reference and anchor, since both must hold: against a champion alone
        each successor could lose the tolerance anew."""
        rulings = []
        for role, reference in inputs.references.items():
            differences = inputs.candidate.gains_over(reference).mean(axis=-1)
            meaning = f"mean against the {role}"
            rulings.append(self.rule_on_loss(meaning, differences, limits.mean_tolerance, inputs.error))
        return min(rulings, key=lambda ruling: ruling.interval[0])

    def is_passed(self, limits: Limits, inputs: GateInputs) -> bool:
        least = -limits.mean_tolerance / 100
        differences = [inputs.candidate.gains_over(each).mean(axis=-1) for each in inputs.references.values()]
        return all(bool(statistics.difference_reaches(each, least, inputs.error)) for each in differences)

    def simulate(self, limits: Limits, sweeps: "SimulatedSweeps") -> "np.ndarray":
        differences = (sweeps.candidate - sweeps.reference).mean(axis=-1, dtype=float)
        return statistics.difference_reaches(differences, -limits.mean_tolerance / 100, sweeps.error)


class Advantageous(GateRule):
    name, help = "advantageous", "no loss at the reference's best position"
    broken = "accuracy was lost at the reference's best position"

    class Limits(Parameters):
        advantageous_tolerance: Annotated[float, NO_OPTION] = Field(
            7.0,
            ge=0,
            description="points that the candidate may lose at the position where the champion, else the base, is best",
        )

    parameters = Limits

    def threshold_for(self, bound: float) -> dict[str, float]:
        return {"advantageous_tolerance": round_up(-bound)}

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        """The reference's best placement is chosen on one half of the examples, and both are compared there on the
        other."""
        reference = inputs.reference
        role = inputs.reference_role
        differences = inputs.candidate.gains_over(reference)
        estimate, interval, chosen = statistics.difference_at_best(differences, reference.correct, inputs.error)
        where = " or ".join(format_positions(reference.sweep.placements[column]) for column in chosen)
        meaning = f"accuracy where the {role} is best (position {where}), against it"
        # Taken from 0 the threshold is never "-0".
        return self.rule_at_least(0.0 - limits.advantageous_tolerance, meaning, estimate, interval)

    def simulate(self, limits: Limits, sweeps: "SimulatedSweeps") -> "np.ndarray":
        differences = sweeps.candidate - sweeps.reference
        least = -limits.advantageous_tolerance / 100
        return statistics.difference_at_best_reaches(differences, sweeps.reference, least, sweeps.error)


class Useful(GateRule):
    name, help = "useful", "the model is better than guessing"
    broken = "its mean is too low to be of use"
    needs_reference = False

    class Limits(Parameters):
        min_mean: float = Field(
            5.0,
            ge=0,
            lt=100,
            description="points that the mean must reach, or the task's chance level if that is higher; 0: none",
        )

    parameters = Limits

    def is_asked(self, limits: Limits) -> bool:
        return limits.min_mean > 0

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        """Returns the worst ruling of several claims: that the mean reaches a number, or the accuracy without
        documents. All of these claims must hold, so that none needs a stricter level (intersection-union)."""
        sweep = inputs.candidate.sweep
        means = inputs.candidate.correct.mean(axis=1)
        chance = 100 * sweep.asked_task.chance(sweep.filled.documents if sweep.filled else sweep.n_docs)
        interval = statistics.mean_interval(means, inputs.error).tolist()
        least = max(limits.min_mean, chance)
        number = self.rule_at_least(least, "mean, against guessing", 100 * means.mean(), interval)
        rulings = [number]
        # Documents must not lose against none: a paired difference, since easy questions are easy without documents.
        sweeps = {"its own": inputs.candidate, "the base's": inputs.base, "the champion's": inputs.champion}
        for whose, evidence in sweeps.items():
            if evidence and "closed-book" in evidence.baselines:
                differences = means - evidence.sample.average(evidence.baselines["closed-book"].scores)
                meaning = f"mean, against {whose} answers without documents"
                rulings.append(self.rule_on_loss(meaning, differences, 0.0, inputs.error))
        worst_first = ("fail", "unsure", "pass")
        return min(rulings, key=lambda ruling: (worst_first.index(ruling.outcome), ruling.value - ruling.threshold))

    def simulate(self, limits: Limits, sweeps: "SimulatedSweeps") -> "np.ndarray":
        means = sweeps.candidate.mean(axis=-1, dtype=float)
        return statistics.mean_interval(means, sweeps.error)[..., 0] >= limits.min_mean


class Worst(GateRule):
    name, help = "worst", "even the worst position is right often enough"
    broken = "the worst position is right too rarely"
    needs_reference = False

    class Limits(Parameters):
        min_worst: Annotated[float, NO_OPTION] = Field(
            0.0, ge=0, le=100, description="points that even the worst position must reach for certain; 0: not asked"
        )

    parameters = Limits

    def threshold_for(self, bound: float) -> dict[str, float]:
        return {"min_worst": -round_up(-bound)}

    def is_asked(self, limits: Limits) -> bool:
        return limits.min_worst > 0

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        """The lower end is the least of the placements' lower bounds, each with the whole error: all must reach the
        threshold (intersection-union). The upper end is the least of their upper bounds, each with its share of the
        error: one placement that falls short is enough to break the rule (Bonferroni)."""
        correct = inputs.candidate.correct
        low = statistics.mean_interval(correct, inputs.error)[:, 0].min()
        high = statistics.mean_interval(correct, inputs.error / correct.shape[1])[:, 1].min()
        estimate = statistics.accuracy(correct).min()
        return self.rule_at_least(limits.min_worst, "accuracy at the worst position", estimate, (low, high))

    def simulate(self, limits: Limits, sweeps: "SimulatedSweeps") -> "np.ndarray":
        reached = statistics.mean_interval(sweeps.candidate, sweeps.error)[..., 0] >= limits.min_worst
        return reached.all(axis=-1)  # type: ignore[return-value]  # numpy's stubs allow a number, too


class Answered(GateRule):
    name, help = "answered", "nearly every prompt was answered, at every position"
    broken = "too many prompts were not answered at some position"
    needs_reference = False
    parameters = MaxUnanswered

    def is_asked(self, limits: MaxUnanswered) -> bool:
        return limits.max_unanswered < 100

    def judge(self, limits: MaxUnanswered, inputs: GateInputs) -> Ruling:
        """Unanswered prompts are counted over the whole sweep, and nothing about them is estimated."""
        share = inputs.candidate.outcomes.worst_share
        meaning = "prompts without an answer, in percent, at the worst position"
        return self.rule_at_most(limits.max_unanswered, meaning, share, (share, share))


class Clean(GateRule):
    name, help = "clean", "answers are neither copies of the prompt nor cut"
    broken = "too many answers at some position repeat the prompt or are cut at the limit of tokens"
    needs_reference = False

    class Limits(Parameters):
        max_unclean: Annotated[float, NO_OPTION] = Field(
            NOTABLE,
            ge=0,
            le=100,
            description="percent of the prompts at any placement whose answers may repeat the prompt or be cut at the "
            "limit of tokens, and so be right by chance; 100: not asked",
        )

    parameters = Limits

    def is_asked(self, limits: Limits) -> bool:
        return limits.max_unclean < 100

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        """Copied and cut answers are known for every prompt, except in sweeps by an older posgap: these record only cut
        ones."""
        outcomes = inputs.candidate.outcomes
        cut = max(counts.percent(counts.cut) for counts in outcomes.by_placement)
        known = all(counts.is_known for counts in outcomes.by_placement)
        share = outcomes.worst_unclean if known else cut
        meaning = "answers that repeat the prompt or are cut, in percent, at the worst position"
        return self.rule_at_most(limits.max_unclean, meaning, share, (share, share if known else 100.0))


class Consistency(GateRule):
    name, help = "consistency", "the order does not change the choice"
    broken = "the order changes the choice too often"
    needs_reference = False

    class Limits(Parameters):
        min_consistency: Annotated[float, NO_OPTION] = Field(
            0.0,
            ge=0,
            le=100,
            description="percent of the examples in which the same item must be chosen in every order, of the tasks "
            "judge and options; 0: not asked",
        )

    parameters = Limits

    def is_asked(self, limits: Limits) -> bool:
        return limits.min_consistency > 0

    def judge(self, limits: Limits, inputs: GateInputs) -> Ruling:
        from posgap.measurement.option_bias import same_item
        from posgap.measurement.predictions import read_predictions, swept_rows

        sweep = inputs.candidate.sweep
        task = sweep.asked_task
        if not task.slot_names:
            raise PosgapError(f"min_consistency: the task {task.name} has no items to choose from; leave it out")
        rows = swept_rows(read_predictions(inputs.candidate.path))
        chosen = same_item(task, ((row["id"], row["placement"][0], row["response"]) for row in rows), sweep.n_docs)
        same = inputs.candidate.sample.average(chosen)
        meaning = "percent of the examples in which the same item is chosen in every order"
        interval = statistics.mean_interval(same, inputs.error).tolist()
        return self.rule_at_least(limits.min_consistency, meaning, 100 * same.mean(), interval)


# In this order a verdict has them.
GATE_RULES: Registry[GateRule] = Registry(
    "gate rule",
    "posgap.gate_rules",
    Gap(),
    Mean(),
    Advantageous(),
    Useful(),
    Worst(),
    Answered(),
    Clean(),
    Consistency(),
)

CHECK_RULES = GATE_RULES.where(lambda rule: not rule.needs_reference)  # all that `posgap check` can apply
SIMULATED_RULES = GATE_RULES.where(lambda rule: rule.is_simulated)  # all that `posgap plan gate` can plan
