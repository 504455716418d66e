"""grade: the responses of a finished sweep, judged by a model."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import with_uris
from posgap.grading.judge import Judge
from posgap.grading.prompt import JudgedResponse
from posgap.measurement.config import GradeConfig
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.gradings import GRADED, JUDGEMENTS_FILE, Agreement, Grading, Judgement, flipped_share
from posgap.measurement.page_examples import pack_sweep
from posgap.measurement.predictions import (
    PREDICTIONS_FILE,
    Prediction,
    no_figures_error,
    outcome_of,
    outcomes_of,
    read_predictions,
    swept_rows,
)
from posgap.measurement.spending import TokenTotals
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweeps import Sweep
from posgap.stages.frame import stage
from posgap.storage.lineage import training_examples
from posgap.tasks.content import examples_digest
from posgap.tasks.examples import AnyExample
from posgap.tasks.reading import read_examples
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_sweep

log = logging.getLogger(__name__)
PROMPT_FILE = "judge_prompt.txt"
_TAKEN_OVER = (
    "task", "model", "label", "scaling", "n_docs", "examples_digest", "model_digest", "ancestors", "prompt_digest",
    "asked", "settings", "served", "spent", "filled", "mitigation", "definition",
)  # fmt: skip


class _JudgedRow(NamedTuple):
    """A row of the sweep's predictions and, where it is an answer, what was judged and the judgement."""

    row: Prediction
    response: JudgedResponse | None
    judgement: Judgement | None


@stage
@resumable()
def grade(config: GradeConfig, out: Path, run: Run) -> None:
    """Writes what `sweep` writes, with the judge's scores, and `judgements.jsonl` and `judge_prompt.txt`.

    Only answers are judged: what was not answered stays what it was. Judgements are kept beside `out` as they come; a
    grading that was interrupted goes on from there.
    """
    evidence = Evidence(config.sweep)
    sweep = evidence.sweep
    if sweep.grading:
        raise PosgapError(f"{config.sweep}: is graded; give the sweep that it was made from")
    examples = _swept_examples(config, evidence)
    judge = Judge(config, {field: config.digest(field) for field in ("sweep", "examples", "judge")})
    judged = _judge_answers(judge, sweep, swept_rows(read_predictions(config.sweep)), examples)
    _write_judgements(judge, judged, out)
    graded = [_grade_row(each, judge) for each in judged]
    outcomes = outcomes_of(graded, sweep.placements)
    if outcomes.worst_share > config.max_unanswered:
        run.metrics(outcomes.metrics)
        write_jsonl(out / PREDICTIONS_FILE, graded)
        often, what, most = judge.most_frequent_complaint(), with_uris(str(config.sweep)), config.max_unanswered
        raise no_figures_error(what, outcomes, sweep.placements, most, often, "judgements", config.out)
    scores = Evidence(config.sweep, sweep, graded).scores
    figures = summarize(scores, sweep.placements, config.seed, sweep.categories, evidence.sample)
    known = {name: getattr(sweep, name) for name in _TAKEN_OVER}
    grading = _summarize_grading(config, judge, sweep.metric, judged, run)
    result = Sweep(**known, metric=GRADED, **figures, outcomes=outcomes, grading=grading)
    page = pack_sweep(result, graded, list(examples.values()))
    write_sweep(result, graded, training_examples(config.sweep), out, page)
    log_sweep(result, run)
    run.artifact(out)


def _judge_answers(
    judge: Judge, sweep: Sweep, rows: Sequence[Prediction], examples: Mapping[str, AnyExample]
) -> list[_JudgedRow]:
    """Returns the sweep's rows with the judgements of those that are answers."""
    responses: list[JudgedResponse | None] = []
    for row in rows:
        answered = outcome_of(row) == "answered"
        responses.append(JudgedResponse.from_example(examples[row["id"]], row["response"]) if answered else None)
    asked = list(filter(None, responses))
    judgements = dict(zip(asked, judge.judge(asked, f"judgements of {sweep.label}")))
    return [_JudgedRow(row, each, each and judgements[each]) for row, each in zip(rows, responses)]


def _write_judgements(judge: Judge, judged: Sequence[_JudgedRow], out: Path) -> None:
    """Writes each judgement once, and the prompt that asked for them."""
    lines = {}
    for _, response, judgement in judged:
        if response and judgement:
            lines[response] = response._asdict() | judgement._asdict()
    write_jsonl(out / JUDGEMENTS_FILE, lines.values())
    (out / PROMPT_FILE).write_text(judge.prompt, encoding="utf-8")


def _summarize_grading(
    config: GradeConfig, judge: Judge, metric: str, judged: Sequence[_JudgedRow], run: Run
) -> Grading:
    """Returns what has to be known of the judge, and tells the run what it took."""
    by_example: dict[str, dict[JudgedResponse, Judgement]] = {}
    judgements: dict[JudgedResponse, Judgement] = {}
    for row, response, judgement in judged:
        if response and judgement:
            judgements[response] = by_example.setdefault(row["id"], {})[response] = judgement
    spent = TokenTotals.from_usages(completion.usage for completion in judge.kept.completions.values())
    if spent:
        run.metrics(spent.metrics())
        log.info("%s: %s", config.judge, spent.totals_text())
    return Grading(
        judge=with_uris(config.judge),
        judge_digest=config.digest("judge"),
        asked=judge.asked,
        responses=len(judgements),
        unreadable=sum(not judgement.is_readable for judgement in judgements.values()),
        flipped=flipped_share(list(of_example.values()) for of_example in by_example.values()),
        agreement=_compare_to_metric(metric, judged),
        settings=config.parameter_values(),
        served=judge.served,
        spent=spent,
    )


def _swept_examples(config: GradeConfig, evidence: Evidence) -> dict[str, AnyExample]:
    """The sweep's examples by id, in its order; `PosgapError` where those given are others."""
    by_id, sweep = {example.id: example for example in read_examples(config.examples)}, evidence.sweep
    examples = {id: by_id[id] for id in evidence.ids if id in by_id}
    if examples_digest(examples.values(), sweep.n_digested, sweep.asked.shuffle) != sweep.examples_digest:
        raise PosgapError(
            f"{config.sweep}: was swept with other examples than {config.examples}; give those of the sweep"
        )
    return examples


def _grade_row(judged: _JudgedRow, judge: Judge) -> Prediction:
    """The line of a sweep's predictions with the judge's score in place of the metric's, which it keeps as `exact`."""
    row, response, judgement = judged
    scored = cast(Prediction, row | {"exact": row["correct"]})
    if response is None or judgement is None:
        scored["outcome"], scored["correct"] = outcome_of(row), False
    elif judgement.is_readable:
        scored["correct"] = judgement.mean_score if judgement.is_flipped else judgement.mean_score == 1
    else:
        scored["outcome"], scored["correct"] = "ungraded", False
        scored["reason"] = f"the judge gave no judgement: {judge.complaint(response)}"
    return scored


def _compare_to_metric(metric: str, judged: Sequence[_JudgedRow]) -> Agreement | None:
    """How the judge agrees with the sweep's own metric, where that says right or wrong; flipped ones say neither."""
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for row, _, judgement in judged:
        if row["correct"] not in (0, 1):
            return None
        if judgement and judgement.is_readable and not judgement.is_flipped:
            pairs.setdefault(row["id"], []).append((judgement.mean_score == 1, row["correct"] == 1))
    return Agreement.from_pairs(metric, pairs.values())
