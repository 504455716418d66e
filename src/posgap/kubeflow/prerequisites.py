"""The prerequisites of a pipeline run, checked before it spends GPU time: data, a complete model, a registry."""

import math
import os
import re
from collections.abc import Callable

from pydantic import ValidationError

from posgap.data.reading import EXAMPLES_FILE, examples_file, first_example
from posgap.distillation.methods import MITIGATE
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl
from posgap.foundation.locations import as_location, is_address, is_uri
from posgap.generation.setup import builder_of
from posgap.kubeflow.form import as_config, candidates, count_candidates, settings
from posgap.kubeflow.training_pool import VARIABLE, require_room, train_pool
from posgap.mitigations.registry import MITIGATIONS
from posgap.models.factors import require_rope
from posgap.options.preflight import PreflightConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.storage.cache import Snapshot, fetch_location, take_snapshot
from posgap.storage.inputs import AtAddress, ByName, OnDisk, source
from posgap.storage.versions import newest
from posgap.tasks.registry import TASKS

# Argo keeps a run as one Workflow of at most 1 MiB, with what each driver and each pod was given, compressed: these are
# the bytes of a pipeline, of each model that it judges, and of each part of a sweep. They were estimated from compiled
# pipelines (tests/helpers/workflow_size.py), which says how near it came to KFP 2.17's own compiler and driver. A tenth
# is left for long addresses.
_PIPELINE = 335_000
_MODEL = 54_000
_PART = 8_350
_MAX_WORKFLOW = 2**20 * 9 // 10
_SMALL = (".json", ".txt", ".model", ".jinja")  # endings of a model folder's files other than its weights


def prerequisites(form: PreflightConfig) -> dict[str, Callable[[], str]]:
    """The checks by name. Each returns its result in a few words, or raises `PosgapError`."""
    return {
        "training examples": lambda: _check_examples(str(newest(form.data_train).location)),
        "evaluation examples": lambda: _check_apart(form),
        "model": lambda: _check_model(form),
        "sweeps": lambda: _check_sweeps(form),
        "prompts": lambda: _check_prompts(form),
        **({"training": lambda: _check_room(form)} if os.environ.get(VARIABLE) and _trains_here(form) else {}),
        "registry": lambda: _check_registry(form.registered_name),
    }


def _check_examples(location: str) -> str:
    if is_address(location) and not location.startswith("gs://") and "KUBERNETES_SERVICE_HOST" in os.environ:
        raise PosgapError(f"{location}: Kubeflow Pipelines imports only from s3:// and gs://; copy the file there")
    examples = source(as_location(location))
    if isinstance(examples, OnDisk | AtAddress):
        file = examples_file(examples.fetch())
        if next(read_jsonl(file), None) is None:
            raise PosgapError(f"{file}: empty; write examples to it, or give the folder that holds {EXAMPLES_FILE}")
    elif examples.is_incomplete:
        raise PosgapError(f"{location}: incomplete: its upload is still running, or was interrupted")
    return str(examples.location)


def _check_apart(form: PreflightConfig) -> str:
    if form.data_eval.rstrip("/") == form.data_train.rstrip("/"):
        raise PosgapError(f"{form.data_eval}: is also data_train; evaluate on other examples")
    return _check_examples(str(newest(form.data_eval).location))


def _check_model(form: PreflightConfig) -> str:
    """Checks that the folder is complete, that tokenizer and model fit, and that the model has RoPE if a method needs
    it."""
    from posgap.models.loading import load_config, load_tokenizer

    folder, names = _without_weights(form.base_model)
    config = load_config(folder).get_text_config()
    tokenizer = load_tokenizer(folder)
    if names and not any(name.endswith(".safetensors") for name in names):
        raise PosgapError(f"{form.base_model}: no weights in safetensors; convert the model with save_pretrained")
    if len(tokenizer) > config.vocab_size:
        raise PosgapError(
            f"{form.base_model}: its tokenizer has {len(tokenizer)} tokens, but its model only {config.vocab_size}; "
            "they do not belong together"
        )
    for mitigation in MITIGATIONS:
        if mitigation.needs_rope and mitigation.name in re.split(r"[+\s]+", form.methods):
            require_rope(config, f"method {mitigation.name}: {form.base_model}")
    return f"{config.model_type}, {config.num_hidden_layers} layers, {len(tokenizer)} tokens"


def _without_weights(model: str) -> tuple[str, list[str]]:
    """A local folder with the model's configuration and tokenizer, and the names of all its files, if known."""
    if is_uri(model):
        whole = take_snapshot(model.rstrip("/"))
        small = tuple(file for file in whole.objects if file.name.endswith(_SMALL))
        return str(Snapshot(model.rstrip("/"), small).fetch()), [file.name for file in whole.objects]
    folder = source(model)
    if isinstance(folder, ByName):
        return model, []
    here = folder.fetch()
    return str(here), os.listdir(here)


def _check_sweeps(form: PreflightConfig) -> str:
    try:
        config = as_config("sweep", settings(form)["sweep"])
    except ValidationError:
        return "unknown: the form has faults"  # which `complaints` reports
    assert isinstance(config, SweepConfig)
    task = TASKS[config.task]
    placements = len(task.choose_placements(config.n_docs, config.positions))
    if not 1 <= form.shards <= placements:
        raise PosgapError(f"shards: must be from 1 to {placements}, the number of placements; got {form.shards}")
    _require_small_workflow(form.methods, form.shards)
    return f"{placements} placements in {form.shards} part{'s' * (form.shards > 1)}"


def estimate_workflow(methods: str, shards: int) -> int:
    """Returns about how many bytes Argo must keep of a run. Raises `ValueError` as `candidates` does."""
    models = count_candidates(methods)
    return _PIPELINE + _MODEL * models + _PART * shards * (models + 1)


def _require_small_workflow(methods: str, shards: int) -> None:
    try:
        size = estimate_workflow(methods, shards)
    except ValueError:  # which `complaints` reports
        return
    if size > _MAX_WORKFLOW:
        of_each = estimate_workflow(methods, 1) - estimate_workflow(methods, 0)
        fitting = shards - math.ceil((size - _MAX_WORKFLOW) / of_each)
        most = f"at most {fitting} shards, or fewer methods" if fitting > 0 else "fewer methods"
        raise PosgapError(
            f"methods, shards: {methods} in {shards} parts is more than the 1 MiB that Argo keeps of a run; give {most}"
        )


def _check_prompts(form: PreflightConfig) -> str:
    """Checks that a prompt can be made of the evaluation data, and fits into the model's context with its response, as
    the sweep asks and as the teacher does."""
    (folder, _) = _without_weights(form.base_model)
    longest = 0
    example = first_example(fetch_location(as_location(str(newest(form.data_eval).location))))
    for stage in ("sweep", "teacher"):
        try:
            config = as_config(stage, settings(form)[stage])
        except ValidationError:
            return "unknown: the form has faults"  # which `complaints` reports
        assert isinstance(config, SweepConfig | TeacherConfig)
        builder = builder_of(folder, config.wording(), config.limits())
        chosen = config.advantageous if isinstance(config, TeacherConfig) else ()
        prompt = builder.prompt(example, builder.task.choose_placements(config.n_docs, chosen)[0])
        longest = max(longest, len(prompt.token_ids) + builder.max_new_tokens)
    return f"of {longest} tokens with the response, but the model reads {builder.context}"


def _trains_here(form: PreflightConfig) -> bool:
    """Whether a step of the pipeline trains, rather than none or the nodes of a TrainJob."""
    try:
        return not form.trainer and any(name != MITIGATE.name for name in candidates(form.methods))
    except ValueError:  # which `complaints` reports
        return False


def _check_room(form: PreflightConfig) -> str:
    from posgap.distillation.footprint import size_of
    from posgap.models.loading import load_config

    pool = train_pool(os.environ[VARIABLE])
    assert pool
    size = size_of(load_config(_without_weights(form.base_model)[0]), settings(form)["distill"].get("lora_rank", 0))
    return require_room(form.base_model, size.parameters, size.trained, pool)


def _check_registry(name: str) -> str:
    from posgap.tracking import registry

    if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise PosgapError("MLFLOW_TRACKING_URI is not set in this pod; set it in the config map posgap-env")
    champion = registry.champion(name) if name else None
    return f"{name} version {champion.version} is the champion" if champion else f"{name} has no champion yet"
