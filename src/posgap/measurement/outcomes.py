"""Counts how the prompts of a sweep ended.

An unanswered prompt is neither right nor wrong, and scores 0. An answer may be cut, or a copy of the prompt: then its
score says little of the model.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self, get_args

from pydantic import Field, model_validator

from posgap.foundation.files import Record
from posgap.generation.generator import Outcome
from posgap.measurement.statistics import Count
from posgap.tasks.echo import Others
from posgap.tasks.positions import format_positions

UNANSWERED: tuple[Outcome, ...] = tuple(name for name in get_args(Outcome) if name != "answered")


class Ending(NamedTuple):
    """How a prompt ended: its outcome; whether the token limit cut the answer; whether the answer repeats the prompt
    (None if not checked); and whether it names other candidates before or after the right answer."""

    outcome: Outcome
    cut: bool = False
    echo: bool | None = None
    others: Others = ""


class OutcomeCounts(Record):
    """How many prompts ended in each way. Zeros are left out of files."""

    answered: Count = Field(0, description="prompts with a text to score")
    truncated: Count = Field(0, description="prompts whose tokens ran out before an answer")
    refused: Count = Field(0, description="prompts that a content filter blocked")
    empty: Count = Field(0, description="prompts whose answer had no text")
    failed: Count = Field(0, description="prompts without a usable answer after all retries")
    cut: Count = Field(0, description="answers that end at the token limit")
    echo: Count = Field(0, description="answers that repeat the prompt")
    unclean: Count | None = Field(None, description="answers that are cut or repeat the prompt; null if not checked")
    others_after: Count = Field(0, description="right answers that then name other candidates")
    others_before: Count = Field(0, description="answers that name other candidates before the right one")

    @classmethod
    def count(cls, endings: Iterable[Ending]) -> Self:
        """The counts of prompts that ended so."""
        counts = Counter[str]()
        is_known = True
        for ending in endings:
            counts[ending.outcome] += 1
            if ending.outcome != "answered":
                continue
            is_known &= ending.echo is not None
            counts["cut"] += ending.cut
            counts["echo"] += bool(ending.echo)
            counts["unclean"] += ending.cut or bool(ending.echo)
            if ending.others:
                counts[f"others_{ending.others}"] += 1
        if not is_known:
            del counts["unclean"]
        return cls(**counts)

    @property
    def is_known(self) -> bool:
        """Whether the answers were checked for copies."""
        return self.unclean is not None or not self.answered

    @property
    def others(self) -> int:
        """The number of answers that name other candidates beside the right one."""
        return self.others_after + self.others_before

    def percent(self, count: int | None) -> float:
        """A number of prompts in percent of all."""
        return 100 * (count or 0) / (self.prompts or 1)

    @property
    def n_unanswered(self) -> int:
        """The number of unanswered prompts."""
        return sum(getattr(self, name) for name in UNANSWERED)

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return self.answered + self.n_unanswered

    @property
    def percent_unanswered(self) -> float:
        """The share of the prompts that were not answered, in percent."""
        return self.percent(self.n_unanswered)

    @property
    def kinds_text(self) -> str:
        """Unanswered prompts by kind, like "refused 3, empty 1"."""
        return ", ".join(f"{name} {getattr(self, name)}" for name in UNANSWERED if getattr(self, name))


class Outcomes(OutcomeCounts):
    """The counts of a sweep in all, and at each of its placements."""

    by_placement: list[OutcomeCounts] = Field(description="the same counts at each placement")

    @classmethod
    def at(cls, by_placement: Sequence[OutcomeCounts]) -> Self:
        """The counts of a sweep from those at each placement."""
        return cls(**_total(by_placement), by_placement=list(by_placement))  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _check_totals(self) -> Self:
        for name, total in _total(self.by_placement).items():
            if getattr(self, name) != total:
                raise ValueError(f"{name}: {getattr(self, name)} in all, and {total} at the placements together")
        return self

    @property
    def worst(self) -> int:
        """Which placement has the largest share of unanswered prompts; the first of equals."""
        shares = [counts.percent_unanswered for counts in self.by_placement]
        return shares.index(max(shares))

    @property
    def worst_share(self) -> float:
        """The largest share of unanswered prompts at any placement, in percent."""
        return self.by_placement[self.worst].percent_unanswered

    @property
    def worst_unclean(self) -> float:
        """Returns the largest percentage of prompts at any placement with copied or cut answers; 0 if unknown."""
        return max(counts.percent(counts.unclean) for counts in self.by_placement)

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the percent of unanswered prompts, in all and at the placement with the most; of answers that the
        token limit ended; and, if known, of answers that repeat the prompt, and of those that do either at the
        placement with the most. The names are those that MLflow and KFP show."""
        figures = {
            "unanswered": self.percent_unanswered,
            "unanswered_worst": self.worst_share,
            "cut": self.percent(self.cut),
        }
        if self.unclean is not None:
            figures |= {"echo": self.percent(self.echo), "unclean_worst": self.worst_unclean}
        return {name: round(value, 2) for name, value in figures.items()}

    @property
    def copies(self) -> str:
        """The number of answers that are cut or copies, as a sentence; empty if none is."""
        phrases = []
        if self.cut:
            phrases.append(f"{self.cut} {'is' if self.cut == 1 else 'are'} cut at the limit of tokens")
        if self.echo:
            phrases.append(f"{self.echo} repeat{'s' * (self.echo == 1)} the prompt at length")
        if self.others:
            first = f" ({self.others_before} of them before it)" if self.others_before else ""
            phrases.append(
                f"{self.others} name{'s' * (self.others == 1)} other candidates beside the right answer{first}"
            )
        return f"Of {self.answered} answers {', '.join(phrases)}." if phrases else ""

    def phrase(self, placements: Sequence[Sequence[int]]) -> str:
        """The unanswered prompts in words; empty if there are none."""
        if not self.n_unanswered:
            return ""
        where = format_positions(placements[self.worst])
        return (
            f"{self.n_unanswered} of {self.prompts} prompts were not answered ({self.kinds_text}), at most "
            f"{self.worst_share:.1f} % at a placement ({where})"
        )

    def unanswered_text(self, placements: Sequence[Sequence[int]]) -> str:
        """Describes the unanswered prompts in a sentence; empty if there are none."""
        phrase = self.phrase(placements)
        return phrase and f"{phrase}; they count as wrong."


def _total(by_placement: Sequence[OutcomeCounts]) -> dict[str, int | None]:
    """Returns the sums of all counts; None for a count that no placement has."""
    totals: dict[str, int | None] = dict.fromkeys(OutcomeCounts.model_fields)
    for counts in by_placement:
        for name, count in counts:
            if name in totals and count is not None:
                totals[name] = (totals[name] or 0) + count
    return totals
