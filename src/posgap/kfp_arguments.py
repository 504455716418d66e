"""From the arguments of a KFP component to the config of its stage."""

from typing import Any, TypeVar

from posgap.config import Config

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any]) -> C:
    """The config that a component's arguments describe: artifacts become their local paths.

    Arguments that are no fields of the config (further output artifacts) are left out.
    """
    values = {name: _local(value) for name, value in arguments.items()}
    return config_type(**{name: value for name, value in values.items() if name in config_type.model_fields})


def _local(value: Any) -> Any:
    return [_local(one) for one in value] if isinstance(value, list) else getattr(value, "path", value)
