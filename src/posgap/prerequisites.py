"""What must be there before a pipeline run is worth its GPUs: data, a whole model, a registry, GPUs."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from posgap.config import PreflightConfig
from posgap.errors import PosgapError
from posgap.files import read_jsonl
from posgap.form import as_config, settings

S3 = "s3://"
_SMALL = (".json", ".txt", ".model", ".jinja")  # files of a model folder that are not its weights


def prerequisites(form: PreflightConfig) -> dict[str, Callable[[], str]]:
    """The checks by name. Each returns what it found, in a few words, or raises `PosgapError`."""
    return {
        "training examples": lambda: _examples(form.train_data),
        "evaluation examples": lambda: _apart(form),
        "model": lambda: _model(form),
        "sweeps": lambda: _sweeps(form),
        "registry": lambda: _registry(form.registered_name),
        "GPUs": lambda: _gpus(form.gpus_here),
    }


def _examples(location: str) -> str:
    from posgap.tasks.examples import EXAMPLES_FILE, examples_file

    if location.startswith(S3):
        keys = _keys(location)
        return f"{location}: {len(keys)} object{'s' * (len(keys) > 1)}"
    if not Path(location).exists():
        raise PosgapError(f"{location}: no such file or folder")
    file = examples_file(Path(location))
    if next(read_jsonl(file), None) is None:
        raise PosgapError(f"{file}: empty; write examples to it, or give the folder that holds {EXAMPLES_FILE}")
    return str(file)


def _apart(form: PreflightConfig) -> str:
    if form.eval_data.rstrip("/") == form.train_data.rstrip("/"):
        raise PosgapError(f"{form.eval_data}: is train_data too; judge a model by examples it was not trained on")
    return _examples(form.eval_data)


def _model(form: PreflightConfig) -> str:
    """The folder is whole, tokenizer and model belong together, and scaling has positions to scale."""
    from posgap.models import load_config, load_tokenizer

    with _small_files(form.model) as (folder, names):
        config, tokenizer = load_config(folder).get_text_config(), load_tokenizer(folder)
    if not any(name.endswith(".safetensors") for name in names):
        raise PosgapError(f"{form.model}: no weights in safetensors; convert the model with save_pretrained")
    if len(tokenizer) > config.vocab_size:
        raise PosgapError(
            f"{form.model}: its tokenizer has {len(tokenizer)} tokens and its model {config.vocab_size}; "
            "they are not of one model"
        )
    if "lpes" in form.methods and not getattr(config, "rope_parameters", None):
        raise PosgapError(f"{form.model}: no rotary position embedding, and method lpes scales one; leave out lpes")
    return f"{config.model_type}, {config.num_hidden_layers} layers, {len(tokenizer)} tokens"


def _sweeps(form: PreflightConfig) -> str:
    from posgap.tasks.placements import swept_placements
    from posgap.tasks.prompts import get_task

    try:
        config = as_config("sweep", settings(form)["sweep"])
    except ValidationError:
        return "not to be told from this form"  # which is refused for it
    task = get_task(config.task)
    if task.n_gold != 1 and "lpes" in form.methods:
        raise PosgapError(f"methods: lpes searches on tasks with one gold document, and {form.task} has two")
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


@contextmanager
def _small_files(model: str) -> Iterator[tuple[str, list[str]]]:
    """The folder of a model, from S3 without its weights, and the names of all its files."""
    if not model.startswith(S3):
        if not Path(model).is_dir():
            raise PosgapError(f"{model}: no such folder")
        yield model, os.listdir(model)
        return
    bucket, _, prefix = model.removeprefix(S3).rstrip("/").partition("/")
    names = {key: key.removeprefix(f"{prefix}/") for key in _keys(model)}
    with tempfile.TemporaryDirectory() as folder:
        for key, name in names.items():
            if "/" not in name and name.endswith(_SMALL):
                _s3().download_file(bucket, key, f"{folder}/{name}")
        yield folder, list(names.values())


def _keys(uri: str) -> list[str]:
    """What S3 has at a URI, or below it; the first thousand."""
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = uri.removeprefix(S3).rstrip("/").partition("/")
    try:
        listed = _s3().list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", [])
    except (BotoCoreError, ClientError) as error:
        raise PosgapError(f"{uri}: cannot be read: {' '.join(str(error).split())}") from None
    keys = [one["Key"] for one in listed if one["Key"] == key or one["Key"].startswith(f"{key}/")]
    if not keys:
        raise PosgapError(f"{uri}: nothing there")
    return keys


def _s3():
    import boto3

    return boto3.client("s3")
