"""Turns the pipeline's form into the parameters of its stages, and checks them."""

import difflib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from posgap import __version__
from posgap.choices import METHODS
from posgap.config import (
    CompareConfig,
    Config,
    DistillConfig,
    GateConfig,
    PoolConfig,
    PreflightConfig,
    Role,
    ScaleSearchConfig,
    SweepConfig,
    TeacherConfig,
    TrainJobConfig,
    ValidateConfig,
    role,
)
from posgap.config.fields import registered_name
from posgap.errors import faults
from posgap.files import digest_of

STAGES: dict[str, type[Config]] = {
    "validate": ValidateConfig,
    "sweep": SweepConfig,
    "teacher": TeacherConfig,
    "distill": DistillConfig,
    "train_job": TrainJobConfig,
    "scale_search": ScaleSearchConfig,
    "compare": CompareConfig,
    "gate": GateConfig,
}
JUDGING = ("compare", "gate")  # stages that change no model
# The form's fields that are passed on to stages.
FORM_FIELDS = ("task", "n_docs", "backend", "seed", "max_gap")
_POOLS = {
    "nodes_train": "nodes",
    "nodes_inference": "nodes",
    "nodes_cpu": "nodes",
    "tolerations": "tolerations",
    "gpus_train": "accelerators",
}
# An adapter names its base by a path of the step that trained it, which other steps do not have.
_OWN = {*FORM_FIELDS, "method", "label", "shard", "name", "gpus_per_node", "lora_export"}


def candidates(methods: str) -> list[str]:
    """The methods to try, in the order given; raises `ValueError` if one is unknown or given twice."""
    chosen = [method.strip() for method in methods.split("+")]
    for method in chosen:
        if method not in METHODS.names():
            raise ValueError(
                f"methods: unknown method {method!r}: choose from {', '.join(METHODS.names())}, like r1+lpes"
            )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"methods: {methods!r} names a method twice")
    return chosen


def parts(count: int) -> list[str]:
    """The parameter `shard` of each part of a sweep; empty if there is only one part."""
    return [f"{part}/{count}" for part in range(1, count + 1)] if count > 1 else [""]


def settings(form: PreflightConfig) -> dict[str, dict[str, Any]]:
    """The plain parameters that each stage is given, by stage: the form's fields, and the overrides.

    Nothing is checked here; `complaints` does that.
    """
    from_form = {name: getattr(form, name) for name in FORM_FIELDS}
    from_form["gpus_per_node"] = form.gpus_train
    by_stage = {}
    for stage, config in STAGES.items():
        own = {name: value for name, value in from_form.items() if name in config.model_fields}
        shared = {name: value for name, value in form.overrides.items() if name in _open(config)}
        alone = {
            name: form.overrides[f"{stage}.{name}"] for name in _open(config) if f"{stage}.{name}" in form.overrides
        }
        by_stage[stage] = own | shared | alone
    return by_stage


def recipe(form: PreflightConfig) -> str:
    """sha256 of all that decides which models a run makes, beside data and base model: methods, the parameters of the
    stages that make and measure them, and posgap's version, which is that of the images."""
    by_stage = {name: values for name, values in settings(form).items() if name not in JUDGING}
    return digest_of([__version__, sorted(candidates(form.methods)), form.trainer, by_stage])


def as_config(stage: str, parameters: dict[str, Any]) -> Config:
    """The config of a stage with these parameters, and with placeholders for paths, which come from other steps."""
    config = STAGES[stage]
    required = {name: field for name, field in config.model_fields.items() if field.is_required()}
    paths = {name: "-,-" for name, field in required.items() if role(field) is not Role.WORK}
    return config(**paths | parameters)


def complaints(form: PreflightConfig) -> Iterator[str]:
    """Yields a line for each fault in the form."""
    try:
        candidates(form.methods)
    except ValueError as error:
        yield str(error)
    yield from _unknown(form.overrides)
    yield from _refused({stage: values for stage, values in settings(form).items() if _runs(stage, form)})
    try:
        registered_name(form.registered_name)
    except ValueError as error:
        yield f"registered_name: {error}, got {form.registered_name!r}"
    if form.webhook_url and not form.webhook_url.startswith(("http://", "https://")):
        yield "webhook_url: must begin with https:// or http://"
    for name, field in _POOLS.items():
        pool = {"nodes": {}, "cpu": "1", "memory": "1Gi", field: getattr(form, name)}
        yield from (name + fault.removeprefix(field) for fault in faults(partial(PoolConfig, **pool)))


def _runs(stage: str, form: PreflightConfig) -> bool:
    return stage != ("distill" if form.trainer else "train_job")


def _open(config: type[Config]) -> dict[str, Any]:
    """The fields of a stage that overrides may set."""
    fields = config.model_fields.items()
    return {n: f for n, f in fields if n not in _OWN and n != "force" and role(f) in (None, Role.WORK)}


def _unknown(overrides: Iterable[str]) -> Iterator[str]:
    plain = {name: stage for stage, config in STAGES.items() for name in _open(config)}
    dotted = {f"{stage}.{name}" for stage, config in STAGES.items() for name in _open(config)}
    for name in overrides:
        if name in plain or name in dotted:
            continue
        if name.rpartition(".")[2] in _OWN:
            yield f"overrides: {name}: is set by the form or the pipeline, and cannot be overridden"
        else:
            close = difflib.get_close_matches(name, dotted if "." in name else plain, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(plain))}"
            yield f"overrides: {name}: no stage has such a parameter; {hint}"


def _refused(by_stage: dict[str, dict[str, Any]]) -> list[str]:
    """The faults that the stages' configs find, each parameter's only once even if several stages take it."""
    by_name = {}
    for stage, values in by_stage.items():
        for fault in faults(partial(as_config, stage, values)):
            name = fault.partition(":")[0]
            by_name[name] = fault if name in FORM_FIELDS else f"overrides: {fault}"
    return list(by_name.values())
