"""The types of config fields that tasks bring: tasks, metrics, placements, lengths, templates."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from posgap.foundation.bounds import read_text
from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import VERBATIM
from posgap.foundation.locations import as_location
from posgap.foundation.registry import split_commas
from posgap.storage.cache import fetch_location
from posgap.tasks.metrics import METRICS
from posgap.tasks.positions import parse_depths, parse_length, parse_positions, parse_shard
from posgap.tasks.registry import TASKS
from posgap.tasks.task import BASELINES
from posgap.tasks.task_file import as_definition, definition_of, is_file

MAX_DOCS = 100_000


def _read_definition(value: Any) -> Any:
    try:
        if isinstance(value, dict):
            return as_definition(value, "the task")
        return definition_of(value) if is_file(str(value)) else value
    except PosgapError as error:
        raise ValueError(str(error)) from None


def _as_text(value: Any) -> Any:
    # KFP passes lists of numbers with whole numbers as floats.
    return f"{value:.12g}" if isinstance(value, int | float) else value


def _placement(text: str) -> str:
    parse_positions(text)
    return text


def _of_file(path: str | Path) -> str:
    try:
        return read_text(fetch_location(as_location(path)))
    except PosgapError as error:
        raise ValueError(f"cannot be read as a file, and is not a template: {error}") from None


def _chat_template(value: Any) -> Any:
    # No path of a file has what every template has; so that a sweep's settings, which hold the text, can be used again.
    if not isinstance(value, str | Path) or not value or "{" in str(value):
        return value
    text = _of_file(value)
    if "{" not in text:
        raise ValueError("is not a template: it has nothing in braces")
    return text


def _lengths(value: Any) -> Any:
    return split_commas(value) if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]


def _depths(value: Any) -> Any:
    # In Python and from KFP it may be a number, or a list of them.
    numbers = value if isinstance(value, list | tuple) else [value]
    text = ",".join(f"{number:g}" if isinstance(number, int | float) else str(number) for number in numbers)
    parse_depths(text)
    return text


def _shard(text: str) -> str:
    if text:
        parse_shard(text)
    return text


GivenTask = Annotated[str, TASKS, VERBATIM, BeforeValidator(_read_definition)]  # which another config checks
TaskName = Annotated[str, TASKS, VERBATIM, BeforeValidator(_read_definition), AfterValidator(TASKS.require_name)]
OptionalTaskName = Annotated[
    str, TASKS, VERBATIM, BeforeValidator(_read_definition), AfterValidator(TASKS.require_name_if_any)
]
OptionalMetricName = Annotated[str, METRICS, AfterValidator(METRICS.require_name_if_any)]
PlacementText = Annotated[str, BeforeValidator(_as_text), AfterValidator(_placement)]
Lengths = Annotated[
    list[Annotated[str, BeforeValidator(_as_text), AfterValidator(parse_length)]], BeforeValidator(_lengths)
]
Depths = Annotated[str, BeforeValidator(_depths)]
QuestionPlace = Literal["after", "before", "both"]
Placements = Annotated[list[PlacementText], BeforeValidator(split_commas)]
BaselineNames = Annotated[list[Annotated[str, AfterValidator(BASELINES.require_name)]], BeforeValidator(split_commas)]
ChatTemplateText = Annotated[str, VERBATIM, BeforeValidator(_chat_template)]
Shard = Annotated[str, AfterValidator(_shard)]
