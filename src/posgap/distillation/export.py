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

from posgap.config import DistillConfig
from posgap.distillation.lora import merged
from posgap.distillation.processes import trained_parameters
from posgap.distillation.rounding import Kept, stochastic
from posgap.errors import PosgapError
from posgap.files import write_json
from posgap.launch import is_main_process
from posgap.models.loading import load_model, save_model, without_flash_attention

log = logging.getLogger(__name__)
FILE = "export.json"

# The least share of the update that must be in what is written.
LEAST_KEPT = 0.9
# The most that rounding may make of the difference between two models' logits, by the precision: its root mean square,
# in standard deviations of the logits.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
PROBE_TOKENS = 128
ROUNDING = {"nearest": "to the nearest numbers", "stochastic": "up or down at random"}


@dataclass(frozen=True)
class Trained:
    """What came of training: the parameters that it changed, by name, in float32 as the optimizer has them, and the
    `logits` that the model in training gives to the tokens `probe [1, T]`, in arithmetic of the precision `arithmetic`.

    Where DeepSpeed has the parameters, they are gathered on the first process.
    """

    parameters: Mapping[str, Tensor]
    probe: Tensor
    logits: Tensor
    arithmetic: torch.dtype

    @classmethod
    def of(cls, model: PreTrainedModel, best: Mapping[str, Tensor], ids: Tensor, accelerator: Accelerator) -> "Trained":
        """Of a model whose training has ended; the probe is the beginning of `ids [R, S]`.

        `best`, where there are any, are parameters that the first process's model has been given since. Every process
        calls this.
        """
        without_flash_attention(model.eval())  # which computes in 16 bits only
        probe = ids[:1, :PROBE_TOKENS]
        parameters = trained_parameters(model, accelerator)
        # ZeRO-3 needs them all for one forward pass.
        together = accelerator.state.deepspeed_plugin is not None
        logits = _logits(model, probe) if together or is_main_process() else torch.empty(0)
        return cls(best or parameters, probe, logits, model.dtype)


def export(config: DistillConfig, trained: Trained, tokenizer: PreTrainedTokenizerBase, out: Path) -> dict[str, float]:
    """Writes the trained model into the folder `out`, with `export.json`; returns the figures in it.

    Raises `PosgapError` where the precision of the file would lose what training did, and where the folder that was
    written is not the trained model.
    """
    unset_hf_deepspeed_config()  # under ZeRO-3 models would be loaded in pieces, by all processes
    base = load_model(config.model, "stored")
    after = trained.parameters
    if config.lora_rank:
        after = merged(load_model(config.model, "float32"), after, config.lora_rank, config.lora_alpha)
    dtype = base.dtype if config.export_dtype == "auto" else getattr(torch, config.export_dtype)
    rounding, state, kept = _rounded(config, base, after, dtype)
    left = (
        f"in {_name(dtype)}, rounded {ROUNDING[rounding]}, the weights keep {100 * kept.update:.1f} % of what training"
    )
    log.info("export: %s did; %.1f %% of the numbers that it changed are not the base's", left, 100 * kept.numbers)
    if not kept.update >= LEAST_KEPT:
        ways = ["--export-dtype float32"] + ["--export-rounding stochastic"] * (rounding == "nearest")
        rest = "goes on from the checkpoint of the last step" if config.save_steps else "trains again (--save-steps 0)"
        raise PosgapError(
            f"export: {left} did, less than {100 * LEAST_KEPT:.0f} %; give {' or '.join(ways)}: the same command with "
            f"it {rest}"
        )
    save_model(base.to(dtype), tokenizer, out, state)  # type: ignore[arg-type]  # mypy misreads transformers' `to`
    difference = _proven(out, trained, after, state, dtype)
    figures = {"kept_update": kept.update, "kept_numbers": kept.numbers, "logits_difference": difference}
    write_json(out / FILE, {"dtype": _name(dtype), "rounding": rounding, **figures})
    return figures


def _rounded(
    config: DistillConfig, base: PreTrainedModel, after: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[str, dict[str, Tensor], Kept]:
    """How the weights were rounded, what is to be stored, and how much of the update is left in it."""
    before = base.state_dict()
    tied = getattr(base, "all_tied_weights_keys", None) or {}
    for rounding in ("nearest", "stochastic") if config.export_rounding == "auto" else (config.export_rounding,):
        kept, state = Kept(), {}
        for name, tensor in before.items():
            if name in tied:
                continue
            # What a family keeps in a precision of its own stays in that.
            kind = dtype if tensor.dtype == base.dtype else tensor.dtype
            value = after.get(name, tensor).detach().cpu()
            is_rounded = rounding == "stochastic" and value.is_floating_point()
            state[name] = stochastic(value.float(), kind, config.seed, name) if is_rounded else value.to(kind)
            if value.is_floating_point() and not state[name].isfinite().all():
                raise PosgapError(f"export: {_name(kind)} cannot hold {name}; give --export-dtype bfloat16 or float32")
            if name in after:
                kept.add(tensor, value, state[name])
        if kept.update >= LEAST_KEPT:
            break
    return rounding, state, kept


def _proven(
    out: Path, trained: Trained, after: Mapping[str, Tensor], state: Mapping[str, Tensor], dtype: torch.dtype
) -> float:
    """Reads the folder and returns how far its logits are from the trained model's; `PosgapError` where that is for
    more than rounding, and a warning where rounding changes much."""
    written = load_model(str(out), "float32")  # refuses weights that are missing, or left over
    for name, parameter in written.named_parameters():
        if not torch.equal(parameter, state[name].float()):
            raise PosgapError(f"export: {name} is not in the folder as it was written; please report this")
    difference = _difference(_logits(written, trained.probe), trained.logits)
    with torch.no_grad():
        for name, parameter in written.named_parameters():
            parameter.copy_(after.get(name, parameter))
    unrounded = _difference(_logits(written, trained.probe), trained.logits)
    if not unrounded <= (allowed := TOLERANCE[trained.arithmetic]):
        raise PosgapError(
            f"export: what was written is not the trained model: their logits differ by {unrounded:.2g} of a standard "
            f"deviation, of which arithmetic explains {allowed:g}; please report this with the model's name"
        )
    if difference > max(TOLERANCE[dtype], allowed):
        log.warning(
            "export: rounding to %s changes the logits by %.2g of their standard deviation; sweep what was written, or "
            "give --export-dtype float32", _name(dtype), difference,
        )  # fmt: skip
    return difference


@torch.no_grad()
def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids.to(model.device), use_cache=False).logits.float().cpu()


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).pow(2).mean().sqrt() / b.std())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
