"""Reads a user's own task from a YAML file: the wording, the metric, and the placements of a sweep, without a package.

A config holds the definition itself, as JSON, not the file's path. So it is part of the stage's identity, and stands in
its manifest.
"""

import string
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import PosgapError, suggestion
from posgap.foundation.files import parse_as
from posgap.foundation.json_text import parse_json
from posgap.foundation.locations import as_location
from posgap.storage.cache import fetch_location
from posgap.tasks.metrics import METRICS
from posgap.tasks.placements import swept_placements
from posgap.tasks.slots import INSERTED
from posgap.tasks.task import Task, document_writer

MAX_BYTES = 65_536  # of a definition
ENDINGS = (".yaml", ".yml")
# The places that each text may have; the first ones it must have, once.
_PLACES = {
    "document": (1, ("text", "title", "number")),
    "template": (2, ("documents", "question")),
    "closed_book": (1, ("question",)),
    "target": (1, ("answer",)),
}


class TaskDefinition(BaseModel):
    """The contents of a task's file; `posgap.tasks.task.Task` explains the fields. `document` writes one document, with
    `{number}`, `{title}` and `{text}`; `placements` are a sweep's if it gets no `positions`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    template: str
    document: str = "Document [{number}](Title: {title}) {text}"
    metric: Annotated[str, AfterValidator(METRICS.require_name)] = "litm"
    max_new_tokens: int = Field(100, ge=1)
    placements: list[Annotated[int, Field(ge=1)]] = []
    closed_book: str = "{question}"
    target: str = "{answer}"
    one_wording: bool = False
    chance: float = Field(0.0, ge=0, lt=1)

    @field_validator("placements")
    @classmethod
    def _each_once(cls, placements: list[int]) -> list[int]:
        if len(set(placements)) < len(placements):
            raise ValueError("names a position twice; name each once")
        return placements

    @field_validator(*_PLACES)
    @classmethod
    def _has_its_places(cls, text: str, info) -> str:
        n_needed, places = _PLACES[info.field_name]
        try:
            parts = [(name, how, kind) for _, name, how, kind in string.Formatter().parse(text) if name is not None]
        except ValueError:
            parts = [("", "", None)]
        # Formats and attributes, as in {text:>99}, are no places either.
        if any(name not in places or how or kind for name, how, kind in parts):
            allowed = ", ".join(f"{{{place}}}" for place in places)
            raise ValueError(f"may have {allowed} and no other braces; write {{{{ and }}}} for braces")
        for place in places[:n_needed]:
            times = [name for name, *_ in parts].count(place)
            if times != 1:
                raise ValueError(f"must have {{{place}}} in it once, and has it {times} times")
        return text

    @field_validator("template")
    @classmethod
    def _three_paragraphs(cls, template: str) -> str:
        paragraphs = template.strip("\n").split("\n\n")
        in_order = len(paragraphs) == 3 and "{documents}" in paragraphs[1] and "{question}" in paragraphs[2]
        if not in_order or [line.count("{question}") for line in paragraphs[2].split("\n")] != [1, 0]:
            raise ValueError(
                "must have three paragraphs: the instruction, {documents}, and {question} with the cue for the answer "
                "on the line below it"
            )
        return template.strip("\n")

    def task(self) -> Task:
        """The task that this defines."""
        swept = partial(swept_placements, chosen=[str(placement) for placement in self.placements])
        return Task(
            **self.model_dump(exclude={"document", "placements", "chance"}),
            help=f"a task of {self.name}'s own file",
            render=document_writer(self.document),
            slots=replace(INSERTED, swept=swept) if self.placements else INSERTED,
            chance=lambda n_docs: self.chance,
        )


def is_definition(name: str) -> bool:
    """Whether the name of a task is a definition."""
    return name.startswith("{")


def is_file(name: str) -> bool:
    """Whether a task's name is a file."""
    return name.lower().endswith(ENDINGS)


def definition_of(path: str | Path) -> str:
    """The definition in a task's file, as JSON. Raises `PosgapError` if the file holds none."""
    from posgap.foundation import yaml_text  # late: few commands need yaml

    data = read_bytes(fetch_location(as_location(path)), MAX_BYTES)
    return as_definition(yaml_text.parse_yaml(data, str(path), "a task", MAX_BYTES, typed=True), str(path))


def as_definition(value: object, where: str) -> str:
    """Returns a YAML or JSON value as a definition, in JSON. Raises `PosgapError`, which names the place, if it is
    none."""
    if not isinstance(value, dict):
        raise PosgapError(f"{where}: has no task; write lines like `name: tickets` (docs/extending.md)")
    known = [*TaskDefinition.model_fields]
    unknown = [str(name) for name in value if name not in known]
    if unknown:
        hint = suggestion(unknown[0], known, f"it may have {', '.join(known)}", at_most=1)
        raise PosgapError(f"{where}: a task has no field `{unknown[0]}`; {hint}")
    return parse_as(TaskDefinition, value, where).model_dump_json(exclude_defaults=True)


def task_of(definition: str) -> Task:
    """The task of a definition in JSON."""
    return parse_as(TaskDefinition, parse_json(definition, "task"), "task").task()
