"""teacher: samples the model's own responses with the gold documents at its advantageous placements."""

import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product, starmap
from pathlib import Path
from typing import Any

from posgap.data.reading import read_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json, write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.printing import RESULT, format_count
from posgap.generation.generator import Completion, Sampling
from posgap.measurement.outcomes import Ending, OutcomeCounts
from posgap.measurement.resumption import PromptGrid, generate_resumably
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.thinking import FirstThoughts
from posgap.options.teacher import TeacherConfig
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, require_n_gold
from posgap.tasks.positions import format_positions
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import RESPONSES_FILE, TEACHER_FILE
from posgap.tasks.task import Task
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
MAX_WRONG = 256  # wrong responses from the first on: a model that answers one in fifty begins so once in 176 times


@stage
@resumable()
def teacher(config: TeacherConfig, out: Path, run: Run) -> None:
    """Writes `responses.jsonl`: each response's example by id and content, placement, text, token ids and correctness.

    Responses are kept beside `out` as they come; an interrupted teacher resumes.

    An example has a response at each of the placements. A response is correct if its score is 1. Incorrect ones are
    left out unless `keep_incorrect` is set, and prompts that were not answered always are; `teacher.json` counts how
    they ended.
    """
    examples = read_examples(config.examples)[: config.limit or None]
    builder = config.builder()
    placements = advantageous_placements(config, builder.task.n_gold)
    positions = [list(placement.positions) for placement in placements]
    n_docs = _draw_n_docs(config, examples)
    digests = {"model_digest": config.digest("model"), "prompt_digest": builder.digest(), "placements": positions}
    sampling = Sampling.for_builder(builder)
    prompts = PromptGrid(config.asking(), builder, examples, placements, sampling, digests, n_docs=n_docs)
    completions = _generate_responses(config, prompts)
    outcomes = OutcomeCounts.count(Ending(completion.outcome, completion.cut) for completion in completions)
    rows = _score_responses(config, prompts, completions)
    kept = [row for row in rows if row["correct"] or config.keep_incorrect]
    if not kept:
        unanswered = f" ({format_count(outcomes.n_unanswered, 'prompt')} not answered: {outcomes.kinds_text})"
        raise PosgapError(
            f"{config.model}: no response at {_in_words(placements)} is correct"
            f"{unanswered if outcomes.n_unanswered else ''}; there is nothing to distil"
        )
    if builder.task.slot_names:
        # An answer's meaning depends on its order, and the model's opinion is the one over all orders.
        answered_right = _contents(kept)
        kept = [row for row in rows if row["content"] in answered_right]
    write_jsonl(out / RESPONSES_FILE, kept)
    summary = _write_summary(rows, kept, prompts, outcomes, out)
    _record(summary, placements, outcomes, run)
    run.artifact(out)


def _draw_n_docs(config: TeacherConfig, examples: Sequence[AnyExample]) -> list[int]:
    """The number of documents in each example's prompts, drawn by its content alone; empty if all have `n_docs`."""
    numbers = sorted({config.n_docs, *config.mix_docs})
    if len(numbers) == 1:
        return []
    *others, last = map(str, numbers)
    log.info(
        "each example has a prompt of %s or %s documents, with gold documents at the same depths",
        ", ".join(others),
        last,
    )
    return [random.Random(content_key(example)).choice(numbers) for example in examples]


def _is_right(
    config: TeacherConfig, task: Task, example: AnyExample, placement: Placement, completion: Completion
) -> bool:
    return task.score(completion.text, task.right_answers(example, placement), config.metric) == 1


def _generate_responses(config: TeacherConfig, prompts: PromptGrid) -> list[Completion]:
    """Returns the model's responses, an example's after the other's. Raises `PosgapError` as soon as `MAX_WRONG` of
    them are wrong and none is right."""
    results = list[bool]()
    thoughts = FirstThoughts.for_prompts(prompts.builder, prompts.count)

    def require_any_right(example: AnyExample, placement: Placement, completion: Completion) -> None:
        thoughts(completion)
        results.append(_is_right(config, prompts.builder.task, example, placement, completion))
        if len(results) == MAX_WRONG and not any(results) and not config.keep_incorrect:
            raise PosgapError(
                f"{config.model}: none of the first {MAX_WRONG} responses at {_in_words(prompts.placements)} is "
                "correct; there is nothing to distil"
            )

    return generate_resumably(prompts, "teacher responses", on_completion=require_any_right, token_ids=True).completions


def _score_responses(
    config: TeacherConfig, prompts: PromptGrid, completions: Sequence[Completion]
) -> list[dict[str, Any]]:
    """Returns the rows of `responses.jsonl`, correct or not, of all prompts that were answered."""
    rows = []
    asked = starmap(prompts.question, product(range(len(prompts.examples)), prompts.numbers))
    for (example, placement, _), completion in zip(asked, completions):
        if completion.outcome == "answered":
            row = {
                "id": example.id,
                "content": content_key(example),
                "placement": list(placement.positions),
                "n_docs": placement.n_docs,
                "response": completion.text,
                "token_ids": completion.token_ids,
                "correct": _is_right(config, prompts.builder.task, example, placement, completion),
            }
            rows.append(row)
    return rows


def _contents(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    return {row["content"] for row in rows}


def _write_summary(
    rows: Sequence[Mapping[str, Any]],
    kept: Sequence[Mapping[str, Any]],
    prompts: PromptGrid,
    outcomes: OutcomeCounts,
    out: Path,
) -> dict[str, float]:
    """Writes `teacher.json`, with the number of correct responses at each placement, and returns the figures."""
    asked = sorted({prompts.question(*at).placement for at in product(range(len(prompts.examples)), prompts.numbers)})
    placements = asked if prompts.n_docs else prompts.placements
    correct_at = Counter((tuple(row["placement"]), row["n_docs"]) for row in rows if row["correct"])
    figures = {
        "kept": len(kept),
        "correct": correct_at.total(),
        "examples": len(prompts.examples),
        "accuracy": 100 * correct_at.total() / (len(prompts.examples) * len(prompts.placements)),
        "examples_kept": len(_contents(kept)),
    }
    about = {
        "placements": [list(placement.positions) for placement in placements],
        "n_docs": [placement.n_docs for placement in placements],
        "correct_at": [correct_at[placement.positions, placement.n_docs] for placement in placements],
        "prompts": prompts.builder.digest(),
        "outcomes": outcomes.model_dump(),
    }
    write_json(out / TEACHER_FILE, {**figures, **about})
    return figures


def _record(summary: Mapping[str, float], placements: Sequence[Placement], outcomes: OutcomeCounts, run: Run) -> None:
    """Tracks the figures, with the placement if there is a single one, and reports the result."""
    metrics = {**summary, "unanswered": outcomes.percent_unanswered}
    if len(placements) == 1:
        positions = placements[0].positions
        names = ("position",) if len(positions) == 1 else ("position_pre", "position_post")
        metrics |= dict(zip(names, positions))
    run.metrics(metrics)
    asked = summary["examples"] * len(placements)
    log.log(RESULT, "%d of %d responses at %s are correct", summary["correct"], asked, _in_words(placements))
    if len(placements) > 1:
        log.log(RESULT, "%d of %d examples have a response to learn", summary["examples_kept"], summary["examples"])
    if outcomes.n_unanswered:
        prompts = format_count(outcomes.n_unanswered, "prompt")
        log.info("%s not answered, and left out: %s", prompts, outcomes.kinds_text)


def advantageous_placements(config: TeacherConfig, n_gold: int) -> list[Placement]:
    """Returns the placements in the config, or else the best of the base model's sweep; all of them if the model
    chooses among items."""
    if config.advantageous or TASKS[config.task].slot_names:
        return TASKS[config.task].choose_placements(config.n_docs, config.advantageous)
    if config.sweep is None:
        raise PosgapError("no advantageous position: give `advantageous`, or a `sweep` of this model to read it from")
    swept = read_sweep(config.sweep)
    swept.require_model_alone(config.sweep, "give `advantageous`, or a sweep without one")
    if swept.filled:
        raise PosgapError(
            f"{config.sweep}: has prompts filled to a length, whose placements are depths; give "
            f"`advantageous`, or a sweep of {config.n_docs} documents"
        )
    best = Placement(tuple(swept.advantageous), swept.n_docs).among(config.n_docs)
    require_n_gold(best, n_gold)
    if max(swept.accuracy) == 0 and swept.n_docs == config.n_docs and not config.keep_incorrect:
        raise PosgapError(f"{config.sweep}: has no correct answer at any position, so there is nothing to distil")
    return [best]


def _in_words(placements: Sequence[Placement]) -> str:
    """The placements as a message names them: "position 1 of 20", "positions 1 and 20 of 20"."""
    *others, last = (format_positions(placement.positions) for placement in placements)
    listed = f"positions {', '.join(others)} and {last}" if others else f"position {last}"
    return f"{listed} of {placements[0].n_docs}"
