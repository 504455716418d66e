"""What a judge said of a sweep's responses, and how far that can be trusted: its position bias, and its agreement with
exact scoring."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from posgap.foundation.files import Record, digest_of, read_models
from posgap.generation.served import EndpointIdentity
from posgap.measurement import statistics
from posgap.measurement.spending import TokenTotals
from posgap.measurement.statistics import Count, Points, ends

GRADED = "graded"  # the metric of a sweep whose responses a model has judged
JUDGEMENTS_FILE = "judgements.jsonl"
Verdict = Literal["correct", "incorrect", "unreadable"]


class Judgement(NamedTuple):
    """A judge's verdicts on a response, read after the reference answers and read before them."""

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
    def mean_score(self) -> float:
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


class Percentage(Record):
    """A share in percent, with its 95 % interval (Wilson's); an example counts once, however many responses it has."""

    percent: Points
    ci95: tuple[Points, Points]

    @classmethod
    def from_examples(cls, by_example: Iterable[Sequence[float]]) -> "Percentage | None":
        """The mean over examples of each example's mean; None where there is nothing."""
        means = np.sort([np.mean(values) for values in by_example if len(values)])  # so that no order matters
        if not len(means):
            return None
        low, high = statistics.mean_interval(means)
        return cls(percent=float(100 * means.mean()), ci95=(float(low), float(high)))


class Agreement(Record):
    """How the judge agrees with an exact metric on the same responses: how many of them each finds right, and the
    percent alike."""

    metric: str
    both_right: Count
    judge_only: Count
    exact_only: Count
    both_wrong: Count
    alike: Percentage

    @classmethod
    def from_pairs(cls, metric: str, by_example: Iterable[Sequence[tuple[bool, bool]]]) -> "Agreement | None":
        """From pairs (right for the judge, right for the metric), those of each example together; None without any."""
        counts: Counter[tuple[bool, bool]] = Counter()
        agreeing = []
        for pairs in by_example:
            counts.update(pairs)
            agreeing.append([judge == exact for judge, exact in pairs])
        alike = Percentage.from_examples(agreeing)
        if alike is None:
            return None
        return cls(
            metric=metric,
            both_right=counts[True, True],
            judge_only=counts[True, False],
            exact_only=counts[False, True],
            both_wrong=counts[False, False],
            alike=alike,
        )

    def agreement_text(self) -> str:
        """Returns the agreement as a sentence."""
        return (
            f"The judge and {self.metric} agree on {self.alike.percent:.1f} % of the responses "
            f"({ends(self.alike.ci95)}); {self.judge_only} are right for the judge alone, {self.exact_only} for "
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
    flipped: Percentage | None
    agreement: Agreement | None
    settings: dict
    served: EndpointIdentity | None = None
    spent: TokenTotals | None = None

    @property
    def by(self) -> str:
        """A digest of the judge and of how it was asked: gradings of which it differs are not comparable."""
        return digest_of([self.judge_digest or self.judge, self.asked])

    def metrics(self) -> dict[str, float]:
        """What runs are compared by: percent of judgements that flip with the order, and percent alike with the exact
        metric, as far as they are known."""
        figures = {
            "judge_flipped": self.flipped.percent if self.flipped else None,
            "judge_agreement": self.agreement.alike.percent if self.agreement else None,
        }
        return {name: round(value, 2) for name, value in figures.items() if value is not None}

    def judge_sentences(self) -> list[str]:
        """What has to be known of the judge, in words."""
        sentences = [f"{self.responses} different responses were judged by {self.judge}, each in both orders."]
        if self.unreadable:
            sentences.append(f"To {self.unreadable} of them it gave no judgement that can be read.")
        if self.flipped:
            sentences.append(
                f"The order in which it is shown reference answers and response changes {self.flipped.percent:.1f} % "
                f"of its judgements ({ends(self.flipped.ci95)}), which count half."
            )
        return [*sentences, self.agreement.agreement_text()] if self.agreement else sentences


def flipped_share(judgements: Iterable[Sequence[Judgement]]) -> Percentage | None:
    """The share of judgements that flip with the order, from those of each example that can be read."""
    flipped = []
    for of_example in judgements:
        flipped.append([judgement.is_flipped for judgement in of_example if judgement.is_readable])
    return Percentage.from_examples(flipped)
