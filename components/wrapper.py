"""What all components share: their images, and parameters taken from the stage's config."""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Mapping

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from posgap import __version__
from posgap.foundation.fields import Role, plain_type, role
from posgap.options.base import Config
from posgap.options.cluster import ClusterConfig

CPU, TRAIN, SERVE = "cpu", "gpu-train", "gpu-serve"  # images, by what they are for
SETTINGS, CACHE_KEY = "settings", "cache_key"
_OURS = (SETTINGS, CACHE_KEY)  # parameters by name, as `preflight` has checked them; and what KFP's cache goes by


def image(kind: str, registry: str = ClusterConfig.default("registry")) -> str:
    """Reference of an image of this version; the only place where one is written."""
    return f"{registry}/posgap-{kind}:{__version__}"


def component(
    config: type[Config], kind: str = CPU, apart: Mapping[str, tuple[str, ...]] | None = None
) -> Callable[[Callable], BaseComponent]:
    """Makes a KFP component of a function that names its artifacts; the parameters are the fields of `config`.

    Each field that is no artifact becomes a parameter of the function, with the type and default that the config has,
    so that `locals()` in its body holds them all. It has no description: KFP shows none of a step, and Argo keeps
    copies of a step's component with each try, for which Kubernetes has a limit. KFP keeps only the function's source,
    so the body imports what it needs. `apart` says by which inputs, if any, the function makes a field itself: KFP
    makes a list of artifacts only in a loop. A parameter `settings` that is no field holds others by name. Every
    component takes a `cache_key`, too, which its stage never sees: KFP takes a step from its cache where all parameters
    are the same, and so runs it again where this one has changed. Raises `TypeError` where the function takes an input
    that is no field of the config, or does not take one of its artifacts.
    """
    apart = apart or {}

    def wrap(function: Callable) -> BaseComponent:
        named, fields = set(inspect.signature(function).parameters), config.model_fields
        added = [name for name in fields if name not in named | {"force", *apart}]
        complete = _with_parameters(function, config, added)
        made = dsl.component(complete, base_image=image(kind), install_kfp_package=False)
        spec = made.component_spec
        replaced: dict[str, str] = {}
        for name, inputs in apart.items():
            replaced |= dict.fromkeys(inputs, name)
        unknown = {name for name in spec.inputs or {} if name not in {*_OURS, *fields, *replaced}}
        forgotten = {name for name in added if role(fields[name]) in (Role.INPUT, Role.OUTPUT)}
        if unknown or forgotten:
            raise TypeError(
                f"component {spec.name}: artifacts differ from {config.__name__}: {sorted(unknown | forgotten)}"
            )
        for name, parameter in (spec.inputs or {}).items():
            parameter.description = None
            if name in added and not fields[name].is_required():
                # KFP has no null: an empty string is a path that was not given.
                parameter.default, parameter.optional = config.default(name), True
        return made

    return wrap


def _with_parameters(function: Callable, config: type[Config], added: Iterable[str]) -> Callable:
    """The function with these fields of the config as parameters, before those that have defaults."""
    # Nothing simpler works: KFP takes the parameters from the signature, but writes the function's source into the
    # pipeline, where its executor passes only what that source names. Parameters by `__signature__` or `**kwargs` would
    # never arrive; so the function is made anew, from a source that has them, which inspect finds for KFP.
    source = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    arguments, defaults = definition.args.args, definition.args.defaults
    required = len(arguments) - len(defaults)
    parameters = [
        *map(ast.unparse, arguments[:required]),
        *(f"{name}: {plain_type(config.model_fields[name]).__name__}" for name in added),
        *(f"{ast.unparse(each)} = {ast.unparse(default)}" for each, default in zip(arguments[required:], defaults)),
        f'{CACHE_KEY}: str = ""',
    ]
    returned = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    body = source.splitlines()[definition.body[0].lineno - 1 :]
    lines = [f"def {function.__name__}(", *(f"    {each}," for each in parameters), f"){returned}:", *body]
    file, text = f"<component {function.__module__}.{function.__name__}>", "\n".join(lines)
    # Here inspect looks for the source of what has no file.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace: dict[str, Callable] = {}
    exec(compile(text, file, "exec"), function.__globals__, namespace)
    return namespace[function.__name__]
