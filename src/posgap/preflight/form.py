"""From the pipeline's form to what each of its stages is given."""

import difflib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

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
# The pipeline's own business: the form's fields that go to stages, and what it gives to each step.
FORM_FIELDS = ("task", "n_docs", "backend", "seed", "max_gap")
_POOLS = {
    "nodes_train": "nodes",
    "nodes_inference": "nodes",
    "nodes_cpu": "nodes",
    "tolerations": "tolerations",
    "gpus_train": "accelerators",
}
_OWN = {*FORM_FIELDS, "method", "label", "shard", "name", "gpus_per_node"}


def candidates(methods: str) -> list[str]:
    """The methods to try, in the order given; `ValueError` where one is unknown or there twice."""
    chosen = [method.strip() for method in methods.split("+")]
    for method in chosen:
        if method not in METHODS.names():
            raise ValueError(
                f"methods: unknown method {method!r}: choose of {', '.join(METHODS.names())}, like r1+lpes"
            )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"methods: {methods!r} names one twice")
    return chosen


def parts(count: int) -> list[str]:
    """What `shard` is in each part of a sweep; one part is the whole."""
    return [f"{part}/{count}" for part in range(1, count + 1)] if count > 1 else [""]


def settings(form: PreflightConfig) -> dict[str, dict[str, Any]]:
    """The plain parameters of each stage that are not the defaults: the form's, and overrides.

    Nothing is checked here, that is for `complaints`.
    """
    given = {name: getattr(form, name) for name in FORM_FIELDS}
    given["gpus_per_node"] = form.gpus_train
    found = {}
    for stage, config in STAGES.items():
        own = {name: value for name, value in given.items() if name in config.model_fields}
        shared = {name: value for name, value in form.overrides.items() if name in _open(config)}
        alone = {
            name: form.overrides[f"{stage}.{name}"] for name in _open(config) if f"{stage}.{name}" in form.overrides
        }
        found[stage] = own | shared | alone
    return found


def as_config(stage: str, given: dict[str, Any]) -> Config:
    """The config of a stage with these parameters, and any paths; they come from other steps."""
    config = STAGES[stage]
    required = {name: field for name, field in config.model_fields.items() if field.is_required()}
    paths = {name: "-,-" for name, field in required.items() if role(field) is not Role.WORK}
    return config(**paths | given)


def complaints(form: PreflightConfig) -> Iterator[str]:
    """Everything in the form that no stage would accept, a line each."""
    try:
        candidates(form.methods)
    except ValueError as error:
        yield str(error)
    yield from _unknown(form.overrides)
    yield from _refused({stage: given for stage, given in settings(form).items() if _runs(stage, form)})
    try:
        registered_name(form.registered_name)
    except ValueError as error:
        yield f"registered_name: {error}, got {form.registered_name!r}"
    if form.webhook_url and not form.webhook_url.startswith(("http://", "https://")):
        yield "webhook_url: is no address: it begins with https:// or http://"
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
    known = {name: stage for stage, config in STAGES.items() for name in _open(config)}
    dotted = {f"{stage}.{name}" for stage, config in STAGES.items() for name in _open(config)}
    for name in overrides:
        if name in known or name in dotted:
            continue
        if name.rpartition(".")[2] in _OWN:
            yield f"overrides: {name}: the form or the pipeline sets it"
        else:
            close = difflib.get_close_matches(name, dotted if "." in name else known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(known))}"
            yield f"overrides: {name}: no stage has such a parameter; {hint}"


def _refused(given: dict[str, dict[str, Any]]) -> list[str]:
    found = {}
    for stage, values in given.items():
        for fault in faults(partial(as_config, stage, values)):
            # A value that goes to several stages is complained about once.
            name = fault.partition(":")[0]
            found[name] = fault if name in FORM_FIELDS else f"overrides: {fault}"
    return list(found.values())
