"""Tasks of one's own as a YAML file: the wording, the metric, and the placements of a sweep, without a package.

A config holds the definition itself, as JSON, and not the file's path: so it is part of what a stage is known by, and
stands in its manifest.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parsed
from posgap.foundation.locations import as_location
from posgap.storage.cache import fetch
from posgap.tasks.examples import Document
from posgap.tasks.metrics import METRICS
from posgap.tasks.placements import Placement, swept_placements
from posgap.tasks.slots import Slots, inserted
from posgap.tasks.task import Task

MAX_BYTES = 65_536  # of a definition
ENDINGS = (".yaml", ".yml")
_PARTS = {"document": ("{text}",), "template": ("{documents}", "{question}"), "closed_book": ("{question}",)}


class TaskDefinition(BaseModel):
    """What a task's file says; `posgap.tasks.task.Task` explains the fields. `document` writes one document, with
    `{number}`, `{title}` and `{text}`; `placements` are those of a sweep that is told no `positions`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    template: str
    document: str = "Document [{number}](Title: {title}) {text}"
    metric: Annotated[str, AfterValidator(METRICS.checked)] = "litm"
    max_new_tokens: int = Field(100, ge=1)
    placements: list[int] = []
    closed_book: str = "{question}"
    target: str = "{answer}"
    one_wording: bool = False
    chance: float = Field(0.0, ge=0, lt=1)

    @field_validator("template")
    @classmethod
    def _three_paragraphs(cls, template: str) -> str:
        paragraphs = template.strip("\n").split("\n\n")
        if len(paragraphs) != 3 or len(paragraphs[-1].split("\n")) != 2:
            raise ValueError(
                "must have three paragraphs: the instruction, {documents}, and {question} with the cue for the answer "
                "on the line below it"
            )
        return template.strip("\n")

    @field_validator(*_PARTS)
    @classmethod
    def _has_its_places(cls, text: str, info) -> str:
        try:
            text.format(documents="", question="", number=1, title="", text="")
        except (LookupError, ValueError, AttributeError):
            raise ValueError("has other braces than those of its places; write {{ and }} for braces") from None
        if missing := [place for place in _PARTS[info.field_name] if place not in text]:
            raise ValueError(f"must have {missing[0]} in it")
        return text

    def task(self) -> Task:
        """The task that this defines."""
        slots = Slots(inserted, swept=partial(_placements, self.placements)) if self.placements else Slots(inserted)
        return Task(
            name=self.name,
            help=f"a task of {self.name}'s own file",
            template=self.template,
            render=partial(_written, self.document),
            metric=self.metric,
            max_new_tokens=self.max_new_tokens,
            slots=slots,
            closed_book=self.closed_book,
            target=self.target,
            one_wording=self.one_wording,
            chance=lambda n_docs: self.chance,
        )


def _written(document: str, documents: Sequence[Document]) -> str:
    return "\n".join(document.format(number=i, title=d.title, text=d.text) for i, d in enumerate(documents, start=1))


def _placements(positions: Sequence[int], n_docs: int, n_gold: int) -> list[Placement]:
    return swept_placements(n_docs, n_gold, [str(position) for position in positions])


def is_definition(name: str) -> bool:
    """Whether the name of a task is a definition."""
    return name.startswith("{")


def definition_of(path: str | Path) -> str:
    """The definition in a task's file, as JSON. Raises `PosgapError` where the file holds none."""
    from posgap.foundation import yaml_text  # late: few commands need yaml

    try:
        data = fetch(as_location(path)).read_bytes()
    except OSError as error:
        raise PosgapError(f"{path}: {error.strerror}") from None
    value = yaml_text.parse(data, str(path), "a task", MAX_BYTES, typed=True)
    return parsed(TaskDefinition, value, str(path)).model_dump_json(exclude_defaults=True)


def task_of(definition: str) -> Task:
    """The task of a definition in JSON."""
    try:
        value = json.loads(definition)
    except ValueError as error:
        raise PosgapError(f"task: is no definition: {error}") from None
    return parsed(TaskDefinition, value, "task").task()
