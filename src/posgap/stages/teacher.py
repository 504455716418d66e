"""teacher: samples the model's own responses with the gold documents at the advantageous placement."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from posgap.choices import BACKENDS
from posgap.config import TeacherConfig
from posgap.errors import PosgapError
from posgap.files import write_json, write_jsonl
from posgap.generation.generator import Completion, Sampling
from posgap.interruption import goes_on
from posgap.measurement.asking import answers
from posgap.measurement.outcomes import OutcomeCounts
from posgap.measurement.sweeps import read_sweep
from posgap.positions import format_positions, parse_positions
from posgap.stage import stage
from posgap.tasks.content import content
from posgap.tasks.examples import AnyExample, read_examples
from posgap.tasks.placements import Placement, require_n_gold
from posgap.tasks.responses import RESPONSES_FILE, TEACHER_FILE
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
MOST_WRONG = 256  # responses, one after the other from the first: who answers one in fifty begins so once in 176 times


@stage
@goes_on()
def teacher(config: TeacherConfig, out: Path, run: Run) -> None:
    """Writes `responses.jsonl`: each response's example by id and content, placement, text, token ids and correctness.

    Responses are kept beside `out` as they come; a teacher that was interrupted goes on from there.

    A response is correct if its score is 1. Incorrect ones are left out unless `keep_incorrect` is set, and prompts
    that were not answered always are; `teacher.json` counts how they ended.
    """
    examples = read_examples(config.examples)[: config.limit or None]
    build = BACKENDS[config.backend].builder(config)
    placement = Placement(advantageous_positions(config), config.n_docs)
    require_n_gold(placement, build.task.n_gold)
    where = format_positions(placement.positions)
    _require_right_in_sweep(config, placement)
    score = partial(build.task.score, metric=config.metric)
    results: list[bool] = []

    def require_any_right(example: AnyExample, placement: Placement, completion: Completion) -> None:
        results.append(score(completion.text, example) == 1)
        if len(results) == MOST_WRONG and not any(results) and not config.keep_incorrect:
            raise PosgapError(
                f"{config.model}: none of the first {MOST_WRONG} responses at position {where} of "
                f"{placement.n_docs} is correct; there is nothing to distil"
            )

    sampling = Sampling.of(build, config.temperature, config.seed)
    beside = {"model_digest": config.digest("model"), "prompt_digest": build.digest(), "placement": placement.positions}
    what = "teacher responses"
    completions, _ = answers(
        config, examples, [placement], build, sampling, what, beside, require_any_right, token_ids=True
    )
    outcomes = OutcomeCounts.of((completion.outcome, completion.cut) for completion in completions)
    rows: list[dict[str, Any]] = [
        {
            "id": example.id,
            "content": content(example),
            "placement": list(placement.positions),
            "n_docs": placement.n_docs,
            "response": completion.text,
            "token_ids": completion.token_ids,
            "correct": score(completion.text, example) == 1,
        }
        for example, completion in zip(examples, completions)
        if completion.outcome == "answered"
    ]
    kept = [row for row in rows if row["correct"] or config.keep_incorrect]
    right = sum(row["correct"] for row in rows)
    if not kept:
        unanswered = f" ({outcomes.unanswered} prompts were not answered: {outcomes.listed})" * bool(
            outcomes.unanswered
        )
        raise PosgapError(
            f"{config.model}: no response at position {where} of {placement.n_docs} is correct{unanswered}; "
            "there is nothing to distil"
        )
    write_jsonl(out / RESPONSES_FILE, kept)
    asked = len(examples)
    summary = {"kept": len(kept), "correct": right, "examples": asked, "accuracy": 100 * right / asked}
    about = {"placement": list(placement.positions), "prompts": build.digest(), "outcomes": outcomes.model_dump()}
    write_json(out / TEACHER_FILE, {**summary, **about})
    names = ("position",) if len(placement.positions) == 1 else ("position_pre", "position_post")
    run.metrics({**summary, "unanswered": outcomes.share, **dict(zip(names, placement.positions))})
    run.artifact(out)
    log.info("%d of %d responses at position %s are correct", right, asked, where)
    if outcomes.unanswered:
        log.info("%d prompts were not answered, and are left out: %s", outcomes.unanswered, outcomes.listed)


def _require_right_in_sweep(config: TeacherConfig, placement: Placement) -> None:
    """`PosgapError` where the sweep says that no response at this placement was correct."""
    if config.sweep is None or config.keep_incorrect:
        return
    swept = read_sweep(config.sweep)
    accuracy = dict(zip(map(tuple, swept.placements), swept.accuracy)).get(placement.positions)
    if accuracy == 0 and swept.n_docs == placement.n_docs:
        where = format_positions(placement.positions)
        raise PosgapError(
            f"{config.sweep}: no response at position {where} of {placement.n_docs} was correct; there is nothing to "
            "distil"
        )


def advantageous_positions(config: TeacherConfig) -> tuple[int, ...]:
    """The positions in the config, or else those of the best placement in the base model's sweep."""
    if config.advantageous:
        return parse_positions(config.advantageous)
    if config.sweep is None:
        raise PosgapError("no advantageous position: give `advantageous`, or a `sweep` of this model to read it from")
    return tuple(read_sweep(config.sweep).advantageous)
