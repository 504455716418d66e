"""The trained model written as a Hugging Face folder, which is read back to see that it is the trained model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from posgap.distillation.lora import merge_adapters
from posgap.distillation.processes import by_deepspeed, trained_parameters
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.launch import is_main_process
from posgap.mitigations.in_force import load_model
from posgap.models.loading import save_model, without_flash_attention
from posgap.models.rounding import MIN_KEPT, dtype_name, round_weights

log = logging.getLogger(__name__)
FILE = "export.json"

# The most that rounding may make of the difference between two models' logits, by the precision: its root mean square,
# in standard deviations of the logits.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
PROBE_TOKENS = 128


@dataclass(frozen=True)
class Origin:
    """The start of a training, and how its result is written: the base's folder or name, the rank of adapters (0:
    none), the precision of the file ("auto": the base's), the seed of rounding, and whether its steps are kept."""

    model: str
    lora_rank: int
    export_dtype: str
    seed: int
    keeps_steps: bool


@dataclass(frozen=True)
class TrainedModel:
    """The result of a training: the changed parameters, by name, in float32 as the optimizer has them, and the `logits`
    of the model in training for the tokens `probe [1, T]`, in arithmetic of the precision `arithmetic`.

    If DeepSpeed has the parameters, the first process gathers them.
    """

    parameters: Mapping[str, Tensor]
    probe: Tensor
    logits: Tensor
    arithmetic: torch.dtype

    @classmethod
    def gather(cls, model: PreTrainedModel, ids: Tensor, accelerator: Accelerator) -> "TrainedModel":
        """Returns the result of a model whose training has ended; the probe is the beginning of `ids [R, S]`.

        Every process calls this.
        """
        without_flash_attention(model.eval())  # which computes in 16 bits only
        probe = ids[:1, :PROBE_TOKENS]
        parameters = trained_parameters(model, accelerator)
        # If parameters are sharded, all processes take part in a forward pass.
        logits = _logits(model, probe) if by_deepspeed(accelerator) or is_main_process() else torch.empty(0)
        return cls(parameters, probe, logits, model.dtype)


def export(origin: Origin, trained: TrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> dict[str, float]:
    """Writes the trained model into the folder `out`, with `export.json`; returns the figures in it.

    Raises `PosgapError` if the precision of the file would lose what training did, and if the folder that was
    written is not the trained model.
    """
    unset_hf_deepspeed_config()  # under ZeRO-3 models would be loaded in pieces, by all processes
    base = load_model(origin.model, "stored")
    model = _rebuild_unrounded(origin, trained)
    dtype = base.dtype if origin.export_dtype == "auto" else getattr(torch, origin.export_dtype)
    try:
        stored = round_weights(base, model.state_dict(), dtype, origin.seed)
    except PosgapError as error:
        raise PosgapError(f"export: {error}; give --export-dtype bfloat16 or float32") from None
    kept = stored.kept
    log.info(
        "export: %s of what training did; %.1f %% of the weights that it changed differ from the base",
        stored, 100 * kept.numbers,
    )  # fmt: skip
    if not kept.update >= MIN_KEPT:
        rest = "goes on from the checkpoint of the last step" if origin.keeps_steps else "trains again (--save-steps 0)"
        raise PosgapError(
            f"export: {stored} of what training did, less than {100 * MIN_KEPT:.0f} %; give --export-dtype float32: "
            f"the same command with it {rest}"
        )
    logits = _logits(_with_weights(model, stored.state), trained.probe)
    difference = _difference(logits, trained.logits)
    if difference > max(TOLERANCE[dtype], TOLERANCE[trained.arithmetic]):
        log.warning(
            "export: rounding to %s changes the logits by %.2g of their standard deviation; sweep what was written, or "
            "give --export-dtype float32", dtype_name(dtype), difference,
        )  # fmt: skip
    del model  # so that memory holds one model at a time, besides the stored weights
    save_model(base.to(dtype), tokenizer, out, dict(stored.state))  # type: ignore[arg-type]  # mypy misreads transformers' `to`
    del base
    written = load_model(str(out), "float32")  # it refuses weights that are missing, or left over
    _require_equal(written, stored.state)
    _require_same(_logits(written, trained.probe), logits, TOLERANCE[torch.float32])
    figures = {"kept_update": kept.update, "kept_numbers": kept.numbers, "logits_difference": difference}
    write_json(out / FILE, {"dtype": dtype_name(dtype), "rounding": stored.rounding, **figures})
    return figures


def _rebuild_unrounded(origin: Origin, trained: TrainedModel) -> PreTrainedModel:
    """The base with what training changed, in float32; `PosgapError` if its logits are not the trained model's."""
    model = load_model(origin.model, "float32")
    if origin.lora_rank:
        model = merge_adapters(model, trained.parameters, origin.lora_rank)
    else:
        _with_weights(model, trained.parameters)
    _require_same(_logits(model, trained.probe), trained.logits, TOLERANCE[trained.arithmetic])
    return model


def _require_same(logits: Tensor, expected: Tensor, allowed: float) -> None:
    if not (difference := _difference(logits, expected)) <= allowed:
        raise PosgapError(
            f"export: the written model is not the trained one: their logits differ by {difference:.2g} standard "
            f"deviations (rounding: at most {allowed:.2g}); please report this with the model's name"
        )


def _require_equal(written: PreTrainedModel, expected: Mapping[str, Tensor]) -> None:
    for name, parameter in written.named_parameters():
        if not torch.equal(parameter, expected[name].float()):
            raise PosgapError(f"export: {name} is not in the folder as it was written; please report this")


@torch.no_grad()
def _with_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids.to(model.device), use_cache=False).logits.float().cpu()


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).pow(2).mean().sqrt() / b.std())
