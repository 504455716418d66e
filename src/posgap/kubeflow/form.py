"""Turns the pipeline's form into the parameters of its stages, and checks them."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic.fields import FieldInfo

from posgap import __version__
from posgap.distillation.methods import METHODS, MITIGATE
from posgap.foundation.errors import PosgapError, faults, suggestion
from posgap.foundation.fields import IN_SETTINGS, Role, parse_settings, registered_name, role, settings_text
from posgap.foundation.files import digest_of
from posgap.gating.demands import Policy
from posgap.kubeflow.training_pool import amount, requests
from posgap.mitigations.registry import MITIGATIONS
from posgap.options.base import Config
from posgap.options.cluster import PoolConfig
from posgap.options.distill import DistillConfig
from posgap.options.gate import GateConfig
from posgap.options.mitigate import MitigateConfig
from posgap.options.preflight import PreflightConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.options.train_job import TrainJobConfig
from posgap.options.validate import ValidateConfig
from posgap.tasks.registry import TASKS

STAGES: dict[str, type[Config]] = {
    "validate": ValidateConfig,
    "sweep": SweepConfig,
    "teacher": TeacherConfig,
    "distill": DistillConfig,
    "train_job": TrainJobConfig,
    "mitigate": MitigateConfig,
    "on_top": MitigateConfig,  # the same on top of a trained model
    "gate": GateConfig,
}
# The form's fields that are passed on to stages, by the stages' names for them.
FORM_FIELDS = {name: name for name in ("task", "n_docs", "seed", "max_gap", "guards")} | {
    "backend": "inference_backend"
}
# Values of `settings` for the run itself, not for a stage; they include methods and tasks that no dropdown offers.
_SAID = [name for name, field in PreflightConfig.model_fields.items() if IN_SETTINGS in field.metadata]
OF_RUN = [*_SAID, "methods", "task"]
_OWN = {*FORM_FIELDS, "model", "method", "label", "shard", "name", "gpus_per_node", "methods"}
_ELSEWHERE = PreflightConfig.model_fields.keys() - set(OF_RUN)


def commonly() -> list[str]:
    """Returns the most common complete choices of methods, which a form can offer: the default, each alone, and with
    mitigations beside or on top of it."""
    trained = list(filter(_trains, _methods()))
    both = [PreflightConfig.default("methods")]
    for name in trained:
        both += [f"{name}+{MITIGATE.name}", f"{name} then {MITIGATE.name}"]
    return [*trained, MITIGATE.name, *both]


def with_run_settings(form: PreflightConfig) -> PreflightConfig:
    """Returns the form with its settings for the run; unchanged if they are invalid, which `complaints` reports."""
    said = _of_run(flat_settings(form.settings))
    return form if _misfits(said) else form.model_copy(update=_form_values(said))


def _of_run(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name in OF_RUN}


def flat_settings(text: str) -> dict[str, Any]:
    """Returns a form's settings by name; a stage's as STAGE.NAME, whether they were written so or as a table."""
    by_name = dict[str, Any]()
    for name, value in parse_settings(text).items():
        if name in STAGES and isinstance(value, dict):
            for inner, each in value.items():
                by_name[f"{name}.{inner}"] = each
        else:
            by_name[name] = value
    return by_name


def _form_values(said: dict[str, Any]) -> dict[str, Any]:
    """These values as a form has them."""
    required = {name: "-" for name, field in PreflightConfig.model_fields.items() if field.is_required()}
    config = PreflightConfig(**required | said)
    return {name: getattr(config, name) for name in said}


def _misfits(said: dict[str, Any]) -> list[str]:
    return faults(partial(_form_values, said))


def candidates(methods: str) -> list[str]:
    """Returns the candidates to make from the base model, in the given order: methods of training, and `mitigate` for
    all named mitigations; the best of these becomes one candidate. Raises `ValueError` if a method is unknown or given
    twice, or `then` joins what it cannot."""
    return list(dict.fromkeys(MITIGATE.name if name in _of_models() else name for name in _parse_methods(methods)[0]))


def has_on_top(methods: str) -> bool:
    """Returns whether mitigations are also tried on top of each trained model: one more candidate of each. Raises
    `ValueError` as `candidates` does."""
    return bool(_parse_methods(methods)[1])


def count_candidates(methods: str) -> int:
    """Counts the models that a run judges: its candidates, and with mitigations on top one more for each trained
    model."""
    named = candidates(methods)
    return len(named) + has_on_top(methods) * sum(map(_trains, named))


def remedies(methods: str, backend: str, on_top: bool = False) -> list[str]:
    """Returns the mitigations that the candidate `mitigate`, or the one on top of a trained model, is chosen from: the
    named ones, or all that a model can have and the backend serves. Raises `ValueError` for one that the backend does
    not serve."""
    served = [m.name for m in MITIGATIONS if m.of_model and ("anything" in m.served_by or backend in m.served_by)]
    named = [name for name in _parse_methods(methods)[on_top] if name in _of_models()]
    for name in named:
        if name not in served:
            raise ValueError(f"methods: {backend} does not serve {name}; it serves {', '.join(served)}")
    return named or served


def _parse_methods(methods: str) -> tuple[list[str], list[str]]:
    """Returns the names before `then`, and those after it, which are put on top of the models trained by the former."""
    first, *later = re.split(r"\s+then\s+", methods.strip())
    if len(later) > 1:
        raise ValueError(f"methods: {methods!r} has `then` twice; write it once")
    chosen = _parse_names(first)
    on_top = _parse_names(later[0]) if later else []
    for name in filter(_trains, on_top):
        raise ValueError(f"methods: {name} trains; after then name mitigations, or {MITIGATE.name}")
    if on_top and not any(map(_trains, chosen)):
        raise ValueError(f"methods: {first!r} trains nothing; before then name a method of training, like r1 then lpes")
    return chosen, on_top


def _parse_names(methods: str) -> list[str]:
    chosen = re.split(r"\s*\+\s*", methods.strip())
    for method in chosen:
        if method not in (*_methods(), *_of_models()):
            raise ValueError(
                f"methods: unknown method {method!r}: choose from {', '.join(_methods())}, or mitigations from "
                f"{', '.join(_of_models())}, like r1+lpes, or r1 then lpes"
            )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"methods: {methods!r} names a method twice")
    also = [name for name in chosen if name in _of_models()]
    if also and MITIGATE.name in chosen:
        raise ValueError(f"methods: {MITIGATE.name} already tries {also[0]}; name only one")
    return chosen


def _trains(name: str) -> bool:
    return name not in (MITIGATE.name, *_of_models())


def _methods() -> list[str]:
    return [name for name in METHODS.names() if name not in MITIGATIONS.names()]


def _of_models() -> list[str]:
    return [mitigation.name for mitigation in MITIGATIONS if mitigation.of_model]


def shards(count: int) -> list[str]:
    """The parameter `shard` of each part of a sweep; empty if there is only one part."""
    return [f"{part}/{count}" for part in range(1, count + 1)] if count > 1 else [""]


def settings(form: PreflightConfig) -> dict[str, dict[str, Any]]:
    """The plain parameters that each stage is given, by stage: the form's fields, and its settings.

    Nothing is checked here; `complaints` does that.
    """
    form, said = with_run_settings(form), flat_settings(form.settings)
    from_form = {name: getattr(form, field) for name, field in FORM_FIELDS.items()}
    from_form["gpus_per_node"] = form.gpus_train
    tried = dict[str, list[str]]()
    layered = False
    made = 1
    with suppress(ValueError):  # which `complaints` reports
        layered = has_on_top(form.methods)
        made = count_candidates(form.methods)
        tried["mitigate"] = remedies(form.methods, form.inference_backend)
        tried["on_top"] = remedies(form.methods, form.inference_backend, on_top=True)
    by_stage = {}
    for stage, config in STAGES.items():
        if stage == "on_top" and not layered:
            continue
        own = {name: value for name, value in from_form.items() if name in _fields(config)}
        if config is MitigateConfig:
            own.pop("backend")  # mitigations are applied in memory, whatever measures the resulting model
        own |= {"methods": tried[stage]} if stage in tried else {}
        own |= {"candidates": made} if stage == "gate" else {}
        own |= _of_a_node(form) if stage == "train_job" else {}
        for name in _open(config):  # a stage's own setting overrides the one for all
            for words in (name, f"{stage}.{name}"):
                if words in said:
                    own[name] = said[words]
        by_stage[stage] = TrainJobConfig.nest(own) if config is TrainJobConfig else own
    return by_stage


def with_guards(form: PreflightConfig, policy: Policy) -> PreflightConfig:
    """Returns the form with the guards of the registered model's policy, which alone defines them."""
    own = {name: guard.model_dump(mode="json", exclude_defaults=True) for name, guard in policy.guards.items()}
    return form.model_copy(update={"guards": settings_text(parse_settings(form.guards) | own)})


def _of_a_node(form: PreflightConfig) -> dict[str, Any]:
    """The CPUs and the memory of each machine of a TrainJob, by its GPUs; nothing if no cluster is known."""
    asked = requests(form)
    return {"cpus_per_node": int(amount(asked["cpu"])), "memory_per_node": asked["memory"]} if asked["cpu"] else {}


def recipe(form: PreflightConfig) -> str:
    """Returns the sha256 of everything besides data and base model that decides which models a run makes: methods, the
    parameters of the stages that make and measure them, and posgap's version, which is that of the images."""
    form = with_run_settings(form)
    by_stage = settings(form)
    del by_stage["gate"]  # which changes no model
    return digest_of([__version__, sorted(candidates(form.methods)), form.trainer, by_stage])


def as_config(stage: str, parameters: dict[str, Any]) -> Config:
    """The config of a stage with these parameters, and with placeholders for paths, which come from other steps."""
    config = STAGES[stage]
    paths = {}
    for name, field in config.model_fields.items():
        if field.is_required() and role(field) is not Role.WORK:
            paths[name] = "-,-"
    return config(**paths | parameters)


def complaints(form: PreflightConfig) -> Iterator[str]:
    """Yields a line for each fault in the form."""
    said = flat_settings(form.settings)
    form = with_run_settings(form)
    try:
        for on_top in (False, True):
            remedies(form.methods, form.inference_backend, on_top)
        for name in candidates(form.methods) if form.task in TASKS.names() else ():
            METHODS[name].require_suited(TASKS[form.task])
    except (ValueError, PosgapError) as error:
        yield str(error)
    yield from unknown(said)
    for fault in _misfits(_of_run(said)):
        yield f"settings: {fault}"
    by_stage = settings(form)
    del by_stage["distill" if form.trainer else "train_job"]
    yield from _stage_faults(by_stage)
    try:
        registered_name(form.registered_name)
    except ValueError as error:
        yield f"registered_name: {error}, got {form.registered_name!r}"
    pool = {"nodes": {}, "cpu": "1", "memory": "1Gi", "accelerators": form.gpus_train}
    for fault in faults(partial(PoolConfig, **pool)):
        yield "gpus_train" + fault.removeprefix("accelerators")


def _fields(config: type[Config]) -> dict[str, FieldInfo]:
    """Returns the fields of a stage by name; a TrainJob also has those of `distill`, which it takes as one object."""
    if config is not TrainJobConfig:
        return config.model_fields
    fields = {**DistillConfig.model_fields, **config.model_fields}
    del fields["distill"]
    return fields


def _open(config: type[Config]) -> dict[str, FieldInfo]:
    """The fields of a stage that settings may decide."""
    fields = _fields(config).items()
    return {
        name: field
        for name, field in fields
        if name not in _OWN and name != "force" and role(field) in (None, Role.WORK)
    }


def settable() -> list[str]:
    """The names that settings may hold: of the run, of stages' parameters, and of one stage's."""
    plain = dict[str, None]()
    of_one_stage = list[str]()
    for stage, config in STAGES.items():
        for name in _open(config):
            plain[name] = None
            of_one_stage.append(f"{stage}.{name}")
    return [*OF_RUN, *plain, *of_one_stage]


def unknown(said: Iterable[str]) -> Iterator[str]:
    """Yields a line for each name that settings cannot hold."""
    names = settable()
    plain = [name for name in names if "." not in name]
    for name in said:
        if name in names:
            continue
        if name in _ELSEWHERE:
            yield f"settings: {name}: is a field of the form; fill it in there"
        elif name.rpartition(".")[2] in _OWN:
            yield f"settings: {name}: is set by the form or the pipeline, and cannot be set here"
        else:
            there_are = f"there are {', '.join(sorted(plain))}"
            hint = suggestion(name, names if "." in name else plain, there_are)
            yield f"settings: {name}: no stage has such a parameter; {hint}"


def _stage_faults(by_stage: dict[str, dict[str, Any]]) -> list[str]:
    """The faults that the stages' configs find, each parameter's only once even if several stages take it."""
    by_name = {}
    for stage, values in by_stage.items():
        found = faults(partial(as_config, stage, values))
        if stage == "train_job":  # the form shows its object in one line
            found = [fault for fault in found if not fault.startswith("distill: ")]
            found += faults(partial(as_config, "distill", values["distill"]))
        for fault in found:
            name, _, reason = fault.partition(":")
            by_name[name] = f"{FORM_FIELDS[name]}:{reason}" if name in FORM_FIELDS else f"settings: {fault}"
    return list(by_name.values())
