"""Readers of multiple-choice questions and of judged answers, which yield examples of the tasks `options` and `judge`.

The gold document is the right option, or the answer that was preferred; the distractors are the others. An answer's
title is the name of the model that wrote it, which no prompt shows.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from posgap.foundation.errors import Malformed
from posgap.foundation.files import parse_as, read_rows
from posgap.tasks.examples import Document, Example, Texts

log = logging.getLogger(__name__)
_HENDRYCKS = ("question", *LETTERS[:4], "answer")  # columns of the files by the benchmark's authors


Rows = Iterable[tuple[int, Any]]


class _MmluRow(BaseModel):
    question: str = Field(min_length=1)
    choices: list[str] = Field(min_length=2, max_length=len(LETTERS))
    answer: int | str


def _mmlu(rows: Rows, name: str) -> Iterator[tuple[int, Example | None]]:
    """Yields (row, example) of multiple-choice questions as MMLU has them (Hendrycks et al. 2021).

    Either `question, choices[], answer` with the index of the right one, from 0 (`cais/mmlu` on the hub), or the
    authors' CSV files, which have a question, four options and the letter of the right one in a row, and no header. A
    question is yielded as None if its right option is among the wrong ones too.
    """
    for number, row in rows:
        if number == 1 and isinstance(row, Mapping) and row.get("question") == "question":
            continue  # a header all the same
        item = parse_as(_MmluRow, _in_list(row, "choices", LETTERS), f"{name}:{number}")
        right = _index_of(item.answer, len(item.choices))
        if right is None:
            raise Malformed(
                f"field `answer`: {item.answer!r} is not one of the {len(item.choices)} options; write its letter, or "
                "its index from 0",
                at=f"{name}:{number}",
            )
        yield number, _choice_example(f"mmlu-{number:06d}", item.question, *_split_off(item.choices, right))


class _Turn(BaseModel):
    role: str
    content: str


class _Judgment(BaseModel):
    question_id: int | str
    model_a: str
    model_b: str
    winner: str
    conversation_a: list[_Turn] = Field(min_length=2)
    conversation_b: list[_Turn] = Field(min_length=2)
    turn: int = Field(ge=1)


def _mt_bench(rows: Rows, name: str) -> Iterator[tuple[int, Example | None]]:
    """Yields (row, example) of judgments as MT-Bench has them (Zheng et al. 2023, `lmsys/mt_bench_human_judgments`):
    `question_id, model_a, model_b, winner, conversation_a, conversation_b, turn`.

    Several judgments of the same pair make one example, at the row of the first judgment: the answer that most judges
    preferred is the gold document. If as many, or more, called it a tie, or preferred the other, None is yielded. A
    second turn's answer is everything said after the first question.
    """
    judgments: dict[tuple, tuple[int, str, dict[str, str], Counter[str]]] = {}
    for number, row in rows:
        item = parse_as(_Judgment, row, f"{name}:{number}")
        winners = {"model_a": item.model_a, "model_b": item.model_b}
        if item.winner not in winners and not item.winner.startswith("tie"):
            raise Malformed(f"field `winner`: {item.winner!r} is not model_a, model_b or tie", at=f"{name}:{number}")
        if item.model_a == item.model_b:
            raise Malformed("field `model_b`: equals `model_a`; name the two models differently", at=f"{name}:{number}")
        judged = (str(item.question_id), item.turn, *sorted(winners.values()))
        said = {
            item.model_a: _conversation_text(item.conversation_a, item.turn),
            item.model_b: _conversation_text(item.conversation_b, item.turn),
        }
        first = (number, item.conversation_a[0].content, said, Counter[str]())
        judgments.setdefault(judged, first)[-1][winners.get(item.winner, "")] += 1
    for (question_id, turn, *_), (number, question, said, votes) in judgments.items():
        (winner, most), *others = votes.most_common(2)
        if not winner or any(number_of == most for _, number_of in others):
            yield number, None
            continue
        best = (winner, said.pop(winner))
        yield number, _choice_example(f"mt-bench-{question_id}-{turn}-{number}", question, best, said.items())


def _conversation_text(conversation: Sequence[_Turn], turn: int) -> str:
    """Returns a model's answers up to a turn, after the first question."""
    reply, *later = conversation[1 : 2 * turn]
    spoken = [f"{'Question' if said.role == 'user' else 'Answer'}: {said.content}" for said in later]
    return "\n\n".join([reply.content, *spoken])


class _RewardBenchRow(BaseModel):
    prompt: str = Field(min_length=1)
    chosen: Texts
    rejected: Texts
    chosen_model: str | None = None
    rejected_model: str | None = None
    models: list[str] | None = None


def _reward_bench(rows: Rows, name: str) -> Iterator[tuple[int, Example | None]]:
    """Yields (row, example) of RewardBench (Lambert et al. 2024), `prompt, chosen, chosen_model, rejected,
    rejected_model`, or of RewardBench 2 (Malik et al. 2025), which has lists in `chosen` and `rejected`.

    A row with several chosen answers, as in the subset Ties, has no single best one, and is yielded as None.
    """
    for number, row in rows:
        item = parse_as(_RewardBenchRow, row, f"{name}:{number}")
        if len(item.chosen) > 1:
            yield number, None
            continue
        models = [item.chosen_model, item.rejected_model or ""] if item.chosen_model else item.models or []
        best, *others = zip(chain(models, repeat("")), [*item.chosen, *item.rejected])
        yield number, _choice_example(f"reward-bench-{number:06d}", item.prompt, best, others)


class _Comparison(BaseModel):
    question: str = Field(min_length=1)
    answers: list[str] = Field(min_length=2, max_length=len(LETTERS))
    label: str
    id: str = ""


def _comparisons(rows: Rows, name: str) -> Iterator[tuple[int, Example | None]]:
    """Yields (row, example) of compared answers: `question`, `answers[]` or `response_a, response_b, ...`, and as
    `label` the letter of the preferred one, or `tie`, which yields None."""
    columns = [f"response_{letter}" for letter in LETTERS.lower()]
    for number, row in rows:
        item = parse_as(_Comparison, _in_list(row, "answers", columns), f"{name}:{number}")
        label = re.sub("^(response|model|answer)_", "", item.label.strip().lower())
        preferred = _index_of(label, len(item.answers))
        if label == "tie":
            yield number, None
        elif preferred is None:
            raise Malformed(
                f"field `label`: {item.label!r} is not one of the {len(item.answers)} answers; write the letter of the "
                "preferred one, or tie",
                at=f"{name}:{number}",
            )
        else:
            id = item.id or f"comparison-{number:06d}"
            yield number, _choice_example(id, item.question, *_split_off(item.answers, preferred))


def _in_list(row: Any, field: str, columns: Iterable[str]) -> Any:
    """Returns a row with the items, one per column, collected in `field`; blank ones after the last are dropped."""
    if not isinstance(row, Mapping) or field in row:
        return row
    items = [row[name] for name in columns if name in row]
    while items and not items[-1]:
        items.pop()
    return {**row, field: items} if items else row


def _index_of(name: int | str, items: int) -> int | None:
    """Returns the index that a number from 0 or a letter names; None if it names none of the items."""
    index = name if isinstance(name, int) else dict(zip(LETTERS, count())).get(name.strip().upper(), -1)
    return index if 0 <= index < items else None


def _split_off(texts: Sequence[str], index: int) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    """The item at an index, and the others, without titles."""
    items = list(zip(repeat(""), texts))
    return items.pop(index), items


def _choice_example(id: str, question: str, gold: tuple[str, str], others: Iterable[tuple[str, str]]) -> Example | None:
    """The example of items as (title, text); None if the gold one stands among the others too."""
    gold_document, *distractors = (Document(title=title, text=text) for title, text in (gold, *others))
    for other in distractors:
        if other.text.split() == gold_document.text.split():
            return None
    return Example(
        id=id, question=question, answers=[gold_document.text], gold=[gold_document], distractors=distractors
    )


class Layout(NamedTuple):
    """A public layout of questions with items to choose from.

    `examples(rows, name)` yields (number, example) for each (number, row) of the file or table `name`; the example is
    None if it is `left_out`, which completes "left out 3". A row has all fields of one of the sets of `fields`.
    `columns` names the columns of a CSV file without a header.
    """

    examples: Callable[[Rows, str], Iterator[tuple[int, Example | None]]]
    fields: tuple[frozenset[str], ...]
    left_out: str = "without a single best answer"
    columns: Sequence[str] = ()

    def read_file(self, path: Path) -> Iterator[tuple[int, Example | None]]:
        """Yields (row, example) of a file."""
        return self.examples(read_rows(path, self.columns), str(path))

    def usable_examples(self, rows: Rows, name: str) -> Iterator[tuple[int, Example]]:
        """Yields (number, example) of rows; the log counts the omitted ones."""
        left_out = 0
        for number, example in self.examples(rows, name):
            left_out += example is None
            if example is not None:
                yield number, example
        if left_out:
            log.info("%s: left out %d %s", name, left_out, self.left_out)


LAYOUTS = {
    "mmlu": Layout(
        _mmlu,
        (frozenset({"question", "choices", "answer"}), frozenset({"question", "A", "B", "answer"})),
        "whose right option is among the wrong ones too",
        _HENDRYCKS,
    ),
    "mt-bench": Layout(_mt_bench, (frozenset({"conversation_a", "conversation_b", "winner"}),)),
    "reward-bench": Layout(_reward_bench, (frozenset({"prompt", "chosen", "rejected"}),)),
    # Answers in a list, beside a label, also occur in retrieval logs.
    "comparisons": Layout(_comparisons, (frozenset({"question", "response_a", "response_b", "label"}),)),
}


def layout_of(row: Any) -> Layout | None:
    """The layout that a row with these fields has; None if it has none of them."""
    fields = set(row) if isinstance(row, Mapping) else set()
    for layout in LAYOUTS.values():
        if any(fields >= set(names) for names in layout.fields):
            return layout
    return None
