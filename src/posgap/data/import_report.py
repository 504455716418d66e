"""Reports the result of importing a file of any format: counts, and the lines that state them."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from posgap.foundation.printing import format_count
from posgap.tasks.examples import RankedExample
from posgap.tasks.metrics import holds_answer

log = logging.getLogger(__name__)
METRIC = "answer_words"  # finds whether a passage of a log holds an answer
_FEW = 3  # questions: fewer say nothing of a log


@dataclass
class ImportReport:
    """The result of reading a log's questions.

    Counts the omitted questions, by reason; the questions that the log leaves ambiguous; and those whose relevant
    passages were found by id, label or answer. Counts the `relevant` passages, the other passages that hold an answer
    (`answering`), and how many of those were `dropped`. Of the questions `told` by ids or labels with an answer in some
    passage, `elsewhere` counts those with no answer in a relevant one. `taken_for` says in words how the log was read.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    relevance: Counter[str] = field(default_factory=Counter)
    taken_for: list[str] = field(default_factory=list)
    relevant: int = 0
    answering: int = 0
    dropped: int = 0
    told: int = 0
    elsewhere: int = 0

    def summary_lines(self) -> list[str]:
        """The counts in words, except what the log leaves ambiguous."""
        lines = []
        if self.left_out:
            lines.append("left out " + ", ".join(f"{number} {why}" for why, number in self.left_out.items()))
        if self.relevance:
            ways = [f"{format_count(number, 'question')} by {way}" for way, number in self.relevance.items()]
            lines.append(f"relevant passages: {self.relevant}, told in {' and '.join(ways)}")
        if self.answering > self.dropped:
            lines.append(f"{self.answering} other passages hold an answer too")
        if self.dropped:
            lines.append(f"dropped {self.dropped} passages that are not relevant and hold an answer")
        return lines

    def log_summary(self, name: str) -> None:
        """Logs how the file `name` was read, with all counts, and warns of ambiguities."""
        out = self.left_out.total()
        kept = self.relevance.total()
        for line in (*self.taken_for, *self.summary_lines()):
            log.log(
                logging.WARNING if line.startswith("left out") and out > kept else logging.INFO, "%s: %s", name, line
            )
        if self.left_open:
            what = "; ".join(f"in {format_count(number, 'question')} {what}" for what, number in self.left_open.items())
            log.warning("%s: %s (docs/log-fields.md)", name, what)
        if self.elsewhere >= _FEW and 2 * self.elsewhere >= self.told:
            log.warning(
                "%s: in %d of %d questions an answer is only in passages that are not marked as relevant; check "
                "that the relevant ids belong to these passages and are not off by one (docs/log-fields.md)",
                name, self.elsewhere, self.told,
            )  # fmt: skip

    def count_example(self, example: RankedExample) -> None:
        """Counts an example that can be asked."""
        self.relevance[example.relevance] += 1
        self.relevant += len(example.gold)
        answering = sum(holds_answer(document, example.answers, METRIC) for document in example.distractors)
        self.answering += answering
        if example.relevance != "answer":
            is_held = any(holds_answer(document, example.answers, METRIC) for document in example.gold)
            self.told += is_held or answering > 0
            self.elsewhere += answering > 0 and not is_held


def without_answering(
    examples: Iterable[tuple[int, RankedExample]], report: ImportReport
) -> Iterator[tuple[int, RankedExample]]:
    """Yields the examples without the passages that are not relevant and yet hold an answer, counted in `report`."""
    for number, example in examples:
        kept = []
        for passage in example.passages:
            if passage.relevant or not holds_answer(passage.document, example.answers, METRIC):
                kept.append(passage)
        report.dropped += len(example.passages) - len(kept)
        yield number, example.model_copy(update={"passages": kept})
