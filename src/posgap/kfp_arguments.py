"""From the arguments of a KFP component to the config of its stage."""

from typing import Any, TypeVar

from posgap.config import Config
from posgap.errors import PosgapError, faults

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any], **values: Any) -> C:
    """The config that a component's arguments describe: artifacts become their local paths.

    `settings`, if there are any, go before arguments of the same name, and `values` before both. Arguments that
    are no fields of the config (further output artifacts) are left out. Raises `PosgapError` with everything
    that is wrong, in one line.
    """
    given = {name: value for name, value in arguments.items() if name in config_type.model_fields}
    given = {name: _local(value) for name, value in (given | (arguments.get("settings") or {}) | values).items()}
    if wrong := faults(lambda: config_type(**given)):
        raise PosgapError("; ".join(wrong))
    return config_type(**given)


def _local(value: Any) -> Any:
    return [_local(one) for one in value] if isinstance(value, list) else getattr(value, "path", value)
