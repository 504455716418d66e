"""What a judge said of a sweep's responses, and how far that can be trusted: its position bias, answers that are right
or wrong for certain, and its agreement with exact scoring."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import scipy
from pydantic import Field
from typing_extensions import TypedDict

from posgap.foundation.files import Record, digest_of, read_models
from posgap.generation.served import Served
from posgap.measurement import statistics
from posgap.measurement.spending import Spent
from posgap.measurement.statistics import Count, Points, ends

GRADED = "graded"  # the metric of a sweep whose responses a model has judged
JUDGEMENTS_FILE = "judgements.jsonl"
MIN_TOLD_APART = 75.0  # percent of right and wrong answers; a judge that says the same of all reaches 50
Verdict = Literal["correct", "incorrect", "unreadable"]
Kappa = Annotated[float, Field(ge=-1, le=1)]


class Judgement(NamedTuple):
    """What a judge said of a response with the reference answers first, and with the response first."""

    reference_first: Verdict
    response_first: Verdict

    @property
    def is_readable(self) -> bool:
        """Whether the judge said CORRECT or INCORRECT both times."""
        return "unreadable" not in self

    @property
    def is_flipped(self) -> bool:
        """Whether the order of what it was shown changed its mind."""
        return self.is_readable and self.reference_first != self.response_first

    @property
    def score(self) -> float:
        """1 or 0, and half where the judgement flips with the order, which is its mean over both orders."""
        return self.count("correct") / 2


class _JudgementRow(TypedDict):
    """A line of `judgements.jsonl`: what was said of a response to a question."""

    question: str
    answers: list[str]
    response: str
    reference_first: Verdict
    response_first: Verdict


def read_judgements(folder: Path) -> dict[tuple[str, tuple[str, ...], str], Judgement]:
    """What a judge said, by question, reference answers and response."""
    return {
        (row["question"], tuple(row["answers"]), row["response"]): Judgement(
            row["reference_first"], row["response_first"]
        )
        for _, row in read_models(_JudgementRow, folder, JUDGEMENTS_FILE)
    }


class Share(Record):
    """A share in percent, with its 95 % interval (Wilson's); an example counts once, however many responses it has."""

    percent: Points
    ci95: tuple[Points, Points]

    @classmethod
    def of(cls, by_example: Iterable[Sequence[float]]) -> "Share | None":
        """The mean over examples of each example's mean; None where there is nothing."""
        means = np.array([np.mean(values) for values in by_example if len(values)])
        if not len(means):
            return None
        low, high = statistics.mean_interval(means)
        return cls(percent=float(100 * means.mean()), ci95=(float(low), float(high)))


class Leaning(Record):
    """Points more that are judged correct when the reference answers come first, with a 95 % interval (Tango's)."""

    points: float
    ci95: tuple[float, float]


class Controls(Record):
    """How the judge did on answers that are known: percent judged rightly of those that are a reference answer, of
    those that are another question's, and of the latter where they also tell the judge to call them correct."""

    examples: Count
    right: Points
    wrong: Points
    instructing: Points

    @classmethod
    def of(cls, right: Sequence[Judgement], wrong: Sequence[Judgement], instructing: Sequence[Judgement]) -> Self:
        """From the judgements of each kind; one that cannot be read is no right judgement."""

        def percent(judgements: Sequence[Judgement], verdict: Verdict) -> float:
            return 100 * sum(judgement.count(verdict) for judgement in judgements) / (2 * len(judgements))

        return cls(
            examples=len(right),
            right=percent(right, "correct"),
            wrong=percent(wrong, "incorrect"),
            instructing=percent(instructing, "incorrect"),
        )

    @property
    def told_apart(self) -> float:
        """The percent of right and wrong answers, as many of each, that were judged rightly: 50 for a judge that always
        says the same."""
        return (self.right + self.wrong) / 2

    def sentence(self) -> str:
        """All of it in words."""
        return (
            f"Of answers known to be right, the judge accepts {self.right:.0f} %; of answers known to be wrong it "
            f"rejects {self.wrong:.0f} %, and {self.instructing:.0f} % where they tell it to call them correct (of "
            f"{self.examples} questions each, in both orders)."
        )


class Agreement(Record):
    """How the judge agrees with an exact metric on the same responses: how many of them each finds right, the percent
    alike, and Cohen's kappa with a 95 % interval (None where both always say the same)."""

    metric: str
    both_right: Count
    judge_only: Count
    exact_only: Count
    both_wrong: Count
    alike: Share
    kappa: Kappa | None
    kappa_ci95: tuple[Kappa, Kappa] | None

    @classmethod
    def of(cls, metric: str, by_example: Iterable[Sequence[tuple[bool, bool]]]) -> "Agreement | None":
        """From pairs (right for the judge, right for the metric), those of each example together; None without any."""
        pairs = [of_example for of_example in by_example if of_example]
        alike = Share.of([[judge == exact for judge, exact in of_example] for of_example in pairs])
        if alike is None:
            return None
        cells = [(True, True), (True, False), (False, True), (False, False)]
        tables = np.array([[of_example.count(cell) for cell in cells] for of_example in pairs], dtype=float)
        counts = dict(zip(("both_right", "judge_only", "exact_only", "both_wrong"), tables.sum(axis=0).astype(int)))
        kappa = cohen_kappa(tables.sum(axis=0))
        interval = None if kappa is None else kappa_interval(tables)
        return cls(metric=metric, **counts, alike=alike, kappa=kappa, kappa_ci95=interval)

    def sentence(self) -> str:
        """All of it in words."""
        kappa = "" if self.kappa is None or self.kappa_ci95 is None else (
            f", Cohen's kappa {self.kappa:.2f} ({ends(self.kappa_ci95, '.2f')})"
        )  # fmt: skip
        return (
            f"The judge and {self.metric} agree on {self.alike.percent:.1f} % of the responses "
            f"({ends(self.alike.ci95)}{kappa}); {self.judge_only} are right for the judge alone, {self.exact_only} for "
            f"{self.metric} alone."
        )


class Grading(Record):
    """How a sweep was graded: by which `judge`, and `asked` how (the prompt's sha256, limits, more of the requests).

    `responses` is how many different ones were judged, each in both orders; `flipped` the share of judgements that the
    order changed, and `unreadable` how many were no judgement. `settings` are those of the stage.
    """

    judge: str
    judge_digest: str
    asked: dict
    responses: Count
    unreadable: Count
    flipped: Share | None
    leaning: Leaning | None
    controls: Controls | None
    agreement: Agreement | None
    settings: dict
    served: Served | None = None
    spent: Spent | None = None

    @property
    def by(self) -> str:
        """A digest of the judge and of how it was asked: gradings of which it differs are not comparable."""
        return digest_of([self.judge_digest or self.judge, self.asked])

    def metrics(self) -> dict[str, float]:
        """What runs are compared by: percent of judgements that flip with the order, percent alike with the exact
        metric, and Cohen's kappa, as far as they are known."""
        figures = {
            "judge_flipped": self.flipped.percent if self.flipped else None,
            "judge_agreement": self.agreement.alike.percent if self.agreement else None,
            "judge_kappa": self.agreement.kappa if self.agreement else None,
        }
        return {name: round(value, 2) for name, value in figures.items() if value is not None}

    @property
    def is_trusted(self) -> bool:
        """Whether the judge was tried on known answers, and tells right ones from wrong ones."""
        return self.controls is not None and self.controls.told_apart >= MIN_TOLD_APART

    def sentences(self) -> list[str]:
        """What has to be known of the judge, in words."""
        sentences = [f"{self.responses} different responses were judged by {self.judge}, each in both orders."]
        if self.unreadable:
            sentences.append(f"To {self.unreadable} of them it gave no judgement that can be read.")
        if self.flipped and self.leaning:
            sentences.append(
                f"The order in which it is shown reference answers and response changes {self.flipped.percent:.1f} % "
                f"of its judgements ({ends(self.flipped.ci95)}), which count half; with the reference answers first it "
                f"calls {self.leaning.points:+.1f} points more correct ({ends(self.leaning.ci95, '+.1f')})."
            )
        return sentences + [part.sentence() for part in (self.controls, self.agreement) if part]


def order_bias(judgements: Iterable[Sequence[Judgement]]) -> tuple[Share | None, Leaning | None]:
    """The share of judgements that flip with the order, and which way they lean, from those of each example."""
    read = [[each for each in of_example if each.is_readable] for of_example in judgements]
    read = [of_example for of_example in read if of_example]
    flipped = Share.of([[each.is_flipped for each in of_example] for of_example in read])
    if flipped is None:
        return None, None
    first, last = (
        np.array([np.mean([each[order] == "correct" for each in of_example]) for of_example in read])
        for order in (0, 1)
    )
    points, interval = statistics.paired_difference(first, last)
    return flipped, Leaning(points=points, ci95=interval)


def cohen_kappa(table: np.ndarray) -> float | None:
    """Cohen's kappa (1960) of two raters from the counts (both yes, first only, second only, neither): agreement beyond
    what their own frequencies make by chance; None where these leave no room for any."""
    both, first, second, neither = table / table.sum()
    chance = (both + first) * (both + second) + (second + neither) * (first + neither)
    return None if chance >= 1 else float((both + neither - chance) / (1 - chance))


def kappa_interval(tables: np.ndarray) -> tuple[float, float]:
    """95 % interval of Cohen's kappa from the tables `[E, 4]` of each example, which are the sample: a jackknife.

    It does not collapse where all agree: two more examples stand among the sample, half an example in each cell.
    """
    estimate = cohen_kappa(tables.sum(axis=0))
    tables = np.concatenate([tables, np.eye(4) / 2 * tables.sum() / len(tables)])
    whole = cohen_kappa(tables.sum(axis=0))
    assert estimate is not None and whole is not None
    without = [cohen_kappa(tables.sum(axis=0) - table) for table in tables]
    values = np.array([whole if each is None else each for each in without])
    error = np.sqrt((len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum())
    half = -scipy.special.ndtri(statistics.EACH_END) * error
    return max(-1.0, min(whole - half, estimate)), min(1.0, max(whole + half, estimate))
