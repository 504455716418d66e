"""Synthetic examples for a task, where nobody has any to give."""

from collections.abc import Iterator

from pydantic import ValidationError

from posgap.data.config import MakeConfig
from posgap.data.generators import GENERATORS
from posgap.foundation.errors import PosgapError, first_fault
from posgap.tasks.examples import AnyExample
from posgap.tasks.task import Task


def made_examples(task: Task, n_examples: int, n_docs: int, seed: int) -> Iterator[AnyExample]:
    """Yields examples of `n_docs` documents like those that `posgap data make` writes for this task.

    Equal arguments give equal examples. Raises `PosgapError` where there is no synthetic data for the task, or none
    with so many documents.
    """
    if not task.synthetic:
        raise PosgapError(f"task {task.name}: there is no synthetic data for it; give examples by --examples")
    generator = GENERATORS[task.synthetic]
    values = {"n_examples": n_examples, generator.size: n_docs, "seed": seed, "needles": task.n_gold}
    try:
        config = MakeConfig(kind=generator.name, out="-", **{n: values[n] for n in generator.takes() if n in values})
    except ValidationError as error:
        raise PosgapError(f"making examples for the task {task.name}: {first_fault(error)}") from None
    return generator.make(**generator.options(config))
