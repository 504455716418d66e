"""Makes a KFP component from what its verb takes and gives."""

import linecache
from collections.abc import Mapping, Sequence
from typing import NamedTuple  # noqa: F401  annotations of components name it

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from posgap import __version__
from posgap.foundation.fields import Role, plain_type, role
from posgap.options.cluster import ClusterConfig
from posgap.options.table import stage_config

CPU, TRAIN, SERVE = "cpu", "gpu-train", "gpu-serve"  # images, by their purpose
SETTINGS = "settings"  # the parameter that holds others by name, as `preflight` has checked them
CACHE_KEY = "cache_key"  # the parameter that KFP's cache goes by


def image(kind: str, registry: str = ClusterConfig.default("registry")) -> str:
    """Returns the reference of an image of this version; the only place that writes one."""
    return f"{registry}/posgap-{kind}:{__version__}"


def make_component(
    name: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    *,
    optional: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    returns: str = "",
    image_kind: str = CPU,
    settings: bool = False,
    made_of: Mapping[str, Sequence[str]] | None = None,
) -> BaseComponent:
    """Makes the KFP component that runs the verb with the files `name`.

    `inputs`, `optional` inputs and `outputs` are artifacts by name, each with its class in `kfp.dsl`; an input
    "list[Artifact]" takes several, and a class that begins with "dsl." is written unchanged. `texts` are outputs of
    plain text, and `returns` is the annotation of the step's return value. `settings` adds a parameter that holds
    others by name. `made_of` names the inputs, if any, that the step combines into a field. Every other field of the
    verb's options becomes a parameter with the same type and default. A parameter `cache_key`, which the verb never
    sees, is added: KFP takes a step from its cache if all parameters are the same, and runs it again if this one has
    changed.

    The component has no description: KFP shows none, and Argo copies the component for each try of a step, up to a
    limit of Kubernetes. Raises `TypeError` if an input is no field, or an artifact is missing.
    """
    config = stage_config(name)
    fields = config.model_fields
    made_of = made_of or {}
    artifacts = {*inputs, *(optional or {}), *outputs}
    replaced = {each for names in made_of.values() for each in names}
    parameters = [field for field in fields if field not in artifacts | {"force", *made_of}]
    wanted = {field for field in parameters if role(fields[field]) in (Role.INPUT, Role.OUTPUT)}
    unknown = ({*inputs, *(optional or {})} - replaced - fields.keys()) | wanted
    if unknown:
        raise TypeError(f"component {name}: artifacts differ from {config.__name__}: {sorted(unknown)}")
    lines = [f"{each}: {_annotation('Input', kind)}" for each, kind in inputs.items()]
    lines += [f"{each}: {_annotation('Output', kind)}" for each, kind in outputs.items()]
    lines += [f"{each}: dsl.OutputPath(str)" for each in texts]
    lines += [f"{each}: {plain_type(fields[each]).__name__}" for each in parameters]
    lines += [f"{SETTINGS}: dict = {{}}"] if settings else []
    lines += [f"{each}: {_annotation('Input', kind)} = None" for each, kind in (optional or {}).items()]
    lines.append(f'{CACHE_KEY}: str = ""')
    made = dsl.component(_define(name, lines, returns), base_image=image(image_kind), install_kfp_package=False)
    for each, parameter in (made.component_spec.inputs or {}).items():
        parameter.description = None
        if each in parameters and not fields[each].is_required():
            # KFP has no null: an empty string is a path that was not given.
            parameter.default = config.default(each)
            parameter.optional = True
    return made


def _annotation(direction: str, kind: str) -> str:
    if kind.startswith("dsl."):
        return kind
    return f"dsl.{direction}[{kind.replace('list[', 'list[dsl.') if '[' in kind else f'dsl.{kind}'}]"


def _define(name: str, parameters: Sequence[str], returns: str):
    """Defines the function that KFP copies into the pipeline as text: it hands its arguments to `run_step`."""
    text = "\n".join(
        [
            f"def {name}(",
            *(f"    {each}," for each in parameters),
            f"){returns and f' -> {returns}'}:",
            "    arguments = dict(locals())",
            "    from posgap.kubeflow.steps import run_step",
            "",
            f'    return run_step("{name}", arguments)',
        ]
    )
    file = f"<component {name}>"
    # inspect, which KFP asks for the source, finds it here.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = dict(globals())
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]
