"""Makes the config of a stage from the arguments of its KFP component."""

from pathlib import Path
from typing import Any, TypeVar

from posgap.foundation.errors import BadOption, PosgapError, faults
from posgap.foundation.fields import Role, is_function, role
from posgap.foundation.locations import add_mount, is_address, is_uri
from posgap.foundation.termination import tell_kubernetes
from posgap.options.base import Config

C = TypeVar("C", bound=Config)


def to_config(config_type: type[C], arguments: dict[str, Any], **values: Any) -> C:
    """The config that a component's arguments describe; artifacts are replaced by their local paths.

    `settings`, if given and no field of the config, take precedence over arguments of the same name, and `values` over
    both. Arguments that are not fields of the config (further output artifacts) are left out. Raises `PosgapError` with
    all faults in one line.
    """
    tell_kubernetes()  # of the error, if one ends the step that begins here
    fields = config_type.model_fields
    settings = {} if "settings" in fields else arguments.get("settings") or {}
    values = {name: value for name, value in arguments.items() if name in fields} | settings | values
    local = {}
    for name, value in values.items():
        local[name] = _here(value, is_input=name in fields and role(fields[name]) is Role.INPUT)
    wrong = faults(lambda: config_type(**local))
    if wrong:
        raise PosgapError("; ".join(wrong))
    return config_type(**local)


def _here(value: Any, is_input: bool) -> Any:
    if isinstance(value, list):
        return [_here(item, is_input) for item in value]
    if is_function(value):
        raise BadOption(f"{value}: a cluster cannot call a function; give a model, an endpoint or a registered version")
    path = getattr(value, "path", value)
    uri = getattr(value, "uri", "")
    scheme, separator, rest = str(uri).partition("://")
    if separator and rest and str(path).endswith(f"/{rest}"):
        # A place of this pod alone: what a stage records must name it so that other pods find it.
        add_mount(str(path).removesuffix(rest), scheme + separator)
    # KFP's local runner does not download imported artifacts: then the stage gets the URI and fetches it itself.
    return uri if is_input and (is_uri(uri) or is_address(uri)) and not Path(path).exists() else path
