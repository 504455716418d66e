"""What a run of `distill` would take on given GPUs or a CPU, and which options let it fit: from the model's config
alone."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from math import ceil, inf, isinf
from typing import Any

import torch
from transformers import PretrainedConfig

from posgap.distillation.config import PlanDistillConfig
from posgap.distillation.engine import Schedule
from posgap.distillation.footprint import CHECKPOINT, MicroBatchShape, Size, activation_bytes, flops, size_of
from posgap.distillation.movement import Movement, default_learning_rate
from posgap.distillation.speed import PEAK_TFLOPS
from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.foundation.progress import track
from posgap.foundation.tables import markdown
from posgap.models.loading import load_config
from posgap.models.memory import available_bytes
from posgap.storage.inputs import with_local_paths

log = logging.getLogger(__name__)
GB = 1e9
USABLE = 0.92  # of a GPU's memory; the rest is the driver's, and lost between blocks. As much of a CPU's.
H100_GB, H100_TFLOPS = 80.0, PEAK_TFLOPS["H100"]
# The share of these that training reaches, and of a CPU's products of matrices: 0.8 was seen of SmolLM2 on one thread.
_MFU, _MFU_OF_CPU = 0.35, 0.7
LORA_RANK = 16
# DeepSpeed's defaults, in numbers of two bytes: two buckets of gradients, and of parameters those gathered at a time.
_BUCKETS, _GATHERED = 2 * 5e8 * 2, 1e9 * 2
_PROCESS = 0.4e9  # bytes that python and libraries take before there is a model


@dataclass(frozen=True)
class Way:
    """A way to train: on a cpu, alone on a GPU, data parallel, zero2 or zero3; all parameters or adapters
    (`lora_rank`)."""

    strategy: str
    checkpointing: bool
    lora_rank: int

    @property
    def arithmetic(self) -> str:
        """DeepSpeed computes with parameters in bfloat16, beside the optimizer's in float32; a CPU in float32
        alone."""
        if self.strategy == "cpu":
            return "float32"
        return "bfloat16 parameters" if self.strategy.startswith("zero") else "bfloat16"

    @property
    def bytes_kept(self) -> int:
        """The bytes of each number of the teacher's head and states, which are as precise as the student's."""
        return 2 if self.arithmetic == "bfloat16 parameters" else 4

    @property
    def activations(self) -> str:
        """The fate of activations until the backward pass, in words."""
        return "computed again" if self.checkpointing else "kept"

    def options(self) -> list[str]:
        """The options of `posgap distill` that ask for it."""
        return [
            *([f"--deepspeed {self.strategy}"] if self.strategy.startswith("zero") else []),
            *(["--gradient-checkpointing"] if self.checkpointing else []),
            *([f"--lora-rank {self.lora_rank}"] if self.lora_rank else []),
        ]

    @property
    def trained(self) -> str:
        """The part that is trained, in words."""
        return "adapters" if self.lora_rank else "all"


@dataclass(frozen=True)
class Need:
    """The memory that a way takes of each GPU: bytes that stand all the time, and the most there are while `rows`
    prompts are read, which is the number that fits, at most a process's share of a step. Where not even one fits,
    `rows` is 0; where what stands does not, the rest is not known."""

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
    beside = {"data parallel": 4 * trained, "cpu": CHECKPOINT * trained + _PROCESS}.get(way.strategy, 0)
    frozen = (size.bytes_beneath - 4) * size.beneath if way.arithmetic == "bfloat16" else 0
    return 4 * parameters + frozen + (4 + 8) * trained + beside + head


def export_bytes(way: Way, size: Size, stored: int) -> float:
    """The most of main memory that writing the model takes, whose base is stored in `stored` bytes a number, beside
    what the system keeps of files.

    The trained model stands in float32, and then what is read back, beside what is stored; numbers of float32 are not
    copied for that. On a CPU the model in training is there, too, and the optimizer no more.
    """
    here = 4 * size.parameters + way.bytes_kept * size.head if way.strategy == "cpu" else 0
    return _PROCESS + here + (4 + (stored if stored < 4 else 0)) * size.parameters


def ways(gpus: int) -> Iterator[Way]:
    """All ways, those first that train all parameters, compute nothing twice and exchange little."""
    strategies = ("data parallel", "zero2", "zero3") if gpus > 1 else ("alone",) if gpus else ("cpu",)
    for lora_rank in (0, LORA_RANK):
        for checkpointing in (False, True):
            for strategy in strategies:
                yield Way(strategy, checkpointing, lora_rank)


def need(
    config: PlanDistillConfig, way: Way, sized: Callable[[int], Size], taken: Callable[[MicroBatchShape], int]
) -> Need:
    """Returns what a way takes of each GPU, by the model's size with adapters of a rank and a micro-batch's working
    bytes."""
    size = sized(way.lora_rank)
    always = standing(way, size, config.gpus)
    free = USABLE * config.gpu_memory * GB - always
    if free < 0:
        return Need(way, always)
    share = ceil(config.batch_size / max(config.gpus, 1))
    rows, working = _most_rows(lambda rows: taken(_micro(config, way, rows)), share, free)
    return Need(way, always, rows, always + working)


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
    """Says what ways to train take of each GPU or of the CPU, up to the first that fits, which it suggests, and those
    that spread the same work otherwise; and how far so many updates can move the model. JSON goes to stdout.

    Raises `PosgapError` if none does.
    """
    config = _with_machine(config)
    model = load_config(config.model)
    limit = getattr(model.get_text_config(), "max_position_embeddings", None)
    if limit and config.prompt_tokens + config.response_tokens > limit:
        raise PosgapError(f"--prompt-tokens: with the response longer than the model's context of {limit} tokens")
    sized, taken = cache(partial(size_of, model)), cache(partial(activation_bytes, model))
    needs: list[Need] = []
    best: Need | None = None
    possible = list(ways(config.gpus))
    for way in track(possible, len(possible), "ways to train"):
        if best and (way.trained, way.activations) != (best.way.trained, best.way.activations):
            break
        needs.append(need(config, way, sized, taken))
        best = best or (needs[-1] if needs[-1].rows else None)
    for line in _table(needs).splitlines():
        log.info("%s", line)
    if not best:
        room = f"{config.gpus} GPUs of {config.gpu_memory:g} GB" if config.gpus else f"{config.gpu_memory:.3g} GB"
        raise PosgapError(
            f"{config.model}: not one prompt at a time fits into {room}, in any way to train; take "
            f"{'more GPUs' if config.gpus else 'more memory'}, or shorter prompts"
        )
    size, width = sized(best.way.lora_rank), config.prompt_tokens + config.response_tokens
    options = [*best.way.options(), f"--micro-batch-tokens {best.rows * width}"]
    prompts = config.epochs * config.n_examples * (config.k + 1)
    # The teacher reads forwards alone.
    counted = (prompts + config.n_examples / 3) * flops(model, _micro(config, best.way))
    # What is trained and the optimizer's means of it, in float32; two checkpoints are kept.
    checkpoints = 2 * 12 * size.trained
    states = best.way.bytes_kept * config.n_examples * config.response_tokens * model.get_text_config().hidden_size
    processes, updates = max(config.gpus, 1), ceil(prompts / config.batch_size)
    stored = model.dtype.itemsize if isinstance(model.dtype, torch.dtype) else 4
    export, share = export_bytes(best.way, size, stored), _MFU if config.gpus else _MFU_OF_CPU
    figures: dict[str, Any] = {
        "options": options,
        "updates": updates,
        "tokens": prompts * width,
        "operations": counted,
        "hours": counted / (processes * config.gpu_tflops * 1e12 * share) / 3600,
        "memory_gb": best.memory / GB,
        "export_gb": export / GB,
        "disk_gb": (checkpoints + states + 2 * size.parameters) / GB,
    }
    log.info("suggested: posgap distill --model %s %s", config.model, " ".join(options))
    log.info(
        "%d updates, %.3g tokens, %.3g operations: %.2f hours at %.0f %% of %.3g TFLOP/s%s; %.0f GB of disk for two "
        "checkpoints, the teacher's states and the model",
        updates, figures["tokens"], counted, figures["hours"], 100 * share, config.gpu_tflops,
        " a GPU" * bool(config.gpus), figures["disk_gb"],
    )  # fmt: skip
    log.info("writing the model takes %.1f GB of main memory", export / GB)
    if not best.way.lora_rank:  # adapters begin at 0, and any rate moves them
        rate = config.learning_rate or default_learning_rate(size.parameters)
        figures["movement"] = _movement(model, updates, rate)
    figures["ways"] = [asdict(each) for each in needs]
    show(json.dumps(figures), figures)
    return figures


def _with_machine(config: PlanDistillConfig) -> PlanDistillConfig:
    """The config with what is left open of the machine: an H100's figures, or of a CPU those of this machine."""
    memory, tflops = (H100_GB, H100_TFLOPS) if config.gpus else (0.0, 0.0)
    if not config.gpus and not config.gpu_memory:
        memory = available_bytes() / GB
        if isinf(memory):
            raise PosgapError("--gpu-memory: this system does not say how much memory is free; give it in GB")
    return config.model_copy(
        update={
            "gpu_memory": config.gpu_memory or memory,
            "gpu_tflops": config.gpu_tflops or tflops or measured_tflops(),
        }
    )


def measured_tflops(width: int = 1024, seconds: float = 0.3) -> float:
    """Returns what products of matrices in float32 reach on this machine's CPU, in TFLOP/s: the quickest of those that
    fit into so many seconds."""
    a, quickest, end = torch.ones(width, width), inf, time.perf_counter() + seconds
    while time.perf_counter() < end or quickest == inf:
        start = time.perf_counter()
        a @ a
        quickest = min(quickest, time.perf_counter() - start)
    return 2 * width**3 / quickest / 1e12


def _movement(model: PretrainedConfig, updates: int, rate: float) -> dict[str, float]:
    """How far the updates can move the model, said in a line, or in a warning where that is too little."""
    movement = Movement.estimate(model, updates, Schedule(rate).reach(updates))
    log.info("learning rate %g: %s", rate, movement)
    if warning := movement.warning():
        log.warning("%s", warning)
    return {
        "learning_rate": rate,
        "reach": movement.reach,
        "of_a_weight": movement.of_a_weight,
        "bfloat16_steps": movement.bfloat16_steps,
        "of_the_paper": movement.of_the_paper,
    }


def _table(needs: list[Need]) -> str:
    rows = [
        [
            each.way.strategy,
            each.way.trained,
            each.way.activations,
            f"{each.standing / GB:.1f} GB",
            f"{each.memory / GB:.1f} GB" if each.memory else "-",
            str(each.rows or "does not fit"),
        ]
        for each in needs
    ]
    columns = ["processes", "trained", "activations", "always there", "with prompts", "prompts at once"]
    return markdown(columns, rows, left=3)
