"""The data that `posgap data make` makes: each kind of synthetic data, and distractors for questions without any."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from posgap.data.reading import read_examples
from posgap.data.synthetic import (
    animal_examples,
    favorite_examples,
    needle_examples,
    two_hop_examples,
    uuid_examples,
    uuid_records,
)
from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import OptionalInputPath
from posgap.foundation.registry import Parameters, Registry
from posgap.tasks.examples import AnyExample, Example, KVExample
from posgap.tasks.fields import MAX_DOCS

log = logging.getLogger(__name__)
_needles = partial(needle_examples, facts=3, digits=7)


class QAParameters(Parameters):
    examples: OptionalInputPath = Field(
        None, description="qa: imported examples, .jsonl or .jsonl.gz; their own distractors are dropped"
    )
    distractors: Literal["random", "bm25"] = Field(
        "random",
        description="qa: random: drawn by the seed; bm25: those that BM25 ranks highest for the question, in its order",
    )


@dataclass(frozen=True)
class Generator:
    """One kind of data that `data make` writes, a choice as foundation/registry.py describes.

    `make` yields examples, or raises `PosgapError`. It is called with the options of this kind, by name: those of
    `parameters`, `seed`, `n_docs` (the number of `items` of an example), and `n_examples`, unless not `counted`. Equal
    options make equal examples. `usual`, `least` and `most` are the default, smallest and largest `n_docs`. `rows`
    yields what is written instead of examples, if a kind has the layout of a public file.
    """

    name: str
    help: str
    make: Callable[..., Iterator[AnyExample]]
    parameters: type[Parameters] = Parameters
    items: str = "documents"
    usual: int = 20
    least: int = 1
    most: int = MAX_DOCS
    counted: bool = True
    rows: Callable[..., Iterator[dict]] | None = None

    def takes(self) -> list[str]:
        """The names of the options of this kind, besides those that place its file."""
        shared = ["seed", "n_docs"] + ["n_examples"] * self.counted
        return list(dict.fromkeys([*shared, *self.parameters.model_fields]))

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of `make` by name: the given ones that this kind takes, and the defaults.

        Raises `PosgapError` for more or fewer documents than it makes.
        """
        values = self.parameters().model_dump() | {name: given[name] for name in self.takes() if name in given}
        n_docs = self.usual if values.get("n_docs") is None else values["n_docs"]
        if not self.least <= n_docs <= self.most:
            raise PosgapError(f"`n_docs` of {self.name} must be from {self.least} to {self.most}, got {n_docs}")
        return values | {"n_docs": n_docs}


def _questions_with_distractors(
    examples: Path | None, n_docs: int, distractors: str, seed: int
) -> Iterator[AnyExample]:
    """Yields the examples of a file with distractors from each other's gold documents."""
    from posgap.data.distractors import with_distractors, with_ranked_distractors

    if not examples:
        raise PosgapError("data make qa: give the questions by --examples")
    questions = read_examples(examples)
    plain = []
    for each in questions:
        if isinstance(each, KVExample):
            raise PosgapError(
                f"{examples}: holds key-value records, but distractors are drawn from passages; make key-value data "
                "with `data make kv`"
            )
        plain.append(Example(id=each.id, question=each.question, answers=each.answers, gold=each.gold, distractors=[]))
    drawn: Iterator[AnyExample | None]
    drawn = with_ranked_distractors(plain, n_docs) if distractors == "bm25" else with_distractors(plain, n_docs, seed)
    made: list[AnyExample] = list(filter(None, drawn))
    if not made:
        raise PosgapError(
            f"{examples}: no question has {n_docs - 1} passages of other questions without its answer; lower "
            "n_docs or give more questions"
        )
    if len(made) < len(plain):
        log.info("left out %d: too few passages without their answer", len(plain) - len(made))
    return iter(made)


GENERATORS: Registry[Generator] = Registry(
    "kind of data",
    "posgap.generators",
    Generator(
        "kv",
        "synthetic UUID records in the format of the public lost-in-the-middle file",
        uuid_examples,
        items="records",
        usual=75,
        rows=uuid_records,
    ),
    Generator(
        "qa",
        "gives each question of `examples` distractors, passages of other questions that contain none of its answers",
        _questions_with_distractors,
        QAParameters,
        counted=False,
    ),
    Generator("needle", "questions for the task qa, each for one number among invented facts", _needles, most=5000),
    Generator("two-hop", "two-hop questions about people and their contacts", two_hop_examples, least=3, most=24),
    Generator(
        "choice",
        "questions for the tasks options and judge: which of some sentences is about an animal?",
        animal_examples,
        items="items",
        usual=4,
        least=2,
        most=16,
    ),
    Generator(
        "favorite",
        "questions for the task qa, each for one person's favorite animal",
        favorite_examples,
        usual=5,
        least=2,
        most=30,
    ),
)
