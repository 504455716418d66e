"""grade: the responses of a finished sweep, judged by a model."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

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
    "asked",    "settings", "served", "spent", "filled", "mitigation", "definition",
)  # fmt: skip


@stage
@resumable()
def grade(config: GradeConfig, out: Path, run: Run) -> None:
    """Writes what `sweep` writes, with the judge's scores, and `judgements.jsonl` and `judge_prompt.txt`.

    Only answers are judged: what was not answered stays what it was. Judgements are kept beside `out` as they come; a
    grading that was interrupted goes on from there.
    """
    evidence = Evidence(config.sweep)
    sweep, rows = evidence.sweep, swept_rows(read_predictions(config.sweep))
    if sweep.grading:
        raise PosgapError(f"{config.sweep}: is graded; give the sweep that it was made from")
    examples = _swept_examples(config, evidence)
    judge = Judge(config, {field: config.digest(field) for field in ("sweep", "examples", "judge")})
    answered = [row for row in rows if outcome_of(row) == "answered"]
    asked = [JudgedResponse.from_example(examples[row["id"]], row["response"]) for row in answered]
    judgements = dict(zip(asked, judge.judge(asked, f"judgements of {sweep.label}")))
    judged = iter(asked)
    by_row = [next(judged) if outcome_of(row) == "answered" else None for row in rows]
    graded = [
        _graded(row, each and judgements[each], each and judge.complaint(each)) for row, each in zip(rows, by_row)
    ]
    write_jsonl(
        out / JUDGEMENTS_FILE,
        (each._asdict() | judgement._asdict() for each, judgement in judgements.items()),
    )
    (out / PROMPT_FILE).write_text(judge.prompt, encoding="utf-8")
    outcomes = outcomes_of(graded, sweep.placements)
    if outcomes.worst_share > config.max_unanswered:
        run.metrics(outcomes.metrics)
        write_jsonl(out / PREDICTIONS_FILE, graded)
        often, graded_sweep = judge.most_frequent_complaint(), with_uris(str(config.sweep))
        raise no_figures_error(
            graded_sweep, outcomes, sweep.placements, config.max_unanswered, often, "judgements", config.out
        )
    by_example: dict[str, dict[JudgedResponse, Judgement]] = {}
    for row, each in zip(rows, by_row):
        if each:
            by_example.setdefault(row["id"], {})[each] = judgements[each]
    if spent := TokenTotals.from_usages(completion.usage for completion in judge.kept.completions.values()):
        run.metrics(spent.metrics())
        log.info("%s: %s", config.judge, spent.totals_text())
    grading = Grading(
        judge=with_uris(config.judge),
        judge_digest=config.digest("judge"),
        asked=judge.asked,
        responses=len(judgements),
        unreadable=sum(not judgement.is_readable for judgement in judgements.values()),
        flipped=flipped_share([list(of_example.values()) for of_example in by_example.values()]),
        agreement=_agreement(sweep.metric, rows, [each and judgements[each] for each in by_row]),
        settings=config.parameter_values(),
        served=judge.served,
        spent=spent,
    )
    known = {name: getattr(sweep, name) for name in _TAKEN_OVER}
    scores = Evidence(config.sweep, sweep, graded).scores
    figures = summarize(scores, sweep.placements, config.seed, sweep.categories, evidence.sample)
    result = Sweep(**known, metric=GRADED, **figures, outcomes=outcomes, grading=grading)
    explored = pack_sweep(result, graded, list(examples.values()))
    write_sweep(result, graded, training_examples(config.sweep), out, explored)
    log_sweep(result, run)
    run.artifact(out)


def _swept_examples(config: GradeConfig, evidence: Evidence) -> dict[str, AnyExample]:
    """The sweep's examples by id, in its order; `PosgapError` where those given are others."""
    by_id, sweep = {example.id: example for example in read_examples(config.examples)}, evidence.sweep
    examples = {id: by_id[id] for id in evidence.ids if id in by_id}
    if examples_digest(examples.values(), sweep.n_digested, sweep.asked.shuffle) != sweep.examples_digest:
        raise PosgapError(
            f"{config.sweep}: was swept with other examples than {config.examples}; give those of the sweep"
        )
    return examples


def _graded(row: Prediction, judgement: Judgement | None, complaint: str | None) -> Prediction:
    """The line of a sweep's predictions with the judge's score in place of the metric's, which it keeps as `exact`."""
    scored = cast(Prediction, row | {"exact": row["correct"]})
    if judgement is None:
        scored["outcome"], scored["correct"] = outcome_of(row), False
    elif judgement.is_readable:
        scored["correct"] = judgement.mean_score if judgement.is_flipped else judgement.mean_score == 1
    else:
        scored["outcome"], scored["correct"] = "ungraded", False
        scored["reason"] = f"the judge gave no judgement: {complaint}"
    return scored


def _agreement(metric: str, rows: Sequence[Prediction], judgements: Sequence[Judgement | None]) -> Agreement | None:
    """How the judge agrees with the sweep's own metric, where that says right or wrong; flipped ones say neither."""
    if any(row["correct"] not in (0, 1) for row in rows):
        return None
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for row, judgement in zip(rows, judgements):
        if judgement and judgement.is_readable and not judgement.is_flipped:
            pairs.setdefault(row["id"], []).append((judgement.mean_score == 1, row["correct"] == 1))
    return Agreement.from_pairs(metric, pairs.values())
