"""distill: train the model with its own answers from its best position."""

import logging
from pathlib import Path

import torch
from accelerate.utils import set_seed

from posgap.config import DistillConfig
from posgap.distillation import processes
from posgap.distillation.batches import Collator, pair_up, plan
from posgap.distillation.engine import Optimization, train
from posgap.distillation.r1 import R1
from posgap.distillation.teacher_states import TeacherStates
from posgap.errors import PosgapError
from posgap.files import write_jsonl
from posgap.models import load_config, load_model, resolve_dtype, save_model
from posgap.stage import is_main_process, stage
from posgap.tasks.examples import read_examples
from posgap.tasks.responses import read_responses
from posgap.tasks.setup import prompt_builder
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def distill(config: DistillConfig, out: Path, run: Run) -> None:
    """Writes the trained model as a Hugging Face folder, and `history.jsonl` with every step."""
    set_seed(config.seed)
    pairs = pair_up(read_examples(config.examples), read_responses(config.responses))
    placements = {pair.response.at for pair in pairs}
    if len(placements) > 1:
        raise PosgapError(f"{config.responses}: responses from {len(placements)} placements; the teacher needs one")
    (placement,) = placements
    (advantageous,) = placement.positions
    longest = max(len(pair.response.token_ids) for pair in pairs)
    build = prompt_builder(config.task, config.model, longest)
    # Updates of 3e-6 vanish in bfloat16 parameters, so those are float32 and only the arithmetic is not.
    model, mixed = load_model(config.model, "float32"), resolve_dtype(config.dtype) == torch.bfloat16
    collate = Collator(pairs, build)
    steps = plan(len(pairs), placement.n_docs, advantageous, config.k, config.epochs, config.batch_size, config.seed)
    # Before Accelerate comes in: ZeRO-3 would load the model in pieces, and the teacher reads it whole.
    teacher = TeacherStates(model.to(processes.device()), pairs, collate, config.batch_size, mixed)
    accelerator = processes.accelerator(mixed)
    objective = R1(teacher, advantageous, config.anchoring)
    history: list[dict[str, float]] = []

    def record(step: int, figures: dict[str, float]) -> None:
        history.append({"step": step, **figures})
        run.metrics(figures, step=step)

    optimization = Optimization(config.learning_rate, config.warmup_steps, config.max_grad_norm)
    trained = train(model, steps, objective, collate, optimization, accelerator, record)
    state = accelerator.get_state_dict(trained)
    if is_main_process():
        stored = load_config(config.model).dtype or torch.float32
        save_model(model.to(stored), build.tokenizer, out, {name: tensor.to(stored) for name, tensor in state.items()})
        write_jsonl(out / "history.jsonl", history)
        run.artifact(out / "history.jsonl")
        log.info(
            "loss %.4f at the first of %d steps, %.4f at the last", history[0]["loss"], len(steps), history[-1]["loss"]
        )
