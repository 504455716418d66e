"""Readers of the public formats with one gold document: path in, examples out."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posgap.errors import PosgapError
from posgap.files import read_jsonl
from posgap.tasks.examples import AnyExample, Document, Example, KVExample


def read_litm_kv(
    path: Path, key_digits: int = 0, value_digits: int = 0, queries: int = 1, seed: int = 0
) -> Iterator[tuple[int, KVExample]]:
    """Yields (line, example) of the lost-in-the-middle key-value file: `ordered_kv_records, key, value`.

    `key_digits` and `value_digits` cut each key and value to its first characters (0: whole);
    of records whose cut keys are equal the first stays, and the queried one always does.
    `queries` asks for that many keys of each line: the line's own, then others drawn by `seed`.
    """
    for line, row in read_jsonl(path):
        records, key = _kv_fields(path, line, row)
        cut = [(k[: key_digits or None], v[: value_digits or None]) for k, v in records]
        own = [k for k, _ in records].index(key)
        others = np.random.default_rng([seed, line]).permutation([i for i in range(len(records)) if i != own])
        if queries > len(records):
            raise PosgapError(f"{path}:{line}: {queries} queries asked of {len(records)} records")
        for q, asked in enumerate([own, *others[: queries - 1]]):
            wanted, value = cut[asked]
            seen, kept = {wanted}, []
            for i, (k, v) in enumerate(cut):
                if i == asked or k not in seen:
                    seen.add(k)
                    kept.append((k, v))
            yield (
                line,
                KVExample(
                    id=f"kv-{line:05d}-{q}", question=wanted, answers=[value], key=wanted, value=value, records=kept
                ),
            )


def _kv_fields(path: Path, line: int, row: dict) -> tuple[list[tuple[str, str]], str]:
    for field in ("ordered_kv_records", "key", "value"):
        if field not in row:
            raise PosgapError(f"{path}:{line}: field `{field}` is missing: not a lost-in-the-middle key-value file")
    records = row["ordered_kv_records"]
    well_formed = isinstance(records, list) and all(
        isinstance(r, list) and len(r) == 2 and all(isinstance(x, str) for x in r) for r in records
    )
    if not well_formed:
        raise PosgapError(f"{path}:{line}: field `ordered_kv_records`: expected a list of [key, value] strings")
    if [row["key"], row["value"]] not in records:
        raise PosgapError(f"{path}:{line}: field `key`: no record holds the queried key with its value")
    return [tuple(record) for record in records], row["key"]


def read_litm_qa(path: Path) -> Iterator[tuple[int, Example]]:
    """Yields (line, example) of the lost-in-the-middle question-answering file:
    `question, answers, ctxs[{title, text, isgold}]`."""
    for line, row in read_jsonl(path):
        try:
            contexts = [(bool(c["isgold"]), Document(title=c["title"], text=c["text"])) for c in row["ctxs"]]
            example = Example(
                id=f"qa-{line:05d}",
                question=row["question"],
                answers=row["answers"],
                gold=[document for gold, document in contexts if gold],
                distractors=[document for gold, document in contexts if not gold],
            )
        except KeyError as error:
            raise PosgapError(f"{path}:{line}: field `{error.args[0]}` is missing") from None
        except (TypeError, ValueError) as error:
            reason = str(error).splitlines()
            raise PosgapError(f"{path}:{line}: wrong schema: {' '.join(reason[:3])}") from None
        yield line, example


def take_lines(examples: Iterator[tuple[int, AnyExample | None]], first: int, last: int) -> Iterator[AnyExample | None]:
    """What was read from lines `first` to `last`, counted from 1 (`last` 0: to the end)."""
    for line, example in examples:
        if last and line > last:
            return
        if line >= first:
            yield example
