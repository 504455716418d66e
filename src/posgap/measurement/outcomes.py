"""How the prompts of a sweep ended, counted: what was not answered is neither right nor wrong, and scores 0."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self, get_args

from pydantic import model_validator

from posgap.foundation.files import Record
from posgap.generation.generator import Outcome
from posgap.measurement.statistics import Count
from posgap.tasks.positions import format_positions

UNANSWERED: tuple[Outcome, ...] = tuple(name for name in get_args(Outcome) if name != "answered")


class OutcomeCounts(Record):
    """How many prompts ended in each way; `cut` is how many of the answers the limit of tokens ended."""

    answered: Count = 0
    truncated: Count = 0
    refused: Count = 0
    empty: Count = 0
    failed: Count = 0
    ungraded: Count = 0
    cut: Count = 0

    @classmethod
    def of(cls, endings: Iterable[tuple[Outcome, bool]]) -> Self:
        """The counts of prompts, of each of which the outcome is given, and whether the limit ended its answer."""
        counts: Counter[str] = Counter()
        for outcome, cut in endings:
            counts[outcome] += 1
            counts["cut"] += cut and outcome == "answered"
        return cls(**counts)

    @property
    def unanswered(self) -> int:
        """How many prompts were not answered."""
        return sum(getattr(self, name) for name in UNANSWERED)

    @property
    def prompts(self) -> int:
        """How many prompts there were."""
        return self.answered + self.unanswered

    @property
    def share(self) -> float:
        """The share of the prompts that were not answered, in percent."""
        return 100 * self.unanswered / (self.prompts or 1)

    @property
    def listed(self) -> str:
        """What was not answered by kind, like "refused 3, empty 1"."""
        return ", ".join(f"{name} {count}" for name in UNANSWERED if (count := getattr(self, name)))


class Outcomes(OutcomeCounts):
    """The counts of a sweep in all, and at each of its placements."""

    by_placement: list[OutcomeCounts]

    @classmethod
    def at(cls, by_placement: Sequence[OutcomeCounts]) -> Self:
        """The counts of a sweep from those at each placement."""
        return cls(**_total(by_placement), by_placement=list(by_placement))

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for name, total in _total(self.by_placement).items():
            if getattr(self, name) != total:
                raise ValueError(f"{name}: {getattr(self, name)} in all, and {total} at the placements together")
        return self

    @property
    def worst(self) -> int:
        """Which placement has the largest share of unanswered prompts; the first of equals."""
        shares = [counts.share for counts in self.by_placement]
        return shares.index(max(shares))

    @property
    def worst_share(self) -> float:
        """The largest share of unanswered prompts at any placement, in percent."""
        return self.by_placement[self.worst].share

    @property
    def figures(self) -> dict[str, float]:
        """The percent of prompts that were not answered, in all and at the placement with the most, and of those
        whose answer the limit of tokens ended; by the names that MLflow and KFP show."""
        return {
            "unanswered": round(self.share, 2),
            "unanswered_worst": round(self.worst_share, 2),
            "cut": round(100 * self.cut / (self.prompts or 1), 2),
        }

    def phrase(self, placements: Sequence[Sequence[int]]) -> str:
        """What was not answered, in words; empty where all was."""
        if not self.unanswered:
            return ""
        where = format_positions(placements[self.worst])
        return (
            f"{self.unanswered} of {self.prompts} prompts were not answered ({self.listed}), at most "
            f"{self.worst_share:.1f} % at a placement ({where})"
        )

    def sentence(self, placements: Sequence[Sequence[int]]) -> str:
        """The same as a sentence."""
        phrase = self.phrase(placements)
        return phrase and f"{phrase}; they count as wrong."


def _total(by_placement: Sequence[OutcomeCounts]) -> dict[str, int]:
    return {name: sum(getattr(c, name) for c in by_placement) for name in OutcomeCounts.model_fields}
