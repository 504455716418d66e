"""What all components share: their image, and parameters taken from the stage's config."""

from collections.abc import Callable

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from posgap import __version__
from posgap.config import Config, Role, role

IMAGE = f"ghcr.io/posgap/posgap-cpu:{__version__}"


def component(config: type[Config], artifacts: tuple[str, ...] = ()) -> Callable[[Callable], BaseComponent]:
    """Makes a KFP component of a function whose parameters are the fields of `config`.

    The function names the parameters; defaults and descriptions are the config's. KFP keeps only
    the function's source, so the body imports what it needs. `artifacts` are outputs beyond the
    stage's folder. Raises `TypeError` where function and config do not name the same parameters.
    """

    def wrap(function: Callable) -> BaseComponent:
        made = dsl.component(function, base_image=IMAGE, install_kfp_package=False)
        spec = made.component_spec
        named = set(spec.inputs or {}) | set(spec.outputs or {}) - {"Output", *artifacts}
        wanted = set(config.model_fields) - {"force"}
        if named != wanted:
            raise TypeError(
                f"component {spec.name}: parameters differ from {config.__name__}: {sorted(named ^ wanted)}"
            )
        for name, field in config.model_fields.items():
            if name not in spec.inputs:
                continue
            given = spec.inputs[name]
            given.description = field.description
            if role(field) is not Role.INPUT and not field.is_required():
                # KFP has no null: an empty string is a path that was not given.
                default = config.default(name)
                given.default, given.optional = "" if default is None else default, True
        return made

    return wrap
