"""rollout advise: which heads make the bias, what turning them would change, and whether it does."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.locations import last_name, with_uris
from posgap.foundation.printing import RESULT
from posgap.foundation.progress import track
from posgap.generation.generator import Sampling
from posgap.generation.setup import builder_of
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement import statistics
from posgap.measurement.plots import save_picture
from posgap.measurement.probe import target_of
from posgap.mitigations.head_gates import HEAD_GATES, Answered, Question, answered, flattening, head_effects
from posgap.mitigations.in_force import apply, load_model, remove
from posgap.mitigations.state import in_force
from posgap.models.loading import on_device
from posgap.rollout.advice import (
    ADVICE_FILE,
    Advice,
    Advised,
    Change,
    Checked,
    Effect,
    advice_figure,
    agreement,
    changes,
    first_pull,
    predicted,
    summary_text,
    to_check,
)
from posgap.rollout.config import RolloutAdviseConfig
from posgap.scaling.forcing import require_at_once, tried
from posgap.scaling.questions import ask, one_right_response
from posgap.stages.frame import stage
from posgap.tasks.placements import swept_placements
from posgap.tasks.reading import read_examples
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
INSTEAD = "take a model that answers at once, or ask for the answer alone (--system)"
MIN_EXAMPLES = 4  # examples: half of them say what to change, the other half what came of it


@stage
def rollout_advise(config: RolloutAdviseConfig, out: Path, run: Run) -> None:
    """Writes `advice.json` and `advice.png`."""
    build = builder_of(config)
    if build.task.n_gold != 1:
        raise PosgapError(f"task {config.task}: has two gold documents; advice needs a task with one gold document")
    examples = read_examples(config.examples)[: config.limit or None]
    if len(examples) < MIN_EXAMPLES:
        raise PosgapError(f"{config.examples}: {len(examples)} examples; advice needs {MIN_EXAMPLES} at least")
    metric = config.metric or build.task.metric
    if not one_right_response(build, examples, metric):
        raise PosgapError(
            f"task {config.task}: its questions have more than one right response under {metric}, so that there is no "
            "log-probability to look at; take a task with one, as kv"
        )
    placements = swept_placements(config.n_docs, 1, config.positions)
    rows = ask(build, examples, placements, metric, teacher_forced=True)
    looked, rest = ([[(q.prompt, q.response) for q in row] for row in part] for part in (rows[::2], rows[1::2]))
    model = on_device(load_model(config.model, config.dtype), "cuda" if torch.cuda.is_available() else "cpu")
    if HEAD_GATES.name in in_force(model):
        raise PosgapError(f"{config.model}: its heads have gates already; give the model without them")
    said = tried(
        TransformersGenerator(model, build.tokenizer, config.batch_tokens),
        rows,
        partial(build.task.score, metric=metric),
        Sampling.of(build),
        target_of(build),
    )
    require_at_once(said, config.model, INSTEAD)
    shape = (len(looked), len(placements))
    effects = head_effects(model, _flat(looked), config.batch_tokens)
    by_gate = effects.by_gate.reshape(*shape, *effects.by_gate.shape[1:])
    before = effects.log_probability.reshape(shape)
    by_gradient = changes(by_gate, flattening(effects))
    advised = [_advised(change, by_gate, before) for change in by_gradient]
    ranked = sorted(advised, key=lambda each: each.predicted.gap)
    asked = partial(_asked, questions=rest, batch_tokens=config.batch_tokens)
    base = asked(model)
    by_name = {each.name: each for each in by_gradient}
    for index in track(chosen := to_check(ranked, config.check), len(chosen), "changes that are made"):
        with _made(model, by_name[ranked[index].name]):
            ranked[index] = ranked[index].model_copy(update={"measured": _checked(asked(model), base, len(chosen))})
    accuracy, pull = 100 * base.right.mean(axis=0), first_pull(by_gate)
    agreed = agreement(ranked)
    label = config.label or last_name(config.model)
    advice = Advice(
        label=label,
        model=with_uris(config.model),
        task=config.task,
        n_docs=config.n_docs,
        positions=[placement.positions[0] for placement in placements],
        examples={"looked_at": len(looked), "checked_on": len(rest)},
        log_probability=base.log_probability.mean(axis=0).tolist(),
        accuracy=accuracy.tolist(),
        pull=pull.tolist(),
        changes=ranked,
        agreement=agreed,
        summary=summary_text(ranked, pull, agreed, accuracy),
        settings=config.chosen(),
    )
    write_json(out / ADVICE_FILE, advice.model_dump(mode="json"))
    save_picture(advice_figure(advice), out / "advice.png")
    run.metrics({f"agreement_{name}": value for name, value in agreed.items() if value is not None})
    run.tags({"posgap.label": label})
    run.artifact(out)
    log.log(RESULT, "%s: %s", label, advice.summary)


def _advised(change: Change, by_gate: np.ndarray, before: np.ndarray) -> Advised:
    gates = [list(row) for row in change.gates.gates]
    return Advised(name=change.name, gates=gates, predicted=predicted(change, by_gate, before))


def _moved(after: np.ndarray, before: np.ndarray) -> Effect:
    """What becomes of the log-probabilities [E, P] of right responses."""
    now, was = after.mean(axis=0), before.mean(axis=0)
    return Effect(mean=float(now.mean() - was.mean()), gap=float(np.ptp(now) - np.ptp(was)))


@contextmanager
def _made(model: PreTrainedModel, change: Change) -> Iterator[None]:
    """Within the block the model has the change."""
    apply(model, HEAD_GATES.name, change.gates)
    try:
        yield
    finally:
        remove(model, HEAD_GATES.name)


def _flat(questions: Sequence[Sequence[Question]]) -> list[Question]:
    return [question for row in questions for question in row]


def _asked(model: PreTrainedModel, questions: Sequence[Sequence[Question]], batch_tokens: int) -> Answered:
    """What the model makes of the questions [E][P]: each figure [E, P]."""
    flat = answered(model, _flat(questions), batch_tokens)
    return Answered(*(each.reshape(len(questions), -1) for each in flat))


def _checked(after: Answered, before: Answered, changes: int) -> Checked:
    """What one of so many changes came to, from log-probabilities and right answers [E, P] with it and without."""
    moved, error = _moved(after.log_probability, before.log_probability), statistics.EACH_END / changes
    mean, mean_ci95 = statistics.paired_difference(after.right, before.right, error)
    now, was = (statistics.accuracy(each.right) for each in (after, before))
    return Checked(
        mean=moved.mean,
        gap=moved.gap,
        accuracy=now.tolist(),
        accuracy_mean=mean,
        accuracy_mean_ci95=mean_ci95,
        accuracy_gap=statistics.gap(now) - statistics.gap(was),
        accuracy_gap_ci95=statistics.gap_difference(after.right, before.right, error)[1],
    )
