"""A pipeline's form, from a config."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from posgap.config import Config, plain_type

NO_FIELDS = {"out", "force", "trainer", "gpus_here"}  # of a config, that are no parameters of a pipeline


def form(config: type[Config], **defaults: Any) -> Callable[[Callable], Callable]:
    """Gives the fields of `config` as parameters to a pipeline function that takes them by name (`**parameters`), with
    its defaults or these.

    KFP reads names, types and defaults off the signature, and descriptions off the docstring.
    """
    fields = {name: field for name, field in config.model_fields.items() if name not in NO_FIELDS}

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


def _parameter(config: type[Config], name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    field = config.model_fields[name]
    default = inspect.Parameter.empty if field.is_required() else defaults.get(name, config.default(name))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain_type(field))
