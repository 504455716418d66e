"""Plans what a run of `distill` would take on given GPUs or a CPU, and which options let it fit, from the model's
config alone."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from posgap.distillation.footprint import CHECKPOINT, MicroBatchShape, Size
from posgap.distillation.speed import PEAK_TFLOPS

log = logging.getLogger(__name__)
GB = 1e9
USABLE = 0.92  # of a GPU's memory; the rest is the driver's, and lost between blocks. As much of a CPU's.
H100_GB = 80.0
H100_TFLOPS = PEAK_TFLOPS["H100"]
# The share of these that training reaches, and of a CPU's products of matrices: 0.8 was seen of SmolLM2 on one thread.
MFU, MFU_OF_CPU = 0.35, 0.7
LORA_RANK = 16
# DeepSpeed's defaults, in numbers of two bytes: two buckets of gradients, and of parameters those gathered at a time.
_BUCKETS = 2 * 5e8 * 2
_GATHERED = 1e9 * 2
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
    """The memory that a way takes of each GPU: the constant bytes, and the peak bytes while `rows` prompts are read.
    `rows` is the number that fits, at most a process's share of a step. If not even one fits, `rows` is 0; if the
    constant bytes do not fit, the rest is unknown.
    """

    way: Way
    standing: float
    rows: int = 0
    memory: float = 0.0


def standing(way: Way, size: Size, gpus: int) -> float:
    """The bytes on each GPU for parameters, gradients, Adam's two means and the teacher's head; with several processes
    also for exchanging gradients."""
    parameters = size.parameters
    trained = size.trained
    head = way.bytes_kept * size.head
    if way.strategy == "zero3":
        return (2 * parameters + (2 + 4 + 4 + 8) * trained) / gpus + _GATHERED + _BUCKETS + head
    if way.strategy == "zero2":
        return 2 * parameters + (2 + 4 + 4 + 8) * trained / gpus + _BUCKETS + head
    beside = {"data parallel": 4 * trained, "cpu": CHECKPOINT * trained + _PROCESS}.get(way.strategy, 0)
    frozen = (size.bytes_beneath - 4) * size.beneath if way.arithmetic == "bfloat16" else 0
    return 4 * parameters + frozen + (4 + 8) * trained + beside + head


def export_bytes(way: Way, size: Size, stored: int) -> float:
    """Returns the peak main memory for writing the model, whose base is stored in `stored` bytes a number; the system's
    file cache is not counted.

    It holds the trained model in float32, then what is read back, besides the stored model; float32 numbers are not
    copied for that. On a CPU the model in training is there, too, but the optimizer is gone.
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


@dataclass(frozen=True)
class Workload:
    """A training and its machine: GPUs, the memory of each in GB, prompts in a step, the tokens of each prompt and of
    its response.
    """

    gpus: int
    gpu_memory: float
    batch_size: int
    prompt_tokens: int
    response_tokens: int

    @property
    def width(self) -> int:
        """The tokens of a prompt with its response."""
        return self.prompt_tokens + self.response_tokens

    def micro_batch(self, way: Way, rows: int = 1) -> MicroBatchShape:
        """Returns the shape of a micro-batch with this number of prompts."""
        return MicroBatchShape(rows, self.width, self.response_tokens, way.arithmetic, way.checkpointing, way.lora_rank)


def need(work: Workload, way: Way, sized: Callable[[int], Size], taken: Callable[[MicroBatchShape], int]) -> Need:
    """Returns what a way takes of each GPU, by the model's size with adapters of a rank and a micro-batch's working
    bytes."""
    size = sized(way.lora_rank)
    always = standing(way, size, work.gpus)
    free = USABLE * work.gpu_memory * GB - always
    if free < 0:
        return Need(way, always)
    share = ceil(work.batch_size / max(work.gpus, 1))
    rows, working = _most_rows(lambda rows: taken(work.micro_batch(way, rows)), share, free)
    return Need(way, always, rows, always + working)


def _most_rows(taken: Callable[[int], int], most: int, free: float) -> tuple[int, int]:
    """Returns the largest number of rows, up to `most`, that takes at most `free` bytes, and the bytes that it takes.

    If one row takes more, returns 0 and that row's bytes. The number is accurate to an eighth. Its bytes are measured,
    since they do not grow evenly with the rows: the peak comes in another phase at few rows than at many.
    """
    fits = (1, taken(1))
    above = (most, taken(most))
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
