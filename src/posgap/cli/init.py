"""`posgap init`: four questions, answered by options or at the terminal, and what a first sweep needs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import ValidationError

from posgap.cli.config import InitConfig
from posgap.data.made import made_examples
from posgap.foundation import files
from posgap.foundation.errors import PosgapError, first_fault
from posgap.foundation.locations import is_address, is_uri
from posgap.foundation.printing import show
from posgap.measurement.config import SweepConfig
from posgap.tasks.reading import read_examples, write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.task import Task

CONFIG_FILE = "posgap.yaml"
MADE, NOWHERE = "made", "none"
MADE_FILE = Path("data") / "examples.jsonl.gz"
N_EXAMPLES, N_DOCS, N_CHOICES, SEED = 40, 20, 4, 0  # of made examples; some have items to choose from, a few
_HEAD = f"""\
# Options of posgap's verbs, a section each: posgap sweep --config {CONFIG_FILE}
# An option of the command comes before this file, and so does a variable (POSGAP_SWEEP_N_DOCS=10).
# `posgap config VERB` prints all options.
"""


def init(config: InitConfig) -> None:
    """Writes `posgap.yaml` into the current folder, and examples where none are given; prints the next command.

    Raises `PosgapError` where a file is there already, where an answer is missing and there is no terminal to ask at,
    and where an answer is none that a sweep takes, or examples that the task cannot ask about; nothing is written
    then. Examples on this machine are read: a sweep has at most as many documents in a prompt as all of them have.
    """
    _require_free(Path(CONFIG_FILE), config.force)
    answers = _answers(config)
    made = answers["examples"] == MADE
    swept: dict[str, Any] = {name: answers[name] for name in ("model", "task", "examples")}
    if made:
        _require_free(MADE_FILE, config.force)
        n_docs = N_CHOICES if TASKS[answers["task"]].slot_names else N_DOCS
        swept |= {"examples": MADE_FILE.as_posix(), "n_docs": n_docs}
    swept["out"] = "runs/sweep"
    try:
        checked = SweepConfig(**swept)
    except ValidationError as error:
        raise PosgapError(f"init: {first_fault(error)}") from None
    if checked.base_url:
        swept |= {"model": checked.model, "base_url": checked.base_url}
    if made:
        write_examples(MADE_FILE, list(made_examples(TASKS[answers["task"]], N_EXAMPLES, n_docs, SEED)))
    elif (
        not (is_uri(checked.examples) or is_address(checked.examples))
        and (n_docs := _documents_of_all(TASKS[checked.task], checked.examples)) < checked.n_docs
    ):
        swept["n_docs"] = n_docs
    section = yaml.safe_dump(
        {"sweep": {name.replace("_", "-"): value for name, value in swept.items()}}, sort_keys=False
    )
    with files.atomic(Path(CONFIG_FILE)) as partial:
        partial.write_text(f"{_HEAD}{_tracking(answers['tracking'])}{section}", encoding="utf-8")
    written, command = [CONFIG_FILE, *([str(MADE_FILE)] if made else [])], f"posgap sweep --config {CONFIG_FILE}"
    show(f"written: {', '.join(written)}\nnext:    {command}", {"written": written, "next": command})


def _documents_of_all(task: Task, file: Path) -> int:
    """How many documents every example of a file has; `PosgapError` where the task cannot ask about one of them."""
    examples = read_examples(file)
    n_docs = min(len(example.gold) + len(example.distractors) for example in examples)
    for example in examples:
        task.prompt(example, task.placements(n_docs)[0])
    return n_docs


def _require_free(file: Path, force: bool) -> None:
    if file.exists() and not force:
        raise PosgapError(f"{file}: is there already; edit it, or replace it with --force")


def _answers(config: InitConfig) -> dict[str, str]:
    """The answer to each question by its flag's name."""
    tasks = ", ".join(TASKS.names())
    questions: dict[str, tuple[str, str, Callable[[str], str]]] = {
        "model": ("Model: a Hugging Face folder, a name on the hub, or an endpoint's address", "Qwen/Qwen3-0.6B", str),
        "examples": (f"Examples: a file or folder, or `{MADE}` to make {N_EXAMPLES}", MADE, _examples),
        "task": (f"Task ({tasks})", "kv", _task),
        "tracking": (f"MLflow: a server's address, sqlite:///FILE, or `{NOWHERE}`", NOWHERE, str),
    }
    given = {name: str(getattr(config, name)) for name in questions}
    missing = [f"--{name}" for name, value in given.items() if not value]
    if missing and not sys.stdin.isatty():
        raise PosgapError(f"init: there is no terminal to ask at; give {', '.join(missing)}")
    for name, (question, default, check) in questions.items():
        if not given[name]:
            given[name] = click.prompt(question, default=default, value_proc=check)
    try:
        _examples(given["examples"])
    except click.BadParameter as error:
        raise PosgapError(f"--examples: {error.message}") from None
    return given


def _examples(word: str) -> str:
    """The examples of this name; a file that is not there is asked for again."""
    if not (word == MADE or is_uri(word) or is_address(word) or Path(word).expanduser().exists()):
        raise click.BadParameter(f"{word}: no such file or folder")
    return word


def _task(word: str) -> str:
    """The task of this name; what is no task is asked for again."""
    try:
        return TASKS.checked(word)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _tracking(place: str) -> str:
    line = yaml.safe_dump({"tracking": "sqlite:///mlflow.db" if place == NOWHERE else place})
    return f"# Nothing is tracked; for runs in MLflow: {line}" if place == NOWHERE else line
