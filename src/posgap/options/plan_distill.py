"""Options of `plan distill`."""

from pydantic import Field

from posgap.foundation.fields import (
    MODEL,
    ModelName,
)
from posgap.options.distill import _Training
from posgap.options.verb import Kind, Verb


class PlanDistillConfig(_Training):
    """Says what `distill` would take on given GPUs or on a CPU (memory, hours, disk), which options let it fit, and
    whether the updates can move the model.

    Of the model its config alone is read: it needs neither its weights nor a GPU."""

    model: ModelName = Field(description=MODEL)
    gpus: int = Field(1, ge=0, le=4096, description="number of GPUs, one process each; 0: train on the CPU, in float32")
    gpu_memory: float = Field(
        0.0, ge=0, description="memory of each GPU, in GB of 10^9 bytes; 0: 80, and of a CPU what this machine has free"
    )
    gpu_tflops: float = Field(
        0.0,
        ge=0,
        description="TFLOP/s of each GPU in bfloat16 by its maker, without sparsity; training is assumed to reach "
        "35 %; 0: 989, an H100 SXM's, and on a CPU the measured speed of a matrix product",
    )
    prompt_tokens: int = Field(4096, ge=2, description="tokens of a prompt")
    response_tokens: int = Field(40, ge=1, description="tokens of a response")
    n_examples: int = Field(300, ge=1, description="training examples")


VERB = Verb(PlanDistillConfig, "--model Qwen/Qwen3-0.6B --gpus 4 --gpu-memory 80", kind=Kind.NEEDS_MODEL)
