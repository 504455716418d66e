"""teacher: samples the model's own responses with the gold documents at its advantageous placements."""

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from posgap.distillation.config import TeacherConfig
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json, write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.printing import RESULT
from posgap.generation.backends import BACKENDS
from posgap.generation.generator import Completion, Sampling
from posgap.measurement.outcomes import Ending, OutcomeCounts
from posgap.measurement.resumption import PromptGrid, generate_resumably
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.thinking import FirstThoughts
from posgap.stages.frame import stage
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, require_n_gold
from posgap.tasks.positions import format_positions
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import RESPONSES_FILE, TEACHER_FILE
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
MAX_WRONG = 256  # responses, one after the other from the first: who answers one in fifty begins so once in 176 times


@stage
@resumable()
def teacher(config: TeacherConfig, out: Path, run: Run) -> None:
    """Writes `responses.jsonl`: each response's example by id and content, placement, text, token ids and correctness.

    Responses are kept beside `out` as they come; a teacher that was interrupted goes on from there.

    An example has a response at each of the placements. A response is correct if its score is 1. Incorrect ones are
    left out unless `keep_incorrect` is set, and prompts that were not answered always are; `teacher.json` counts how
    they ended.
    """
    examples = read_examples(config.examples)[: config.limit or None]
    builder = BACKENDS[config.backend].builder(config)
    placements = advantageous_placements(config, builder.task.n_gold)
    where = _in_words(placements)
    _require_right_in_sweep(config, placements)

    def is_right(example: AnyExample, placement: Placement, completion: Completion) -> bool:
        return builder.task.score(completion.text, builder.task.right_answers(example, placement), config.metric) == 1

    results, thoughts = list[bool](), FirstThoughts.for_config(config, len(examples) * len(placements))

    def require_any_right(example: AnyExample, placement: Placement, completion: Completion) -> None:
        thoughts(completion)
        results.append(is_right(example, placement, completion))
        if len(results) == MAX_WRONG and not any(results) and not config.keep_incorrect:
            raise PosgapError(
                f"{config.model}: none of the first {MAX_WRONG} responses at {where} is correct; there is nothing to "
                "distil"
            )

    positions = [list(placement.positions) for placement in placements]
    cache_key = {"model_digest": config.digest("model"), "prompt_digest": builder.digest(), "placements": positions}
    prompts = PromptGrid(config, builder, examples, placements, Sampling.for_builder(builder), cache_key)
    completions, _ = generate_resumably(prompts, "teacher responses", on_completion=require_any_right, token_ids=True)
    outcomes = OutcomeCounts.count(Ending(completion.outcome, completion.cut) for completion in completions)
    rows: list[dict[str, Any]] = [
        {
            "id": example.id,
            "content": content_key(example),
            "placement": list(placement.positions),
            "n_docs": placement.n_docs,
            "response": completion.text,
            "token_ids": completion.token_ids,
            "correct": is_right(example, placement, completion),
        }
        for (example, placement), completion in zip(product(examples, placements), completions)
        if completion.outcome == "answered"
    ]
    kept = [row for row in rows if row["correct"] or config.keep_incorrect]
    if builder.task.slot_names:
        # Its own order decides what an answer says, and the model's opinion is that of all orders.
        answered_right = {row["content"] for row in kept}
        kept = [row for row in rows if row["content"] in answered_right]
    right = sum(row["correct"] for row in rows)
    if not kept:
        unanswered = f" ({outcomes.n_unanswered} prompts were not answered: {outcomes.kinds_text})" * bool(
            outcomes.n_unanswered
        )
        raise PosgapError(f"{config.model}: no response at {where} is correct{unanswered}; there is nothing to distil")
    write_jsonl(out / RESPONSES_FILE, kept)
    asked = len(completions)
    summary = {"kept": len(kept), "correct": right, "examples": len(examples), "accuracy": 100 * right / asked}
    summary["examples_kept"] = len({row["content"] for row in kept})
    correct_at = [sum(row["correct"] for row in rows if row["placement"] == at) for at in positions]
    about = {"placements": positions, "correct_at": correct_at, "prompts": builder.digest()}
    write_json(out / TEACHER_FILE, {**summary, **about, "outcomes": outcomes.model_dump()})
    names = ("position",) if builder.task.n_gold == 1 else ("position_pre", "position_post")
    where_alone = dict(zip(names, positions[0])) if len(positions) == 1 else {}
    run.metrics({**summary, "unanswered": outcomes.percent_unanswered, **where_alone})
    run.artifact(out)
    log.log(RESULT, "%d of %d responses at %s are correct", right, asked, where)
    if len(placements) > 1:
        log.log(RESULT, "%d of %d examples have a response to learn", summary["examples_kept"], len(examples))
    if outcomes.n_unanswered:
        log.info("%d prompts were not answered, and are left out: %s", outcomes.n_unanswered, outcomes.kinds_text)


def _require_right_in_sweep(config: TeacherConfig, placements: Sequence[Placement]) -> None:
    """`PosgapError` where the sweep says that no response at these placements was correct."""
    if config.sweep is None or config.keep_incorrect:
        return
    swept = read_sweep(config.sweep)
    accuracy = dict(zip(map(tuple, swept.placements), swept.accuracy))
    if swept.n_docs == config.n_docs and all(accuracy.get(placement.positions) == 0 for placement in placements):
        raise PosgapError(
            f"{config.sweep}: no response at {_in_words(placements)} was correct; there is nothing to distil"
        )


def advantageous_placements(config: TeacherConfig, n_gold: int) -> list[Placement]:
    """The placements in the config, or else the best of the base model's sweep; all where items are chosen among."""
    if config.advantageous or TASKS[config.task].slot_names:
        return TASKS[config.task].choose_placements(config.n_docs, config.advantageous)
    if config.sweep is None:
        raise PosgapError("no advantageous position: give `advantageous`, or a `sweep` of this model to read it from")
    swept = read_sweep(config.sweep)
    swept.require_model_alone(config.sweep, "give `advantageous`, or a sweep without one")
    if swept.filled:
        raise PosgapError(
            f"{config.sweep}: is of prompts filled to a length, whose placements are depths; give `advantageous`, or a "
            f"sweep of {config.n_docs} documents"
        )
    best = Placement(tuple(swept.advantageous), config.n_docs)
    require_n_gold(best, n_gold)
    return [best]


def _in_words(placements: Sequence[Placement]) -> str:
    """The placements as a message names them: "position 1 of 20", "positions 1 and 20 of 20"."""
    *others, last = (format_positions(placement.positions) for placement in placements)
    listed = f"positions {', '.join(others)} and {last}" if others else f"position {last}"
    return f"{listed} of {placements[0].n_docs}"
