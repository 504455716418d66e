"""From the arguments of a KFP component to the config of its stage."""

from pathlib import Path
from typing import Any, TypeVar

from posgap.config import Config, Role, role
from posgap.locations import is_uri

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any]) -> C:
    """The config that a component's arguments describe: artifacts become their local paths.

    Arguments that are no fields of the config (further output artifacts) are left out.
    """
    fields = config_type.model_fields
    return config_type(
        **{name: _here(value, role(fields[name]) is Role.INPUT) for name, value in arguments.items() if name in fields}
    )


def _here(value: Any, is_input: bool) -> Any:
    if isinstance(value, list):
        return [_here(one, is_input) for one in value]
    path, uri = getattr(value, "path", value), getattr(value, "uri", "")
    # What no launcher has brought here (an import, in the local runner) the stage fetches itself.
    return uri if is_input and is_uri(uri) and not Path(path).exists() else path
