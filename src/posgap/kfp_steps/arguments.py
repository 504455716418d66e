"""From the arguments of a KFP component to the config of its stage."""

from pathlib import Path
from typing import Any, TypeVar

from posgap.config import Config, Role, role
from posgap.errors import PosgapError, faults
from posgap.locations import is_uri

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any], **values: Any) -> C:
    """The config that a component's arguments describe: artifacts become their local paths.

    `settings`, if there are any, go before arguments of the same name, and `values` before both. Arguments that
    are no fields of the config (further output artifacts) are left out. Raises `PosgapError` with everything
    that is wrong, in one line.
    """
    fields, settings = config_type.model_fields, arguments.get("settings") or {}
    values = {name: value for name, value in arguments.items() if name in fields} | settings | values
    given = {name: _here(value, name in fields and role(fields[name]) is Role.INPUT) for name, value in values.items()}
    if wrong := faults(lambda: config_type(**given)):
        raise PosgapError("; ".join(wrong))
    return config_type(**given)


def _here(value: Any, is_input: bool) -> Any:
    if isinstance(value, list):
        return [_here(one, is_input) for one in value]
    path, uri = getattr(value, "path", value), getattr(value, "uri", "")
    # What no launcher has brought here (an import, in the local runner) the stage fetches itself.
    return uri if is_input and is_uri(uri) and not Path(path).exists() else path
