"""Readers of the public formats with one gold document, which yield examples."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, parsed, read_jsonl
from posgap.tasks.examples import Document, Example, KVExample


class _KeyValues(Record):
    ordered_kv_records: list[tuple[str, str]]
    key: str
    value: str

    def cut(self, key_digits: int, value_digits: int) -> list[tuple[str, str]]:
        """The records with keys and values of so many characters; 0: whole."""
        return [(k[: key_digits or None], v[: value_digits or None]) for k, v in self.ordered_kv_records]


class _Context(Record):
    title: str
    text: str
    isgold: bool


class _Question(Record):
    question: str
    answers: list[str]
    ctxs: list[_Context]


def read_litm_kv(
    path: Path, key_digits: int = 0, value_digits: int = 0, queries: int = 1, seed: int = 0
) -> Iterator[tuple[int, KVExample]]:
    """Yields (line, example) of the lost-in-the-middle key-value file: `ordered_kv_records, key, value`.

    `key_digits` and `value_digits` cut each key and value to its first characters (0: whole). If cut keys are equal,
    only the first of their records is kept, or the queried one if it is among them. `queries` makes that many examples
    of each line: one that asks for the line's own key, and others whose keys are drawn with `seed`.
    """
    for line, row in read_jsonl(path):
        item = parsed(_KeyValues, row, f"{path}:{line}")
        records, cut = item.ordered_kv_records, item.cut(key_digits, value_digits)
        if (item.key, item.value) not in records:
            raise PosgapError(f"{path}:{line}: field `key`: no record holds the queried key with its value")
        own = [k for k, _ in records].index(item.key)
        others = np.random.default_rng([seed, line]).permutation([i for i in range(len(records)) if i != own])
        if queries > len(records):
            raise PosgapError(
                f"{path}:{line}: `queries` is {queries}, but there are only {len(records)} records to ask for"
            )
        for q, queried in enumerate([own, *others[: queries - 1]]):
            wanted, value = cut[queried]
            keys, kept = {wanted}, []
            for i, (k, v) in enumerate(cut):
                if i == queried or k not in keys:
                    keys.add(k)
                    kept.append((k, v))
            yield (
                line,
                KVExample(
                    id=f"kv-{line:05d}-{q}", question=wanted, answers=[value], key=wanted, value=value, records=kept
                ),
            )


def read_litm_qa(path: Path) -> Iterator[tuple[int, Example]]:
    """Yields (line, example) of the lost-in-the-middle question-answering file:
    `question, answers, ctxs[{title, text, isgold}]`."""
    for line, row in read_jsonl(path):
        item = parsed(_Question, row, f"{path}:{line}")
        yield (
            line,
            Example(
                id=f"qa-{line:05d}",
                question=item.question,
                answers=item.answers,
                gold=[Document(title=c.title, text=c.text) for c in item.ctxs if c.isgold],
                distractors=[Document(title=c.title, text=c.text) for c in item.ctxs if not c.isgold],
            ),
        )
