"""What must be there before a pipeline run is worth its GPUs: data, a whole model, a registry, GPUs."""

import os
from collections.abc import Callable

from pydantic import ValidationError

from posgap.choices import METHODS, TASKS
from posgap.config import PreflightConfig, SweepConfig
from posgap.distillation.methods import Method
from posgap.errors import PosgapError
from posgap.files import read_jsonl
from posgap.locations import as_location, is_uri
from posgap.preflight.form import as_config, settings
from posgap.storage.cache import Snapshot, look
from posgap.storage.inputs import ByName, OnDisk, source
from posgap.storage.versions import newest

_SMALL = (".json", ".txt", ".model", ".jinja")  # files of a model folder that are not its weights


def prerequisites(form: PreflightConfig) -> dict[str, Callable[[], str]]:
    """The checks by name. Each returns what it found, in a few words, or raises `PosgapError`."""
    return {
        "training examples": lambda: _examples(str(newest(form.train_data).location)),
        "evaluation examples": lambda: _apart(form),
        "model": lambda: _model(form),
        "sweeps": lambda: _sweeps(form),
        "registry": lambda: _registry(form.registered_name),
        "GPUs": lambda: _gpus(form.gpus_here),
    }


def _examples(location: str) -> str:
    from posgap.tasks.examples import EXAMPLES_FILE, examples_file

    found = source(as_location(location))
    if isinstance(found, OnDisk):
        file = examples_file(found.location)
        if next(read_jsonl(file), None) is None:
            raise PosgapError(f"{file}: empty; write examples to it, or give the folder that holds {EXAMPLES_FILE}")
    elif found.is_incomplete:
        raise PosgapError(f"{location}: incomplete: its upload is under way, or broke off")
    return str(found.location)


def _apart(form: PreflightConfig) -> str:
    if form.eval_data.rstrip("/") == form.train_data.rstrip("/"):
        raise PosgapError(f"{form.eval_data}: is train_data too; judge a model by examples it was not trained on")
    return _examples(form.eval_data)


def _model(form: PreflightConfig) -> str:
    """The folder is whole, tokenizer and model belong together, and scaling has positions to scale."""
    from posgap.models.loading import load_config, load_tokenizer

    folder, names = _without_weights(form.model)
    config, tokenizer = load_config(folder).get_text_config(), load_tokenizer(folder)
    if names and not any(name.endswith(".safetensors") for name in names):
        raise PosgapError(f"{form.model}: no weights in safetensors; convert the model with save_pretrained")
    if len(tokenizer) > config.vocab_size:
        raise PosgapError(
            f"{form.model}: its tokenizer has {len(tokenizer)} tokens and its model {config.vocab_size}; "
            "they are not of one model"
        )
    rotary = [method.name for method in _methods(form) if method.needs_rope]
    if rotary and not getattr(config, "rope_parameters", None):
        raise PosgapError(
            f"{form.model}: no rotary position embedding, and method {rotary[0]} scales one; leave out {rotary[0]}"
        )
    return f"{config.model_type}, {config.num_hidden_layers} layers, {len(tokenizer)} tokens"


def _methods(form: PreflightConfig) -> list[Method]:
    """The methods asked for that there are; others are the form's own complaint."""
    return [method for method in METHODS if method.name in form.methods.split("+")]


def _without_weights(model: str) -> tuple[str, list[str]]:
    """A folder with the model's configuration and tokenizer, and the names of all its files, if they can be told."""
    if is_uri(model):
        whole = look(model)
        small = tuple(one for one in whole.objects if one.name.endswith(_SMALL))
        return str(Snapshot(model, small).fetch()), [one.name for one in whole.objects]
    found = source(model)
    return (model, []) if isinstance(found, ByName) else (model, os.listdir(found.location))


def _sweeps(form: PreflightConfig) -> str:
    from posgap.tasks.placements import swept_placements

    try:
        config = as_config("sweep", settings(form)["sweep"])
    except ValidationError:
        return "not to be told from this form"  # which is refused for it
    assert isinstance(config, SweepConfig)
    task = TASKS[config.task]
    if too_few := [m for m in _methods(form) if 0 < m.most_gold < task.n_gold]:
        raise PosgapError(f"methods: {too_few[0].name} takes tasks with one gold document, and {form.task} has two")
    placements = len(swept_placements(config.n_docs, task.n_gold, config.positions))
    if not 1 <= form.shards <= placements:
        raise PosgapError(f"shards: from 1 to {placements}, the placements of a sweep; got {form.shards}")
    return f"{placements} placements in {form.shards} part{'s' * (form.shards > 1)}"


def _registry(name: str) -> str:
    from posgap.tracking import registry

    if "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise PosgapError("MLFLOW_TRACKING_URI is not set in this pod; set it in the config map posgap-env")
    champion = registry.champion(name) if name else None
    return f"{name} version {champion.version} is the champion" if champion else f"{name} has no champion yet"


def _gpus(wanted: int) -> str:
    if not wanted:
        return "none asked for on this machine"
    import torch

    if (found := torch.cuda.device_count()) < wanted:
        raise PosgapError(f"gpus_here: this machine has {found} GPUs, not {wanted}")
    return f"{found}"
