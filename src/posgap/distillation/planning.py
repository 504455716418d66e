"""What a run of `distill` would take on given GPUs, and which options let it fit: from the model's config alone."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from math import ceil
from typing import Any

from posgap.distillation.config import PlanDistillConfig
from posgap.distillation.footprint import MicroBatchShape, Size, activation_bytes, flops, size_of
from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.foundation.progress import track
from posgap.foundation.tables import markdown
from posgap.models.loading import load_config
from posgap.storage.inputs import with_local_paths

log = logging.getLogger(__name__)
GB = 1e9
USABLE = 0.92  # of a GPU's memory; the rest is the driver's, and lost between blocks
LORA_RANK = 16
# DeepSpeed's defaults, in numbers of two bytes: two buckets of gradients, and of parameters those gathered at a time.
_BUCKETS, _GATHERED = 2 * 5e8 * 2, 1e9 * 2


@dataclass(frozen=True)
class Way:
    """A way to train: alone, data parallel, zero2, zero3 or fsdp; all parameters or adapters (`lora_rank`)."""

    strategy: str
    checkpointing: bool
    lora_rank: int

    @property
    def arithmetic(self) -> str:
        """DeepSpeed and FSDP2 compute with parameters in bfloat16, beside the optimizer's in float32."""
        return "bfloat16 parameters" if self.strategy in ("zero2", "zero3", "fsdp") else "bfloat16"

    @property
    def bytes_kept(self) -> int:
        """The bytes of each number of the teacher's head and states, which are as precise as the student's."""
        return 2 if self.arithmetic == "bfloat16 parameters" else 4

    @property
    def activations(self) -> str:
        """What becomes of them until the backward pass, in words."""
        return "computed again" if self.checkpointing else "kept"

    def options(self) -> list[str]:
        """The options of `posgap distill` that ask for it."""
        return [
            *([f"--deepspeed {self.strategy}"] if self.strategy.startswith("zero") else []),
            *(["--fsdp"] if self.strategy == "fsdp" else []),
            *(["--gradient-checkpointing"] if self.checkpointing else []),
            *([f"--lora-rank {self.lora_rank}"] if self.lora_rank else []),
        ]


@dataclass(frozen=True)
class Need:
    """What a way takes of each GPU: bytes that stand all the time, and the most there are while `rows` prompts are
    read, which is the number that fits, at most a process's share of a step. Where not even one fits, `rows` is 0;
    where what stands does not, the rest is not known."""

    way: Way
    standing: float
    rows: int = 0
    memory: float = 0.0


def standing(way: Way, size: Size, gpus: int) -> float:
    """The bytes on each GPU of parameters, gradients, Adam's two means and the teacher's head; of several processes
    also what they exchange gradients through."""
    parameters, trained, head = size.parameters, size.trained, way.bytes_kept * size.head
    if way.strategy == "zero3":
        return (2 * parameters + (2 + 4 + 4 + 8) * trained) / gpus + _GATHERED + _BUCKETS + head
    if way.strategy == "zero2":
        return 2 * parameters + (2 + 4 + 4 + 8) * trained / gpus + _BUCKETS + head
    if way.strategy == "fsdp":
        # Gathered in bfloat16: what is outside of layers, and two of them; and what has gradients there, before these
        # are summed in float32.
        gathered = 2 * (size.outside + 2 * size.layer)
        gathered += 6 * min(size.outside + size.layer, trained)
        return (4 * parameters + (4 + 8) * trained) / gpus + gathered + head
    exchanged = 4 * trained if way.strategy == "data parallel" else 0
    return 4 * parameters + (4 + 8) * trained + exchanged + head


def ways(gpus: int) -> Iterator[Way]:
    """All ways, those first that train all parameters, compute nothing twice and exchange little."""
    strategies = ("data parallel", "zero2", "zero3", "fsdp") if gpus > 1 else ("alone",)
    for lora_rank in (0, LORA_RANK):
        for checkpointing in (False, True):
            for strategy in strategies:
                yield Way(strategy, checkpointing, lora_rank)


def need(
    config: PlanDistillConfig, way: Way, sized: Callable[[int], Size], taken: Callable[[MicroBatchShape], int]
) -> Need:
    """What a way takes of each GPU, by the model's size with adapters of a rank and a micro-batch's working bytes."""
    size = sized(way.lora_rank)
    always = standing(way, size, config.gpus)
    # Where the optimizer is torch's, its step holds another number for each parameter, when nothing is being read.
    stepping = 0.0 if way.strategy.startswith("zero") else 4.0 * size.trained
    if way.strategy == "fsdp":
        stepping /= config.gpus
    free = USABLE * config.gpu_memory * GB - always
    if free < stepping:
        return Need(way, always)
    rows, working = _most_rows(
        lambda rows: taken(_micro(config, way, rows)), ceil(config.batch_size / config.gpus), free
    )
    return Need(way, always, rows, always + max(working, stepping))


def _most_rows(taken: Callable[[int], int], most: int, free: float) -> tuple[int, int]:
    """The largest number of rows, up to `most`, that takes at most `free` bytes, and the bytes that it takes.

    Where one takes more, 0, and the bytes of that one. The number is the largest to an eighth of it; its bytes are
    measured, since they do not grow by the same with each row: another phase has the peak at few rows than at many.
    """
    fits, above = (1, taken(1)), (most, taken(most))
    if fits[1] > free:
        return 0, fits[1]
    if above[1] <= free:
        return above
    while above[0] - fits[0] > max(1, fits[0] // 8):
        between = fits[0] + (above[0] - fits[0]) * (free - fits[1]) / (above[1] - fits[1])
        rows = min(max(int(between), fits[0] + 1), above[0] - 1)
        if (bytes_taken := taken(rows)) <= free:
            fits = rows, bytes_taken
        else:
            above = rows, bytes_taken
    return fits


def _micro(config: PlanDistillConfig, way: Way, rows: int = 1) -> MicroBatchShape:
    width = config.prompt_tokens + config.response_tokens
    return MicroBatchShape(rows, width, config.response_tokens, way.arithmetic, way.checkpointing, way.lora_rank)


@with_local_paths
def plan_distill(config: PlanDistillConfig) -> dict[str, Any]:
    """Says what ways to train take of each GPU, up to the first that fits, which it suggests, and those that spread
    the same work otherwise; JSON goes to stdout.

    Raises `PosgapError` if none does.
    """
    model = load_config(config.model)
    limit = getattr(model.get_text_config(), "max_position_embeddings", None)
    if limit and config.prompt_tokens + config.response_tokens > limit:
        raise PosgapError(f"--prompt-tokens: with the response longer than the model's context of {limit} tokens")
    sized, taken = cache(partial(size_of, model)), cache(partial(activation_bytes, model))
    needs: list[Need] = []
    best: Need | None = None
    possible = list(ways(config.gpus))
    for way in track(possible, len(possible), "ways to train"):
        if best and (way.lora_rank, way.activations) != (best.way.lora_rank, best.way.activations):
            break
        needs.append(need(config, way, sized, taken))
        best = best or (needs[-1] if needs[-1].rows else None)
    for line in _table(needs).splitlines():
        log.info("%s", line)
    if not best:
        raise PosgapError(
            f"{config.model}: not one prompt at a time fits into {config.gpus} GPUs of {config.gpu_memory:g} GB, in "
            "any way to train; take more GPUs, or shorter prompts"
        )
    size, width = sized(best.way.lora_rank), config.prompt_tokens + config.response_tokens
    options = [*best.way.options(), f"--micro-batch-tokens {best.rows * width}"]
    prompts = config.epochs * config.n_examples * (config.k + 1)
    # The teacher reads forwards alone.
    counted = (prompts + config.n_examples / 3) * flops(model, _micro(config, best.way))
    # What is trained and Adam's two means of it, in float32; two checkpoints are kept.
    checkpoints = 2 * 4 * 3 * size.trained
    states = best.way.bytes_kept * config.n_examples * config.response_tokens * model.get_text_config().hidden_size
    figures: dict[str, Any] = {
        "options": options,
        "updates": ceil(prompts / config.batch_size),
        "tokens": prompts * width,
        "operations": counted,
        "hours": counted / (config.gpus * config.gpu_tflops * 1e12 * config.mfu) / 3600,
        "memory_gb": best.memory / GB,
        "disk_gb": (checkpoints + states + 2 * size.parameters) / GB,
    }
    log.info("suggested: posgap distill --model %s %s", config.model, " ".join(options))
    log.info(
        "%d updates, %.3g tokens, %.3g operations: %.2f hours at %.0f %% of %g TFLOP/s a GPU; %.0f GB of disk for two "
        "checkpoints, the teacher's states and the model",
        figures["updates"], figures["tokens"], counted, figures["hours"], 100 * config.mfu, config.gpu_tflops,
        figures["disk_gb"],
    )  # fmt: skip
    figures["ways"] = [asdict(each) for each in needs]
    show(json.dumps(figures), figures)
    return figures


def _table(needs: list[Need]) -> str:
    rows = [
        [
            each.way.strategy,
            "adapters" if each.way.lora_rank else "all",
            each.way.activations,
            f"{each.standing / GB:.1f} GB",
            f"{each.memory / GB:.1f} GB" if each.memory else "-",
            str(each.rows or "does not fit"),
        ]
        for each in needs
    ]
    columns = ["processes", "trained", "activations", "always there", "with prompts", "prompts at once"]
    return markdown(columns, rows, left=3)
