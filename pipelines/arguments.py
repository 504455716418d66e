"""A run's arguments, checked against the pipeline's parameters before anything is sent."""

import json
import math
from collections.abc import Callable
from typing import Any

from posgap.foundation.errors import BadOption, PosgapError, suggestion
from posgap.foundation.fields import plain_type
from posgap.kubeflow.form import flat_settings, settable, unknown
from posgap.options.pipelines import PipelineArguments
from posgap.pipelines.forms import FORMS, SETTINGS, fields_of, fill_form
from posgap.tasks.task_file import definition_of, is_file


def arguments(config: PipelineArguments, parameters: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The complete arguments of a run: as in `check_arguments`, but a missing parameter raises `PosgapError`, too."""
    values = check_arguments(config, parameters)
    required = [n for n, spec in parameters.items() if "defaultValue" not in spec and not spec.get("isOptional")]
    missing = [name for name in required if name not in values]
    if missing:
        wanted = " ".join(f"--param {name}=..." for name in missing)
        raise PosgapError(f"the pipeline needs {', '.join(missing)}: give {wanted}")
    return values


def declared_parameters(pipeline: str) -> dict[str, dict[str, Any]]:
    """Returns the parameters of this version's pipeline of that name, by its form: as at compilation, but without
    descriptions, defaults and choices."""
    return {
        name: {"parameterType": _TYPES.get(plain_type(field), "STRING"), "isOptional": not field.is_required()}
        for name, field in sorted(fields_of(FORMS[pipeline]).items())
    }


def check_arguments(config: PipelineArguments, parameters: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The values of `--param`, and of the tiny model's parameters with `--smoke`, in the compiled pipeline's types.

    Raises `PosgapError` for an unknown name, in `settings` too, or a value that does not fit the type.
    """
    values: dict[str, Any] = dict(config.param)
    if config.smoke:
        from posgap.pipelines.smoke import PARAMETERS

        values = {name: value for name, value in PARAMETERS.items() if name in parameters} | values
    if is_file(str(values.get("task", ""))):
        values["task"] = definition_of(values["task"])  # which no step could read here
    values = fill_form(values, {name: spec.get("literals", ()) for name, spec in parameters.items()})
    wrong = list(unknown(flat_settings(values[SETTINGS]))) if SETTINGS in values else []
    if wrong:
        raise PosgapError("; ".join(wrong))
    return {name: _value(name, value, parameters) for name, value in values.items()}


def _value(name: str, value: Any, parameters: dict[str, dict[str, Any]]) -> Any:
    if name not in parameters:
        known = [*parameters, *(settable() if SETTINGS in parameters else ())]
        hint = suggestion(name, known, f"there are {', '.join(parameters)}")
        raise BadOption(f"--param {name}: the pipeline has no such parameter; {hint}")
    kind = parameters[name]["parameterType"]
    parse, wording = _KINDS.get(kind, (str, "text"))
    if isinstance(value, str):
        try:
            value = parse(value)
        except ValueError:
            raise PosgapError(f"--param {name}: {value!r} is not {wording}") from None
    offered = parameters[name].get("literals")
    if offered and value not in offered:
        # KFP's form offers nothing else, and newer servers take nothing else.
        names = [str(choice) for choice in offered]
        hint = suggestion(str(value), names, f"choose from {', '.join(names)}")
        raise BadOption(f"--param {name}: the pipeline does not offer {value!r}; {hint}")
    return value


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _json(kind: type) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError(text)
        return value

    return parse


_TYPES = {int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE", bool: "BOOLEAN", list: "LIST", dict: "STRUCT"}
_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "NUMBER_INTEGER": (int, "a whole number"),
    "NUMBER_DOUBLE": (_number, "a number"),
    "BOOLEAN": (_truth, "true or false"),
    "LIST": (_json(list), "a JSON list, like [1, 5]"),
    "STRUCT": (_json(dict), 'a JSON object, like {"pool": "gpu"}'),
}
