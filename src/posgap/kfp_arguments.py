"""From the arguments of a KFP component to the config of its stage."""

from pathlib import Path
from typing import Any, TypeVar

from posgap.config import Config
from posgap.locations import is_uri

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any]) -> C:
    """The config that a component's arguments describe: artifacts become their local paths.

    Arguments that are no fields of the config (further output artifacts) are left out.
    """
    values = {name: _local(value) for name, value in arguments.items()}
    return config_type(**{name: value for name, value in values.items() if name in config_type.model_fields})


def _local(value: Any) -> Any:
    if isinstance(value, list):
        return [_local(one) for one in value]
    path = getattr(value, "path", value)
    # What no launcher has brought here (an import, in the local runner) the stage fetches itself.
    uri = getattr(value, "uri", "")
    return uri if is_uri(uri) and not Path(path).exists() else path
