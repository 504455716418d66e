"""The types of config fields: paths and their roles, and lists and tables in the forms that callers write them."""

import json
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, StringConstraints
from pydantic.fields import FieldInfo

from posgap.foundation.errors import PosgapError
from posgap.foundation.json_text import parse_json
from posgap.foundation.locations import Location, as_location, is_address, is_uri, split_uri
from posgap.foundation.registry import Registry, split_commas, unset_if_empty


class Role(Enum):
    """The role of a path in its stage."""

    INPUT = "input"
    PLACE = "place"  # a location that the stage lists itself; never fetched as input
    OUTPUT = "output"
    WORK = "work"  # a folder for checkpoints and the like, which does not change any result


VERBATIM = "verbatim"  # marks a program; nothing in it is hidden, as what looks like a secret is its code
MAX_SETTINGS = 65_536  # bytes; a chat template may be among them
IN_SETTINGS = "in settings"  # marks a field that a pipeline's form does not ask for, but takes in `settings`
POSITIONAL = "positional"  # marks a field that the command line takes as an argument, not as an option
RARE = "rare"  # marks a field whose option only `--help-all` shows if `--help` is long
NO_OPTION = "no option"  # marks a field that a policy file, a pipeline or Python sets, and no option


def location_if_any(value: Any) -> Any:
    """The location, or None for an empty string."""
    return as_location(unset_if_empty(value))


FUNCTION = "python:"  # before the place of a function that answers in place of a model


def is_function(text: Any) -> bool:
    """Whether a model is named by the place of a function in Python, `python:package.module:name`."""
    return isinstance(text, str) and text.startswith(FUNCTION)


def is_endpoint(text: Any) -> bool:
    """Whether a model is named by an endpoint's address, `http://host/v1` or `http://host/v1#name`."""
    return isinstance(text, str) and text.startswith(("http://", "https://"))


def _as_model_path(value: Any) -> Any:
    if is_endpoint(value):
        raise ValueError("is an address; give a model's folder or its name on the hub")
    return str(as_location(value)) if str(value).startswith(("s3:/", "~")) else value


def _on_this_machine(location: Location | None) -> Location | None:
    if is_uri(location):
        raise ValueError("must be on this machine, not in S3")
    return _require_writable(location)


def in_s3(location: Location) -> Location:
    """The location itself; raises `ValueError` if it is not in S3."""
    if not is_uri(location):
        raise ValueError("must be in S3, like s3://bucket/work: the machines of the job share no disk")
    return location


def _require_writable(location: Location | None) -> Location | None:
    if is_address(location):
        raise ValueError("is a read-only address: write to this machine or to s3://bucket/key")
    return location


def _below_bucket(location: Location | None) -> Location | None:
    if is_uri(location) and not split_uri(location)[1]:
        raise ValueError("names only a bucket: write s3://bucket/folder")
    return location


def _paths(value: Any) -> Any:
    # The command line passes a list of paths, MLproject a single text with commas.
    texts = [value] if isinstance(value, str | Path) else value
    return list(filter(None, ",".join(map(str, texts)).split(",")))


def from_json(value: Any) -> Any:
    """Parses JSON text, as which the command line and MLproject pass lists and dictionaries; keeps other values."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value or "null", "text")
    except PosgapError as error:
        raise ValueError(f"must be JSON; {error}") from None


def parse_settings(text: str) -> dict[str, Any]:
    """Parses YAML or JSON into values by name. Raises `ValueError` if it holds anything else."""
    from posgap.foundation import yaml_text  # late: few verbs need yaml

    try:
        values = yaml_text.parse_yaml(text.encode("utf-8", "replace"), "text", "settings", MAX_SETTINGS, typed=True)
    except PosgapError as error:
        raise ValueError(f"must be YAML; {error}") from None
    if not isinstance(values, dict | None) or not all(isinstance(name, str) for name in values or ()):
        raise ValueError("must be like {shards: 4, learning_rate: 1e-5}, or lines of `shards: 4`")
    return values or {}


def settings_text(value: Any) -> Any:
    """Values by name as a text that `parse_settings` reads; keeps a text.

    It is JSON, which is YAML in one line: fields of KFP's form have one.
    """
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _readable(text: str) -> str:
    parse_settings(text)
    return text


def pairs(value: Any) -> Any:
    """A dictionary from what callers write for it: a list of NAME=VALUE on the command line, JSON in MLproject."""
    listed = [value] if isinstance(value, str) else value
    if isinstance(listed, dict):
        return listed
    if len(listed) == 1 and listed[0].lstrip().startswith("{"):
        return from_json(listed[0])
    parts = [each.partition("=") for each in listed]
    for name, equals, _ in parts:
        if not name or not equals:
            raise ValueError("write NAME=VALUE")
    return {name: text for name, _, text in parts}


def registered_name(text: str) -> str:
    """The name of a model in MLflow's registry. `ValueError` if MLflow would not take it, or if a search for it
    could be made to say something else."""
    if not re.fullmatch(r"\w[\w .-]{0,199}", text):
        raise ValueError("write at most 200 letters, digits, spaces and ._- that begin with a letter or digit")
    return text


def _strings(value: Any) -> Any:
    # A single value may be given without a list.
    text = isinstance(value, str) and value and not value.lstrip().startswith("[")
    return [value] if text else from_json(value) or []


# Paths may be S3 URIs, and inputs may also be addresses. Inside a stage they are local paths (work folders excepted),
# which is what the type checker sees. Code that runs before inputs are fetched must check `is_uri` and `is_address`.
if TYPE_CHECKING:
    Local = Path
else:
    Local = Location
InputPath = Annotated[Local, Role.INPUT, BeforeValidator(as_location)]
OptionalInputPath = Annotated[Local | None, Role.INPUT, BeforeValidator(location_if_any)]
InputPaths = Annotated[list[Annotated[Local, BeforeValidator(as_location)]], Role.INPUT, BeforeValidator(_paths)]
ModelPath = Annotated[str, Role.INPUT, BeforeValidator(_as_model_path)]  # a Hugging Face folder
ModelName = ModelPath  # such a folder, or a model's name on the hub, NAME or NAME@REVISION
MODEL = "Hugging Face model folder, hub name, or models:/NAME@champion in MLflow"
Place = Annotated[str, Role.PLACE]
_Writable = AfterValidator(_require_writable)
OutputPath = Annotated[Local, Role.OUTPUT, BeforeValidator(as_location), AfterValidator(_below_bucket), _Writable]
OptionalOutputPath = Annotated[
    Local | None, Role.OUTPUT, BeforeValidator(location_if_any), AfterValidator(_below_bucket), _Writable
]
WorkPath = Annotated[Location | None, Role.WORK, BeforeValidator(location_if_any), _Writable]
OnThisMachine = AfterValidator(_on_this_machine)
OptionalReport = Annotated[Local | None, BeforeValidator(location_if_any), OnThisMachine]
StopStrings = Annotated[list[Annotated[str, StringConstraints(min_length=1)]], BeforeValidator(_strings)]
Arguments = Annotated[dict[str, str], BeforeValidator(pairs)]
Allowable = Literal[
    "task", "prompt", "template", "question", "shuffle", "max_new_tokens", "decoding", "system", "template_args",
    "max_thinking_tokens", "stop", "date", "body", "dtype", "backend", "base", "anchor", "trial",
    "reference-trial", "distractors",
]  # fmt: skip
Allowed = Annotated[list[Allowable], BeforeValidator(split_commas)]
Values = Annotated[dict[str, Any], BeforeValidator(from_json)]
SettingsText = Annotated[str, BeforeValidator(settings_text), AfterValidator(_readable)]


def choices_of(field: FieldInfo) -> Registry[Any] | None:
    """The choices that a field offers, or None if it is not a choice."""
    return next((mark for mark in field.metadata if isinstance(mark, Registry)), None)


def plain_type(field: FieldInfo) -> type:
    """Returns the type of a field in KFP, which has only plain types: int, float, bool, list, dict, or else str."""
    kind: Any = get_origin(field.annotation) or field.annotation
    return kind if kind in (int, float, bool, list, dict) else str


RegisteredName = Annotated[str, AfterValidator(registered_name)]
OptionalRegisteredName = Annotated[str, AfterValidator(lambda text: text and registered_name(text))]


def role(field: FieldInfo) -> Role | None:
    """The role of a config field that is a path; None for a plain parameter."""
    return next((mark for mark in field.metadata if isinstance(mark, Role)), None)


ALLOW = f"what may differ between the sweeps, separated by commas: any of {', '.join(get_args(Allowable))}"
