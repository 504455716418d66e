"""Makes synthetic examples for a task if no file is given."""

from collections.abc import Iterator
from typing import Any

from posgap.data.generators import GENERATORS, Generator
from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import AnyExample
from posgap.tasks.task import Task


def made_examples(task: Task, n_examples: int, n_docs: int, seed: int) -> Iterator[AnyExample]:
    """Yields examples of `n_docs` documents as `posgap data make` writes them for this task.

    Equal arguments give equal examples. Raises `PosgapError` if the task has no synthetic data, or none with this
    number of documents.
    """
    if not task.synthetic:
        raise PosgapError(f"task {task.name}: there is no synthetic data for it; give examples by --examples")
    generator, values = _generator_options(task, n_examples, n_docs, seed)
    try:
        arguments = generator.arguments(values)
    except PosgapError as error:
        raise PosgapError(f"making examples for the task {task.name}: {error}") from None
    return generator.make(**arguments)


def making_command(task: Task, n_examples: int, n_docs: int, seed: int, out: str) -> str:
    """The command that writes the examples of `made_examples` to a file, which needs no quotes."""
    generator, values = _generator_options(task, n_examples, n_docs, seed)
    options = (f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    return f"posgap data make {generator.name} {' '.join(options)} --out {out}"


def _generator_options(task: Task, n_examples: int, n_docs: int, seed: int) -> tuple[Generator, dict[str, Any]]:
    """The kind of synthetic data for a task, and its options by name."""
    generator = GENERATORS[task.synthetic]
    values = {"n_examples": n_examples, "n_docs": n_docs, "seed": seed}
    return generator, {name: values[name] for name in generator.takes() if name in values}
