"""Synthetic examples for a task, where nobody has any to give."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from posgap.data.animals import animal_examples
from posgap.data.config import MakeChoiceConfig, MakeKVConfig, MakeNeedleConfig, MakeSpansConfig, MakeTwoHopConfig
from posgap.data.needles import needle_examples
from posgap.data.two_hop import two_hop_examples
from posgap.data.uuids import uuid_records
from posgap.foundation.errors import PosgapError, first_fault
from posgap.tasks.examples import AnyExample, KVExample
from posgap.tasks.task import Task


def made_examples(task: Task, n_examples: int, n_docs: int, seed: int) -> Iterator[AnyExample]:
    """Yields examples of `n_docs` documents like those that `posgap data make` writes for this task.

    Equal arguments give equal examples. Raises `PosgapError` where there is no synthetic data for the task, or none
    with so many documents.
    """
    if task.synthetic not in _MAKERS:
        raise PosgapError(f"task {task.name}: there is no synthetic data for it; give examples by --examples")
    config_type, make = _MAKERS[task.synthetic]
    sizes = {"n_keys" if "n_keys" in config_type.model_fields else "n_docs": n_docs}
    if "needles" in config_type.model_fields:
        sizes["needles"] = task.n_gold
    try:
        config = config_type(out="-", n_examples=n_examples, seed=seed, **sizes)
    except ValidationError as error:
        raise PosgapError(f"making examples for the task {task.name}: {first_fault(error)}") from None
    return make(config)


def made(config: MakeNeedleConfig | MakeSpansConfig | MakeTwoHopConfig | MakeChoiceConfig) -> Iterator[AnyExample]:
    """Yields the examples that a config of `posgap data make` asks for."""
    return next(make for kind, make in _MAKERS.values() if kind is type(config))(config)


def _kv(config: MakeKVConfig) -> Iterator[AnyExample]:
    for number, row in enumerate(uuid_records(config.n_examples, config.n_keys, config.seed), start=1):
        key, value, records = row["key"], row["value"], row["ordered_kv_records"]
        yield KVExample(id=f"kv-{number:05d}", question=key, answers=[value], key=key, value=value, records=records)


_MAKERS: dict[str, tuple[Any, Callable[[Any], Iterator[AnyExample]]]] = {
    "kv": (MakeKVConfig, _kv),
    "needle": (MakeNeedleConfig, lambda c: needle_examples(c.n_examples, c.n_docs, c.facts, c.digits, c.seed)),
    "spans": (MakeSpansConfig, lambda c: needle_examples(c.n_examples, c.n_docs, c.facts, c.digits, c.seed, c.needles)),
    "two-hop": (MakeTwoHopConfig, lambda c: two_hop_examples(c.n_examples, c.n_docs, c.seed)),
    "choice": (MakeChoiceConfig, lambda c: animal_examples(c.n_examples, c.n_docs, c.seed, c.hard)),
}
