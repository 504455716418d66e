"""A pipeline's form, from a config."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from posgap.foundation import yaml_text
from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import (
    IN_SETTINGS,
    MAX_SETTINGS,
    SettingsText,
    choices_of,
    parse_settings,
    plain_type,
    settings_text,
)
from posgap.kubeflow.form import settable
from posgap.options.base import Config
from posgap.options.preflight import PlacedConfig, PreflightConfig
from posgap.options.watch import WatchConfig


class WatchFormConfig(PlacedConfig):
    """The form of the pipeline that watches the champion."""

    data_eval: str = Field(
        description="examples to sweep the champion on; if it is the beginning of the names of several versions, the "
        "newest is taken"
    )
    mitigate: SettingsText = Field(
        WatchConfig.default("mitigate"), description=str(WatchConfig.model_fields["mitigate"].description)
    )
    namespace: str = Field(
        WatchConfig.default("namespace"), description=str(WatchConfig.model_fields["namespace"].description)
    )


FORMS: dict[str, type[Config]] = {
    "mitigation": PreflightConfig,
    "watch": WatchFormConfig,
}  # of this version's pipelines
SETTINGS = "settings"  # the parameter for settings without a field of their own
_NO_FIELDS = {"out", "force", "trainer"}  # of a config, that are no parameters of a pipeline


def fields_of(config: type[Config]) -> dict[str, FieldInfo]:
    """The fields of `config` that a form asks for, by name."""
    fields = config.model_fields.items()
    return {name: field for name, field in fields if name not in _NO_FIELDS and IN_SETTINGS not in field.metadata}


def form(config: type[Config], **defaults: Any) -> Callable[[Callable], Callable]:
    """Gives the fields of `config` as parameters to a pipeline function that takes them by name (`**parameters`), with
    its defaults or these.

    KFP reads names, types and defaults off the signature, and descriptions off the docstring.
    """
    fields = fields_of(config)

    def wrap(function: Callable) -> Callable:
        @functools.wraps(function)
        def pipeline(*values: Any) -> Any:
            # KFP calls it with a value for every parameter, in the signature's order.
            return function(**dict(zip(fields, values, strict=True)))

        described = "\n".join(f"    {name}: {field.description}." for name, field in fields.items())
        pipeline.__doc__ = f"{function.__doc__}\n\nArgs:\n{described}\n"
        signature = inspect.Signature([_parameter(config, name, defaults) for name in fields])
        pipeline.__signature__ = signature  # type: ignore[attr-defined]
        return pipeline

    return wrap


def dropdowns(offered: Mapping[str, Iterable[str]]) -> Callable[[Any], Any]:
    """Gives parameters of a pipeline, by name, their possible values as the specification's `literals`; KFP's UI shows
    these as a dropdown.

    The SDK has no way to declare them: `typing.Literal` does not compile in kfp 2.17 (kubeflow/pipelines, issue 11385).
    They go into the pipeline's own message, so that the SDK writes them and checks them by the specification.
    """

    def complete(pipeline: Any) -> Any:
        for name, values in offered.items():
            for value in values:
                pipeline.pipeline_spec.root.input_definitions.parameters[name].literals.add(string_value=value)
        return pipeline

    return complete


def fill_form(values: Mapping[str, Any], offered: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns what to fill into a form for `values`. Names without a field, and methods that its dropdown does not
    offer, go into `settings`, if the form has this field; the pipeline would refuse them as values of its own.

    `offered` has the dropdown's values of each field, none if it has no dropdown. A value given by its own name takes
    precedence over `settings`. Names that no stage has stay in place. Raises `PosgapError` if `settings` is no YAML.
    """
    if SETTINGS not in offered:
        return dict(values)
    taken = settable()
    unoffered = {n for n in values if n in offered and offered[n] and values[n] not in offered[n]}
    apart = {n for n in values if n in taken and (n not in offered or (n in unoffered and _can_be(n, values[n])))}
    kept = {name: value for name, value in values.items() if name not in apart}
    try:
        said = parse_settings(settings_text(values.get(SETTINGS, "")))
    except ValueError as error:
        raise PosgapError(f"{SETTINGS}: {error}") from None
    said |= {name: _plain(values[name]) for name in values if name in apart}
    return kept | ({SETTINGS: settings_text(said)} if apart or isinstance(values.get(SETTINGS), dict) else {})


def _can_be(name: str, value: Any) -> bool:
    """Returns whether `settings` may give this value to a field whose dropdown does not offer it: a misspelt name is
    refused."""
    choices = choices_of(PreflightConfig.model_fields[name])
    return choices is None or choices.takes(str(value))


def _plain(value: Any) -> Any:
    """Returns the value of a text in YAML, so that the way it was given makes no difference; a text, if it is none."""
    if not isinstance(value, str):
        return value
    try:
        return yaml_text.parse_yaml(value.encode("utf-8", "replace"), "text", "settings", MAX_SETTINGS, typed=True)
    except PosgapError:
        return value


def _parameter(config: type[Config], name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    field = config.model_fields[name]
    default = inspect.Parameter.empty if field.is_required() else defaults.get(name, config.default(name))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain_type(field))
