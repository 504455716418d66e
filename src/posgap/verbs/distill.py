"""distill: train the model with its own answers from its best position."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import PreTrainedModel

from posgap.data.reading import read_examples
from posgap.distillation import processes, rounding_floor
from posgap.distillation.batches import (
    Collator,
    Draw,
    Pair,
    TrainingPrompt,
    drawable_placements,
    pair_up,
    plan_steps,
    teacher_prompts,
)
from posgap.distillation.checkpoints import Checkpoints, History
from posgap.distillation.dropout import without_dropout
from posgap.distillation.engine import NotFinite, Schedule, train
from posgap.distillation.evaluation import MOST, Evaluation, held_out_pairs
from posgap.distillation.export import Origin, TrainedModel, export
from posgap.distillation.footprint import CHECKPOINT
from posgap.distillation.frozen import keep_in_bfloat16
from posgap.distillation.held_out import HISTORY_FILE, describe
from posgap.distillation.lora import add_adapters
from posgap.distillation.methods import METHODS, R1Parameters
from posgap.distillation.movement import Movement, default_learning_rate
from posgap.distillation.objectives import Objective
from posgap.distillation.optimizers import BYTES_KEPT
from posgap.distillation.planning import LORA_RANK
from posgap.distillation.student import Student
from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
from posgap.foundation import files
from posgap.foundation.errors import BadOption, PosgapError, Rejection
from posgap.foundation.files import write_json, write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.launch import gather_from_all, is_main_process
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.asking import ResponseLimits
from posgap.generation.setup import builder_of
from posgap.measurement.plain_text import read_texts
from posgap.mitigations.in_force import load_model
from posgap.models.checkpointing import checkpoint_activations
from posgap.models.loading import commit_on_hub, load_config, resolve_dtype
from posgap.models.memory import require_disk, require_memory
from posgap.models.rope_lengths import RopeLengths
from posgap.options.distill import DistillConfig
from posgap.storage.folders import ResumableFolder
from posgap.storage.lineage import training_examples, write_training_examples
from posgap.tasks.content import content_keys, with_content_keys
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import at_one_placement, describe_poor_teacher, read_responses, require_prompts
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)


@stage
def distill(config: DistillConfig, out: Path, run: Run) -> Callable[[], None]:
    """Writes the trained model as a Hugging Face folder, `history.jsonl` with every step, and
    `training_examples.json` with the examples that it, and the model it came from, learnt.

    Checkpoints and teacher states are in `config.work` while it runs, by default beside `out`; the function that it
    returns removes checkpoints once the model is complete. If a loss is not finite, `non_finite.json` names the prompts
    at fault.
    """
    set_seed(config.seed)
    torch.set_float32_matmul_precision("high" if config.dtype == "tf32" else "highest")
    pairs, collate = _read_data(config)
    steps, objective = _plan(config, pairs)
    mixed = resolve_dtype(config.dtype) == torch.bfloat16
    accelerator = processes.accelerator(mixed, config.deepspeed)
    model = _load_model(config)
    _require_room(config, out, model, accelerator)
    if processes.is_by_autocast(accelerator):
        keep_in_bfloat16(model)
    evaluation = _evaluation(config, collate)
    schedule = Schedule(config.learning_rate or _choose_learning_rate(config, model), config.warmup_steps)
    _warn_before_training(config, model, schedule, len(steps), accelerator)
    work = ResumableFolder(config.work or files.work_folder(config.out))
    teacher = _teacher(config, work, collate, model, accelerator) if METHODS[config.method].needs_teacher else None
    student = Student(model, objective, teacher)
    checkpoints = Checkpoints(work / f"checkpoints-{_fingerprint(config, collate, evaluation)}")
    try:
        with resumable(after_ctrl_c=config.save_steps > 0):
            _, history = train(
                student,
                steps,
                objective,
                collate,
                schedule,
                accelerator,
                micro_batch_tokens=config.micro_batch_tokens,
                checkpoints=checkpoints,
                save_steps=config.save_steps,
                on_step=partial(_log_step, run),
                evaluation=evaluation,
                keep_best=config.keep == "best",
            )
    except NotFinite as error:
        if is_main_process():
            write_json(out / "non_finite.json", _at_fault(error, pairs))
        raise Rejection(f"{error}. They are named in {config.out}.rejected/non_finite.json") from None
    _tell(logging.WARNING, rounding_floor.warning(history))
    _tell(logging.INFO, objective.summarize_weights(history))
    held_out = describe(history, config.keep)
    _tell(RESULT, held_out and f"held out: {held_out}")
    trained = TrainedModel.gather(model, collate(teacher_prompts(pairs[:1])).input_ids, accelerator)
    processes.forget_optimizer(accelerator)  # which would set the peak of memory while the model is written
    origin = Origin(config.model, config.lora_rank, config.export_dtype, config.seed, keeps_steps=config.save_steps > 0)
    tokenizer = collate.builder.tokenizer
    # The first process writes; the others wait for it.
    figures = gather_from_all(lambda: export(origin, trained, tokenizer, out) if is_main_process() else {})[0]
    if is_main_process():
        run.metrics(figures)
        chosen_by = evaluation.examples.pairs if evaluation and evaluation.examples and config.keep == "best" else ()
        _write_records(config, [*pairs, *chosen_by], history, out, run)
    return checkpoints.remove


def _tell(level: int, line: str) -> None:
    """Logs a line, if there is one, from the first process alone."""
    if line and is_main_process():
        log.log(level, "%s", line)


def _log_step(run: Run, figures: dict[str, float]) -> None:
    run.metrics({name: value for name, value in figures.items() if name != "step"}, step=int(figures["step"]))


def _write_records(config: DistillConfig, pairs: list[Pair], history: History, out: Path, run: Run) -> None:
    """Writes which examples the model, and the one it came from, learnt or were chosen by, and the history of its
    training."""
    learnt = content_keys(pair.example for pair in pairs)
    write_training_examples(out, training_examples(config.model).union(learnt))
    write_jsonl(out / HISTORY_FILE, history)
    run.artifact(out / HISTORY_FILE)
    first = history[0]["loss"]
    final = history[-1]["loss"]
    log.log(RESULT, "loss %.4f at the first of %d steps, %.4f at the last", first, len(history), final)


def _warn_before_training(
    config: DistillConfig, model: PreTrainedModel, schedule: Schedule, updates: int, accelerator: Accelerator
) -> None:
    """Warns if so few updates cannot move the model, or if DeepSpeed begins with rounded weights; raises `PosgapError`
    if many updates at a given rate cannot."""
    if METHODS[config.method].needs_teacher:
        _tell(logging.WARNING, describe_poor_teacher(config.responses))
    movement = Movement.estimate(model.config, updates, schedule.reach(updates))
    if config.learning_rate and not config.lora_rank and movement.is_wasted():
        better = default_learning_rate(model.num_parameters())
        raise BadOption(
            f"--learning-rate {config.learning_rate:g} is too low: {movement}; take {better:g}, the default"
        )
    if not config.lora_rank and movement.warning():
        _tell(logging.WARNING, f"{movement}: {movement.warning()}")
    mixed = accelerator.mixed_precision == "bf16"
    _tell(logging.WARNING, _rounding_warning(config.model, mixed, processes.by_deepspeed(accelerator)))


def _choose_learning_rate(config: DistillConfig, model: PreTrainedModel) -> float:
    """The learning rate for the model's size, said in a line."""
    parameters = model.num_parameters()
    rate = default_learning_rate(parameters, adapters=config.lora_rank > 0)
    kind = "adapters of a model of" if config.lora_rank else "a model of"
    _tell(logging.INFO, f"learning rate {rate:g}, for {kind} {parameters:,} parameters; the paper's 3e-6 is for 7B")
    return rate


def _rounding_warning(model: str, mixed: bool, by_deepspeed: bool) -> str:
    """Returns a warning if DeepSpeed makes its float32 weights from rounded ones, and so loses digits of the model."""
    if not (mixed and by_deepspeed) or load_config(model).dtype not in (None, torch.float32):
        return ""
    return (
        "deepspeed: the model is stored in float32, and training begins with its weights rounded to bfloat16, the "
        "teacher's too; give --dtype float32 to keep every bit"
    )


def _read_data(config: DistillConfig) -> tuple[list[Pair], Collator]:
    """Returns the examples with the responses to learn: each example's at one placement, or in all orders of its items
    if the model chooses among these."""
    METHODS[config.method].require_suited(TASKS[config.task])
    responses = read_responses(config.responses)
    if not TASKS[config.task].slot_names:
        responses = at_one_placement(responses, config.seed)
    responses = responses[: config.limit or None]
    n_gold = sorted({len(response.placement) for response in responses})
    if len(n_gold) > 1:
        unlike = " and ".join(map(str, n_gold))
        raise PosgapError(f"{config.responses}: prompts have {unlike} gold documents; sample all for the same task")
    pairs = pair_up(read_examples(config.examples), responses)
    longest = max(len(pair.response.token_ids) for pair in pairs)
    builder = builder_of(config.model, config.wording(), ResponseLimits(longest))
    require_prompts(config.responses, builder.digest())
    pairs = METHODS[config.method].learnt(pairs, builder)
    collate = Collator(pairs, builder)
    _require_rope_of_length(config, collate)
    return pairs, collate


def _require_rope_of_length(config: DistillConfig, collate: Collator) -> None:
    """Raises `PosgapError` if RoPE depends on the length and would differ from that during generation."""
    rope = RopeLengths.from_config(load_config(config.model))
    if rope:
        # The teacher's placement; at others a prompt has a few tokens more or less, which its batch shows.
        read = map(collate.token_ids, teacher_prompts(collate.pairs))
        reason = rope.why_not_forced([(len(prompt), len(response)) for prompt, response in read])
        if reason:
            raise PosgapError(f"{with_uris(config.model)}: {reason}; it cannot be distilled on prompts of such lengths")


def _evaluation(config: DistillConfig, collate: Collator) -> Evaluation | None:
    """Returns what to measure while the model trains; None if nothing."""
    if not config.eval and not config.eval_text:
        return None
    builder = collate.builder
    held_out = None
    if config.eval:
        examples = read_examples(config.eval)[:MOST]
        learnt = content_keys(pair.example for pair in collate.pairs)
        if with_content_keys(examples, learnt):
            raise BadOption(f"{config.eval}: has training examples; give held-out ones as --eval")
        prompts = sorted({pair.response.n_docs for pair in collate.pairs})
        n_gold = len(collate.pairs[0].response.placement)
        held_out = Collator(held_out_pairs(examples, builder, prompts, n_gold), builder)
    texts = read_texts(config.eval_text)[:MOST] if config.eval_text else []
    return Evaluation(held_out, texts, builder.tokenizer, config.eval_steps)


def _own_prompts(pairs: Sequence[Pair], draws: Sequence[Draw]) -> list[TrainingPrompt]:
    """Returns a step's prompts if each response is learned at its own placement."""
    return teacher_prompts(pairs, [draw.pair for draw in draws])


def _plan(config: DistillConfig, pairs: list[Pair]) -> tuple[list[list[TrainingPrompt]], Objective]:
    """The method: what each step draws, and how it weighs it."""
    method = METHODS[config.method]
    objective = method.objective(method.parameters.of(config), pairs)
    k = config.k
    rows = objective.draw_prompts
    if TASKS[config.task].slot_names:
        # Which letter is right depends on the order, and so each response is learnt in its own.
        k = 0
        rows = partial(_own_prompts, pairs)
    placements = drawable_placements(pairs, objective.anchors)
    steps = plan_steps(placements, rows, k, config.epochs, config.batch_size, config.seed)
    if not steps:
        raise BadOption(f"k=0 leaves {config.method} nothing to train on; give k >= 1")
    return steps, objective


def _load_model(config: DistillConfig) -> PreTrainedModel:
    """The model to train, and before that the teacher."""
    # Updates of 3e-6 vanish in bfloat16 parameters, so those are float32 and only the arithmetic is not.
    model = load_model(config.model, "float32", compute=config.dtype)
    without_dropout(model)
    if config.lora_rank:
        add_adapters(model, config.lora_rank)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
    return model


def _require_room(config: DistillConfig, out: Path, model: PreTrainedModel, accelerator: Accelerator) -> None:
    """Raises `PosgapError` before training if the model cannot be written, or a CPU lacks the memory to train it."""
    stored = load_config(config.model).dtype or torch.float32
    dtype: Any = stored if config.export_dtype == "auto" else getattr(torch, config.export_dtype)
    size = model.num_parameters() * dtype.itemsize
    require_disk(config.model, out, size, "writing the trained model", "give an --out on another disk")
    if accelerator.device.type == "cpu" and not processes.by_deepspeed(accelerator):
        _require_memory(config, model)


def _require_memory(config: DistillConfig, model: PreTrainedModel) -> None:
    """Raises `PosgapError` before training on a processor if the system would kill it at the first update or
    checkpoint: besides the optimizer's means, memory holds gradients or a checkpoint that is being written."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    instead = "" if config.lora_rank else f"train adapters (--lora-rank {LORA_RANK}), "
    beside = 4  # gradients
    if config.save_steps:
        beside = CHECKPOINT
        instead = f"{instead}keep no checkpoint (--save-steps 0), "
    needed_bytes = (BYTES_KEPT + beside) * trained
    require_memory(config.model, needed_bytes, "training it", f"{instead}take a smaller model")


def _teacher(
    config: DistillConfig, work: ResumableFolder, collate: Collator, model: PreTrainedModel, accelerator: Accelerator
) -> Teacher:
    """The teacher, with the states that earlier runs have kept."""
    identity = {
        "model": _model_digest(config),
        "prompts": collate.builder.digest(),
        "arithmetic": processes.arithmetic(accelerator),
    }
    states = TeacherStates(work / f"teacher-{files.digest_of(identity)[:16]}", identity)
    rounded = processes.arithmetic(accelerator).startswith("bfloat16 parameters")
    temperature = R1Parameters.of(config).teacher_temperature
    return Teacher(states, frozen_head(model, rounded, accelerator.device), collate, temperature)


def _model_digest(config: DistillConfig) -> str:
    return config.digest("model") or commit_on_hub(config.model)


def _fingerprint(config: DistillConfig, collate: Collator, evaluation: Evaluation | None) -> str:
    """Identifies a training run: checkpoints of another one are not gone on from, nor those with figures of other
    held-out examples."""
    # So a run that is out of memory can resume in another way, on other processes; so can one whose model could not be
    # written as configured.
    without_effect = {"micro_batch_tokens", "gradient_checkpointing", "deepspeed", "export_dtype"}
    without_effect |= {"eval", "eval_text", "eval_steps", "keep"}
    parameters = config.model_dump(mode="json", include=set(config.parameters()) - without_effect)
    read = [collate.digest(row) for row in teacher_prompts(collate.pairs)]
    read += evaluation.digests if evaluation else []
    return files.digest_of([parameters, _model_digest(config), read])[:16]


def _at_fault(error: NotFinite, pairs: list[Pair]) -> dict:
    prompts = []
    for row, loss in zip(error.rows, error.losses):
        prompts.append({"id": pairs[row.pair].example.id, "placement": list(row.positions), "loss": str(loss)})
    return {"step": error.step, "prompts": prompts}
