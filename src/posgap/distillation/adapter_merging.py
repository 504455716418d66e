"""The merging of an adapter into its base, weight by weight."""

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posgap.foundation.errors import PosgapError, first_line
from posgap.mitigations.in_force import load_model
from posgap.models import ADAPTER_WEIGHTS
from posgap.models.loading import load_tokenizer, save_model
from posgap.models.rounding import MIN_KEPT, round_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def merge_in_float32(base: str, adapter: Path) -> "PreTrainedModel":
    """The base with the adapter's changes added to its weights.

    `PosgapError` where the adapter does not fit the base, or is of a kind that cannot be merged.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise PosgapError(f"{adapter}: is an adapter; pip install 'posgap[train]' to merge it") from None
    model = load_model(base, "float32")
    with _one_line(adapter, base):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted: Any = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        if not hasattr(adapted.base_model, "merge_and_unload"):
            raise PosgapError(
                f"{adapter}: peft cannot merge adapters of type {adapted.peft_config['default'].peft_type}"
            )
        _require_its_weights(adapter, adapted)
        apart = _logits(adapted)
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
        # Rounding is far below it; an adapter on embeddings that are the output head too is far above.
        if (_logits(merged) - apart).abs().max() > apart.std() / 2:
            raise PosgapError(f"{adapter}: merged into {base} it computes something else, as with tied embeddings")
    return merged


def merge_adapter(base: str, adapter: Path, out: Path) -> dict[str, Any]:
    """Writes the base with the adapter's changes added to its weights, in the base's own precision, rounded as the
    export of a training is. Returns how, and how much of the changes is kept."""
    merged, model = merge_in_float32(base, adapter), load_model(base, "stored")
    try:
        stored = round_weights(model, merged.state_dict(), model.dtype)
    except PosgapError as error:
        raise PosgapError(f"{adapter}: merged into {base}: {error}") from None
    say = log.info if stored.kept.update >= MIN_KEPT else log.warning
    say("%s: merged into %s: %s of its changes", adapter, base, stored)
    tokenizer = base
    if (adapter / "tokenizer_config.json").is_file():
        # The adapter's own, in a folder that is none of an adapter.
        tokenizer = str(shutil.copytree(adapter, out.with_name("own"), ignore=shutil.ignore_patterns("adapter_*")))
        model.config.save_pretrained(tokenizer)
    save_model(model, load_tokenizer(tokenizer), out, dict(stored.state))
    return {"rounding": stored.rounding, "kept_update": stored.kept.update}


@torch.inference_mode()
def _logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(8)[None]).logits.float()


def _require_its_weights(adapter: Path, adapted: Any) -> None:
    """`PosgapError` unless the adapter's file has each of its weights and nothing else; peft goes on without."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    # Else peft reads the config of the base that the adapter names, which is that of the model here, or asks the hub.
    adapted.peft_config["default"].base_model_name_or_path = None
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="pt") as stored:
        differing = sorted(set(stored.keys()) ^ set(get_peft_model_state_dict(adapted)))
    if differing:
        raise PosgapError(f"{adapter}: does not fit its base: {differing[0]} and {len(differing) - 1} more weights")


@contextmanager
def _one_line(adapter: Path, base: str) -> Iterator[None]:
    """Within the block what peft raises, in many kinds, is a `PosgapError` of a line."""
    try:
        yield
    except (PosgapError, MemoryError):
        raise
    except Exception as error:
        reason = first_line(error)
        raise PosgapError(f"{adapter}: cannot be merged into {base}: {reason}") from None
