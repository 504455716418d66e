"""plan distill: what training takes of given GPUs or of a CPU."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache, partial
from math import ceil, inf, isinf
from typing import Any

import torch
from transformers import PretrainedConfig

from posgap.distillation.engine import Schedule
from posgap.distillation.footprint import MicroBatchShape, Size, activation_bytes, flops, size_of
from posgap.distillation.movement import Movement, default_learning_rate
from posgap.distillation.planning import (
    GB,
    H100_GB,
    H100_TFLOPS,
    MFU,
    MFU_OF_CPU,
    Need,
    Workload,
    export_bytes,
    need,
    ways,
)
from posgap.foundation.errors import BadOption, NoRoom
from posgap.foundation.printing import show
from posgap.foundation.progress import track
from posgap.foundation.tables import markdown
from posgap.models.loading import load_config
from posgap.models.memory import available_bytes
from posgap.options.plan_distill import PlanDistillConfig
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)


@with_local_paths
def plan_distill(config: PlanDistillConfig) -> dict[str, Any]:
    """Says what ways to train take of each GPU or of the CPU, up to the first that fits, which it suggests, and other
    ways to spread the same work; and how far the updates can move the model. JSON goes to stdout.

    Raises `PosgapError` if none does.
    """
    config = _with_machine(config)
    work = Workload(**{field.name: getattr(config, field.name) for field in fields(Workload)})
    model = load_config(config.model)
    limit = getattr(model.get_text_config(), "max_position_embeddings", None)
    if limit and work.width > limit:
        raise BadOption(f"--prompt-tokens: with the response longer than the model's context of {limit} tokens")
    sized = cache(partial(size_of, model))
    needs = _try_ways(work, sized, cache(partial(activation_bytes, model)))
    for line in _table(needs).splitlines():
        log.info("%s", line)
    best = next((each for each in needs if each.rows), None)
    if not best:
        room = f"{config.gpus} GPUs of {config.gpu_memory:g} GB" if config.gpus else f"{config.gpu_memory:.3g} GB"
        raise NoRoom(
            f"{config.model}: not even one prompt fits into {room}, however it is trained; take "
            f"{'more GPUs' if config.gpus else 'more memory'}, or shorter prompts"
        )
    figures = _figures(config, work, model, best, sized(best.way.lora_rank))
    figures["ways"] = [asdict(each) for each in needs]
    show(json.dumps(figures), figures)
    return figures


def _try_ways(work: Workload, sized: Callable[[int], Size], taken: Callable[[MicroBatchShape], int]) -> list[Need]:
    """Returns the needs of each way to train, up to the first that fits and those that only spread the same work
    differently."""
    needs: list[Need] = []
    best: Need | None = None
    possible = list(ways(work.gpus))
    for way in track(possible, len(possible), "ways to train"):
        if best and (way.trained, way.activations) != (best.way.trained, best.way.activations):
            break
        needs.append(need(work, way, sized, taken))
        best = best or (needs[-1] if needs[-1].rows else None)
    return needs


def _figures(
    config: PlanDistillConfig, work: Workload, model: PretrainedConfig, best: Need, size: Size
) -> dict[str, Any]:
    """Says what training in the `best` way takes, and returns it."""
    options = [*best.way.options(), f"--micro-batch-tokens {best.rows * work.width}"]
    prompts = config.epochs * config.n_examples * (config.k + 1)
    # The teacher reads forwards alone.
    counted = (prompts + config.n_examples / 3) * flops(model, work.micro_batch(best.way))
    # The trained parameters and the optimizer's means of them, in float32; two checkpoints are kept.
    checkpoints = 2 * 12 * size.trained
    states = best.way.bytes_kept * config.n_examples * work.response_tokens * model.get_text_config().hidden_size
    updates = ceil(prompts / work.batch_size)
    stored = model.dtype.itemsize if isinstance(model.dtype, torch.dtype) else 4
    export = export_bytes(best.way, size, stored)
    share = MFU if work.gpus else MFU_OF_CPU
    figures: dict[str, Any] = {
        "options": options,
        "updates": updates,
        "tokens": prompts * work.width,
        "operations": counted,
        "hours": counted / (max(work.gpus, 1) * config.gpu_tflops * 1e12 * share) / 3600,
        "memory_gb": best.memory / GB,
        "export_gb": export / GB,
        "disk_gb": (checkpoints + states + 2 * size.parameters) / GB,
    }
    log.info("suggested: posgap distill --model %s %s", config.model, " ".join(options))
    log.info(
        "%d updates, %.3g tokens, %.3g operations: %.2f hours at %.0f %% of %.3g TFLOP/s%s; %.0f GB of disk for two "
        "checkpoints, the teacher's states and the model",
        updates, figures["tokens"], counted, figures["hours"], 100 * share, config.gpu_tflops,
        " a GPU" if work.gpus else "", figures["disk_gb"],
    )  # fmt: skip
    log.info("writing the model takes %.1f GB of main memory", export / GB)
    if not best.way.lora_rank:  # adapters begin at 0, and any rate moves them
        rate = config.learning_rate or default_learning_rate(size.parameters)
        figures["movement"] = _movement(model, updates, rate)
    return figures


def _with_machine(config: PlanDistillConfig) -> PlanDistillConfig:
    """Returns the config with open figures filled in: an H100's, or for a CPU this machine's."""
    memory, tflops = (H100_GB, H100_TFLOPS) if config.gpus else (0.0, 0.0)
    if not config.gpus and not config.gpu_memory:
        memory = available_bytes() / GB
        if isinf(memory):
            raise BadOption("--gpu-memory: this system does not say how much memory is free; give it in GB")
    return config.model_copy(
        update={
            "gpu_memory": config.gpu_memory or memory,
            "gpu_tflops": config.gpu_tflops or tflops or measured_tflops(),
        }
    )


def measured_tflops(width: int = 1024, seconds: float = 0.3) -> float:
    """Measures products of float32 matrices on this machine's CPU, in TFLOP/s: the quickest that fits into the given
    seconds."""
    a = torch.ones(width, width)
    quickest = inf
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or quickest == inf:
        start = time.perf_counter()
        a @ a
        quickest = min(quickest, time.perf_counter() - start)
    return 2 * width**3 / quickest / 1e12


def _movement(model: PretrainedConfig, updates: int, rate: float) -> dict[str, float]:
    """Describes in a line how far the updates can move the model; a warning if that is too little."""
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
