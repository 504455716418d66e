"""What all components share: their images, and parameters taken from the stage's config."""

from collections.abc import Callable, Mapping

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from posgap import __version__
from posgap.config import ClusterConfig, Config, Role, role

CPU, TRAIN, SERVE = "cpu", "gpu-train", "gpu-serve"  # images, by what they are for
SETTINGS = "settings"
_SETTINGS = "parameters by name, as `preflight` has checked them; they go before the others"


def image(kind: str, registry: str = ClusterConfig.default("registry")) -> str:
    """Reference of an image of this version; the only place where one is written."""
    return f"{registry}/posgap-{kind}:{__version__}"


def component(
    config: type[Config],
    kind: str = CPU,
    artifacts: tuple[str, ...] = (),
    apart: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[[Callable], BaseComponent]:
    """Makes a KFP component of a function whose parameters are the fields of `config`.

    The function names the parameters; defaults and descriptions are the config's. KFP keeps only
    the function's source, so the body imports what it needs. `artifacts` are outputs beyond the
    stage's folder. `apart` says by which inputs, if any, the function makes a field itself: KFP makes
    a list of artifacts only in a loop. A parameter `settings` holds others by name. Raises
    `TypeError` where function and config do not name the same parameters.
    """
    apart = apart or {}

    def wrap(function: Callable) -> BaseComponent:
        made = dsl.component(function, base_image=image(kind), install_kfp_package=False)
        spec = made.component_spec
        named = set(spec.inputs or {}) | set(spec.outputs or {}) - {"Output", *artifacts}
        named.discard(SETTINGS)
        for field, inputs in apart.items():
            named = named - set(inputs) | {field}
        wanted = set(config.model_fields) - {"force"}
        if named != wanted:
            raise TypeError(
                f"component {spec.name}: parameters differ from {config.__name__}: {sorted(named ^ wanted)}"
            )
        for name, info in config.model_fields.items():
            for one in apart.get(name, (name,)):
                if one in spec.inputs:
                    spec.inputs[one].description = info.description
            if name in spec.inputs and role(info) is not Role.INPUT and not info.is_required():
                # KFP has no null: an empty string is a path that was not given.
                default = config.default(name)
                spec.inputs[name].default, spec.inputs[name].optional = "" if default is None else default, True
        if SETTINGS in spec.inputs:
            spec.inputs[SETTINGS].description = _SETTINGS
        return made

    return wrap
