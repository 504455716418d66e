"""Loading Hugging Face models and tokenizers the one way posgap does: safetensors, no remote code."""

import copy
import functools
import inspect
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, get_session, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import BadModel, BadOption, BadOutput, NotFound, PosgapError, first_line
from posgap.foundation.files import read_object
from posgap.foundation.heavy_types import PreTrainedModel
from posgap.foundation.retries import within
from posgap.models import ADAPTER, CLOSED_TYPE, MERGING, NO_CONFIG
from posgap.models.closing import is_closed, load_closed_config, read_config, write_closable_config
from posgap.models.factors import is_altered
from posgap.models.tensors import EXPLICIT, weight_files

# For a model on the hub, no code.
_SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.bpe", "*.jinja", "*.md")
_WEIGHTS = "*.safetensors"
_INDEX = "*.index.json"  # of shards
_PLAIN = re.compile(r"[^./\\][^/\\]*")  # the name of a file beside it that is not hidden
_OTHER_WEIGHTS = ("consolidated*.safetensors", "*/*.safetensors")  # the same again, for other programs
HUB_SECONDS = 60.0  # for a model's small files
SILENCE_SECONDS = 10.0  # without a reply from the hub, before giving up
MAX_GROWTH = 100.0  # of a text by a tokenizer's replacements
MAX_PARTS = 4096  # layers, heads or experts that a config may name beyond what its weights have
MIN_WEIGHTS = 1 << 24  # that a config may request, whatever the files hold
_PACKED = 8  # weights that an element of a file may hold, as quantization packs them
_PARTS = re.compile(r"(layer|expert|head|block)s?$")
_SIZE = re.compile(r"(size|dim|rank|inner|embd)$")
_WHOLE = "get the whole model, or its own config.json"
transformers_logging.disable_progress_bar()


def _load_by(loader, path: str, what: str, weights: bool = False, **options):
    folder = model_folder(path, weights)
    if (folder / ADAPTER).exists():
        # transformers would load the base that it names, which no digest of its folder tells from another.
        raise BadModel(f"{path}: is an adapter, which posgap does not read; {MERGING}")
    require_own_files(folder)
    try:
        if (config := _closed_config(folder)) is not None:
            if loader is AutoConfig:
                return config
            options["config"] = config
        # A local folder needs no query to the hub.
        return loader.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True, **options)
    except (PosgapError, MemoryError):
        raise
    except Exception as error:  # readers of many formats, each with exceptions of its own
        reason = first_line(error)
        if not (folder / "config.json").is_file():
            reason = NO_CONFIG
        raise BadModel(f"no {what} to load here: {reason}", at=path) from None


def require_own_files(folder: Path) -> None:
    """`PosgapError` if the weights of a folder would be read from elsewhere, or from hidden files, since its digest
    is of its plain files alone."""
    for linked in filter(Path.is_symlink, folder.iterdir()):
        if linked.is_dir():
            raise BadModel(f"{linked}: is a link to a folder, which the model's digest does not cover; copy it there")
    named = list[object]()
    for index in folder.glob(_INDEX):
        weight_map = read_object(index).get("weight_map")
        named += weight_map.values() if isinstance(weight_map, dict) else [weight_map]
    config = folder / "config.json"
    if config.is_file() and EXPLICIT.encode() in read_bytes(config):
        named.append(read_object(config).get(EXPLICIT))
    for name in named:
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            raise BadModel(
                f"{folder}: reads weights from {name!r}, which the model's digest does not cover: shards are files of "
                "the folder itself that are not hidden; save the model again"
            )


def _closed_config(folder: Path) -> PretrainedConfig | None:
    """Returns the configuration of a folder with a closed config.json, which transformers refuses; None for others."""
    file = folder / "config.json"
    if not file.is_file() or CLOSED_TYPE.encode() not in read_bytes(file):
        return None
    whole = read_object(file)
    return load_closed_config(whole, str(folder)) if is_closed(whole) else None


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer. One without a padding token pads with its end token."""
    folder = model_folder(path, weights=False)
    _require_bounded(folder / "tokenizer.json")
    tokenizer = _load_by(AutoTokenizer, path, "tokenizer")
    if (folder / "config.json").is_file():
        _require_known_ids(path, tokenizer, load_config(path))
    return with_padding_token(tokenizer)


def _require_known_ids(path: str, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> None:
    """Raises `BadModel` if the tokenizer has ids for which the model has no embedding. Only a padding token may be one:
    it is removed, and the end token pads."""
    rows = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(rows, int):
        return
    beyond = {token: number for token, number in tokenizer.get_vocab().items() if number >= rows}
    if not beyond:
        return
    if beyond.keys() == {tokenizer.pad_token} and tokenizer.eos_token not in beyond:
        tokenizer.pad_token = None
        return
    token = max(beyond, key=lambda token: beyond[token])
    problem = f"its tokenizer has the id {beyond[token]} ({token!r}), and the model has embeddings for {rows} ids"
    raise BadModel(f"{problem}; get the model's own tokenizer", at=path)


def _require_bounded(tokenizer: Path) -> None:
    """`PosgapError` if the replacements of a tokenizer.json, one after the other, make a text far longer.

    Twenty that double a letter make a million of it, and sixty never end.
    """
    if not tokenizer.is_file() or b'"Replace"' not in read_bytes(tokenizer):
        return
    steps = [read_object(tokenizer).get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    growth = 1.0
    for step in steps:  # which grows by the steps within
        if isinstance(step, dict):
            steps += [each for inner in step.values() if isinstance(inner, list) for each in inner]
            pattern = step.get("pattern")
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            growth *= max(1.0, len(str(step.get("content", ""))) / len(str(replaced or "1")))
    if growth > MAX_GROWTH:
        raise BadModel(f"{tokenizer}: its replacements make a text up to {growth:.0e} times as long; get another one")


def with_padding_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns a tokenizer that pads: this one, or, if it has no padding token, a copy that pads with its end token."""
    if tokenizer.pad_token_id is not None:
        return tokenizer
    pads = copy.deepcopy(tokenizer)
    pads.pad_token = tokenizer.eos_token
    return pads


def load_config(path: str) -> PretrainedConfig:
    """The model's configuration."""
    config = _load_by(AutoConfig, path, "model")
    _require_one_rope(path)
    return config


def _require_one_rope(path: str) -> None:
    """Raises `PosgapError` if a config.json names RoPE twice: of these transformers reads `rope_scaling`, and takes
    its own default in place of the other's `rope_theta`."""
    file = Path(path) / "config.json"
    if not file.is_file():
        return
    whole = read_object(file)
    for part in [whole, *(value for value in whole.values() if isinstance(value, dict))]:
        old = part.get("rope_scaling")
        new = part.get("rope_parameters")
        if isinstance(old, dict) and isinstance(new, dict) and "rope_theta" in new and "rope_theta" not in old:
            raise BadModel(
                f"{file}: rope_scaling stands beside rope_parameters, whose rope_theta of {new['rope_theta']:g} would "
                "be lost; write what rope_scaling says into rope_parameters, and leave it out"
            )


def load_as_trained(path: str, dtype: str = "auto", compute: str = "") -> PreTrainedModel:
    """Loads a causal language model from safetensors, in evaluation mode, on the CPU, without the mitigations that its
    config names. Callers use `posgap.mitigations.in_force.load_model`, which applies those.

    `dtype` of the parameters: "auto" is bfloat16 if there is a GPU, else float32; "stored" is the file's. `compute` is
    the precision of the arithmetic if autocast changes it. Attention is FlashAttention-2 if the machine has it and the
    arithmetic is in 16 bits, else transformers' choice (sdpa).

    Raises `PosgapError` if weights are missing, left over, of another shape, or not finite, if unused weight files lie
    beside those that load, and if the model is not causal.
    """
    # Reading only a config or a tokenizer need not wait for the imports of whole models.
    from transformers import AutoModelForCausalLM

    config = load_config(path)
    require_causal_family(path, config)
    _require_sizes(path, config)
    if Path(path).is_dir():
        weight_files(Path(path))
    kept = config.dtype or torch.float32 if dtype == "stored" else resolve_dtype(dtype)
    arithmetic = resolve_dtype(compute) if compute else kept
    flash = torch.cuda.is_available() and is_flash_attn_2_available() and arithmetic in (torch.bfloat16, torch.float16)
    flash = flash and not getattr(config, "alibi", False)  # Falcon's refuses biases
    # sdpa of transformers before 5.21 leaves out what caps attention's scores (Gemma 2).
    otherwise = "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None
    with without_reports():
        model, report = _load_by(
            AutoModelForCausalLM,
            path,
            "model",
            weights=True,
            dtype=kept,
            use_safetensors=True,
            attn_implementation="flash_attention_2" if flash else otherwise,
            ignore_mismatched_sizes=True,  # which the report then has
            output_loading_info=True,
        )
    require_whole(path, report)
    _require_packed(path, model)
    _require_finite(path, model.named_parameters())
    _require_causal(path, model.eval())
    return model


def _require_packed(path: str, model: PreTrainedModel) -> None:
    """`PosgapError` if a config asks for bitsandbytes and the weights are not packed yet, which takes a GPU."""
    packed = any(not weight.is_floating_point() for weight in model.parameters())
    if getattr(model, "quantization_method", "") == "bitsandbytes" and not packed and not torch.cuda.is_available():
        raise BadModel(
            f"{path}: config.json asks for bitsandbytes, which quantizes these weights only on a GPU; remove "
            "its quantization_config to run the model unquantized, or give a model that was saved quantized"
        )


def _require_sizes(path: str, config: PretrainedConfig) -> None:
    """Raises `BadModel` if a folder's config asks for more layers, or larger ones, than its weights have, before memory
    is taken for them."""
    shapes: list[list[int]] = []
    for file in Path(path).glob(_WEIGHTS):
        with (
            suppress(SafetensorError, OSError),
            safe_open(file, framework="pt") as tensors,
        ):  # damage is reported later
            shapes += [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118 (it is no dict)
    if not shapes:
        return
    widest = max(chain(*shapes), default=0)
    text = config.get_text_config()
    for name, most in {"vocab_size": widest, "hidden_size": widest, "num_hidden_layers": len(shapes)}.items():
        _require_size(path, name, getattr(text, name, None), most)
    values = text.to_dict()
    for name in filter(_PARTS.search, values):  # a number of parts, each of which would be made
        _require_size(path, name, values[name], max(widest, len(shapes), MAX_PARTS))
    stored = sum(map(math.prod, shapes))
    asked = _count_weights(config)
    if asked <= max(_PACKED * stored, MIN_WEIGHTS):
        return
    for name in filter(_SIZE.search, values):
        _require_size(path, name, values[name], widest)
    raise BadModel(f"config.json asks for {asked:,} weights, and the files hold {stored:,}; {_WHOLE}", at=path)


def _require_size(path: str, name: str, claimed: object, most: int) -> None:
    if isinstance(claimed, int) and claimed > most:
        raise BadModel(f"config.json says {name} {claimed:,}, and the weights have at most {most:,}; {_WHOLE}", at=path)


def _count_weights(config: PretrainedConfig) -> int:
    """The number of weights of a config's model, which is made without memory for them; 0 if it cannot be made so."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    with suppress(Exception), torch.device("meta"):  # families' own; loading the model reports the error
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](copy.deepcopy(config))  # type: ignore[operator]  # one class, for causal models
        return sum(tensor.numel() for tensor in chain(model.parameters(), model.buffers()))
    return 0


@contextmanager
def without_reports() -> Iterator[None]:
    """Within the block transformers prints no tables of weights; posgap reports their content in a line."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def require_whole(path: str, report: Mapping[str, Iterable[Any]]) -> None:
    """Raises `PosgapError` unless every weight of the model was in its files, and nothing else; transformers would use
    random ones. What the family leaves out (tied weights, buffers) is in no such report."""
    faults = {
        "missing_keys": "are missing",
        "unexpected_keys": "are not the model's",
        "mismatched_keys": "have another shape",
    }
    for kind, fault in faults.items():
        names = sorted(key if isinstance(key, str) else key[0] for key in report.get(kind) or ())
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise BadModel(f"{path}: weights {fault}: {names[0]}{more}; get the whole model, or save it again")


def require_causal_family(path: str, config: PretrainedConfig) -> None:
    """`PosgapError` if transformers has no causal language model of a family: models that see or hear and answer in
    words (Qwen2.5-VL, LLaVA), encoders with decoders (T5)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    reads = "reads images too, and " if hasattr(config, "vision_config") else ""
    raise BadModel(
        f"{path}: {reads}is of a family, {config.model_type}, that transformers does not load as a causal language "
        "model; give a model that is one"
    )


@torch.inference_mode()
def _require_causal(path: str, model: Any) -> None:
    """Raises `PosgapError` if a later token changes a model's output at earlier ones, as in BERT and similar models.

    Six tokens show it. They are read only if no attention layer says that it is causal, or the config says that it is
    not. Of today's families these are some encoders and a few that say nothing.
    """
    says_so = any(getattr(module, "is_causal", False) for module in model.modules())
    in_doubt = not says_so or getattr(model.config.get_text_config(), "use_bidirectional_attention", False)
    # Under ZeRO-3 the weights are sharded; there the whole model has already given the teacher's answers.
    if not in_doubt or not all(weight.numel() for weight in model.parameters()):
        return
    ids = torch.arange(1, 7).repeat(2, 1)
    ids[1, -1] = 1
    uncached = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    one, other = model(input_ids=ids, **uncached).logits[:, :-1].float()
    if (one - other).abs().max() > one.std() / 100:
        raise BadModel(f"{path}: attends in both directions, like an encoder; give a causal language model")


def require_finite_files(folder: Path) -> None:
    """`PosgapError` if a safetensors file of a folder is damaged, holds NaN or infinity, or lies beside those that
    load."""
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                _require_finite(str(file), ((name, tensors.get_tensor(name)) for name in tensors.keys()))  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise BadModel(f"{file}: cannot be read: {first_line(error)}") from None


def _require_finite(where: str, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """`PosgapError` if one holds NaN or infinity. Takes a pass through memory, some 10 GB a second."""
    for name, weight in weights:
        # For weights packed into 8 bits it checks the scales.
        if not weight.is_floating_point() or weight.dtype.itemsize == 1 or not weight.numel():
            continue
        if not all(map(math.isfinite, torch.aminmax(weight.detach()))):
            raise BadModel(f"{where}: weights are NaN or infinite: {name}; the training that made them went wrong")


def on_device(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """The model, moved."""
    if torch.device(device).type == "cuda":
        disable_cudnn_attention()
    return model.to(device)  # type: ignore[arg-type]  # mypy misreads transformers' decorated `to`


def disable_cudnn_attention() -> None:
    """Makes torch use its other kernels in this process. cuDNN plans each new shape, which took an H200 150 ms: every
    generated token is a new shape, and so is each length of a prompt."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def model_folder(path: str, weights: bool = True) -> Path:
    """Returns the folder of a model: the path itself, or the cache's folder with the hub's files of this name,
    downloaded if needed; without `weights`, the small files alone.

    `NAME@REVISION` is the model at that commit, tag or branch. The hub is asked once per process and name, so all parts
    of a model come from one commit. If it does not answer, or HF_HUB_OFFLINE is set, the cached files are used. Raises
    `PosgapError` if the cache has none.
    """
    if Path(path).is_dir():
        return Path(path)
    try:
        folder = Path(within(HUB_SECONDS, lambda: _snapshot(path, weights=False)))
        return Path(_snapshot(f"{path.partition('@')[0]}@{folder.name}", weights=True)) if weights else folder
    except (OSError, ValueError) as error:  # the hub's errors are OSErrors, a malformed name a ValueError
        reason = first_line(error)
        if constants.is_offline_mode():
            reason = f"HF_HUB_OFFLINE is set, and the cache ({constants.HF_HUB_CACHE}) does not have it"
        elif isinstance(error, LocalEntryNotFoundError):
            raise NotFound(
                f"{path}: no such folder, and the hub cannot be asked for it ({reason.removeprefix('Got: ')}); "
                "without a network give the folder of the model"
            ) from None
        raise NotFound(f"{path}: no such folder, nor a model on the hub: {reason}") from None


@functools.cache
def _snapshot(name: str, weights: bool) -> str:
    """The folder of the hub's files in the cache; `name` may end in `@REVISION`."""
    name, _, revision = name.partition("@")
    wanted = [*_SMALL, _WEIGHTS] if weights else [*_SMALL]
    get_session().timeout = SILENCE_SECONDS  # the library itself would wait for ever in queries
    return snapshot_download(name, revision=revision or None, allow_patterns=wanted, ignore_patterns=[*_OTHER_WEIGHTS])


def commit_on_hub(path: str) -> str:
    """The commit of a model on the hub, by its name."""
    return model_folder(path, weights=False).name  # .../snapshots/<commit>


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the model computes attention so that its matrices exist."""
    before = model.config._attn_implementation
    _set_attention(model, "eager")
    falcons = [module for module in model.modules() if type(module).__name__ == "FalconAttention"]
    hooks = [module.register_forward_pre_hook(_biased_once, with_kwargs=True) for module in falcons]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _set_attention(model, before)


def _biased_once(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Returns the arguments of Falcon's attention without ALiBi's biases, if its mask already has them: transformers
    5.23's eager attention adds them a second time, sdpa does not."""
    alibi = kwargs.get("alibi")
    mask = kwargs.get("attention_mask")
    if alibi is not None and mask is not None and mask.is_floating_point():
        least = torch.finfo(mask.dtype).min
        if ((mask > least / 2) & (mask != 0)).any():
            kwargs["alibi"] = torch.zeros_like(alibi)
    return args, kwargs


def without_flash_attention(model: PreTrainedModel) -> None:
    """From now on attention is computed in the precision of the parameters, in whichever that is."""
    if "flash" in str(model.config._attn_implementation):
        _set_attention(model, "sdpa")


def _set_attention(model: PreTrainedModel, name: str) -> None:
    if model._can_set_attn_implementation():
        model.set_attn_implementation(name)
    else:
        # Such families (Falcon) read their config at every call.
        model.config._attn_implementation = name


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, state: dict | None = None
) -> None:
    """Writes a Hugging Face folder in safetensors, closed if the model's config names something that only posgap
    applies; `state` stands in for parameters kept elsewhere."""
    if state is not None:
        tied = getattr(model, "all_tied_weights_keys", {})
        state = {name: tensor for name, tensor in state.items() if name not in tied}
    try:
        model.save_pretrained(out, state_dict=state)
        tokenizer.save_pretrained(out)
        if is_altered(model.config):
            write_closable_config(out, read_config(out))
    # transformers before 5.23 refuses to write a generation config with settings that have no effect, even one that it
    # read.
    except (OSError, SafetensorError, ValueError) as error:
        raise BadOutput(f"{out}: the model could not be written: {' '.join(str(error).split())}") from None
    for weights in out.glob("*.safetensors"):
        shutil.copymode(out / "config.json", weights)  # safetensors makes them readable by their owner alone


def resolve_dtype(name: str) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    if name == "tf32":
        if not torch.cuda.is_available():
            raise BadOption("dtype: tf32 is the arithmetic of a GPU, and this machine has none; give float32")
        return torch.float32
    return getattr(torch, name)


def context_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the number of tokens that the model can read: the smaller of the model's and the tokenizer's limits."""
    declared = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(declared or tokenizer.model_max_length, tokenizer.model_max_length)
