"""mitigate: which mitigation does a model most good, at what cost?"""

import logging
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from posgap.data.reading import read_examples, write_examples
from posgap.foundation.files import delete_path, work_folder, write_json
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import page_address, with_uris
from posgap.foundation.printing import RESULT, Lines
from posgap.generation.backends import BACKENDS
from posgap.measurement.comparison import Difference, compare_sweeps
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweep_run import list_placements, require_distractors
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search.budget import TIMING, Clock
from posgap.mitigations.search.compared_model import BASE, ComparedModel
from posgap.mitigations.search.comparison import Comparison
from posgap.mitigations.search.page import write_comparison
from posgap.mitigations.search.report import (
    MITIGATE_FILE,
    MITIGATE_PAGE,
    Measurement,
    MitigateResult,
    MitigationOutcome,
    rank_helpful,
    usage_code,
    usage_command,
)
from posgap.mitigations.search.retrieved_order import compare_to_retrieved, summarize_retrieved
from posgap.mitigations.search.selection import choose_settings, pick_finalists
from posgap.mitigations.search.splits import Splits, split
from posgap.options.mitigate import MitigateConfig, seconds_of
from posgap.scaling.scaling_file import refuse_searched_on
from posgap.tasks.content import content_keys, refuse_shared
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)


@stage
@resumable()
def mitigate(config: MitigateConfig, out: Path, run: Run) -> None:
    """Writes `mitigate.json`, `mitigate.html`, the held-out examples, and in `sweeps/` a sweep of them for the
    unmodified model (`base`) and for each measured mitigation.

    Trials are kept beside `out`; an interrupted comparison resumes.
    """
    clock = Clock(seconds_of(config.budget))
    splits = _split_examples(config)
    if config.force:
        delete_path(work_folder(config.out))
    model = _open_model(config, splits)
    model_digest = config.digest("model")
    if BACKENDS[config.backend].local and not model_digest:
        from posgap.models.loading import commit_on_hub  # torch, which endpoints do without

        model_digest = commit_on_hub(config.model)
    key = config.comparison_key()
    comparison = Comparison(model, splits, clock, model_digest, key, config.search_settings())

    found = choose_settings([MITIGATIONS[name] for name in config.methods] or list(MITIGATIONS), comparison)
    finalists = pick_finalists(found)
    comparison.fit_held_out(finalists)
    evidence = _sweep_held_out(comparison, finalists, out / "sweeps")
    result = _summarize(config, comparison, found, finalists, evidence)

    write_json(out / MITIGATE_FILE, result.model_dump(mode="json"))
    write_examples(out / "held_out.jsonl", comparison.splits.held_out)
    write_comparison(result, [each.sweep for each in evidence], out)
    _record(result, run)
    _say(result, config)
    run.artifact(out)


def _split_examples(config: MitigateConfig) -> Splits:
    examples = read_examples(config.examples)[: config.limit or None]
    if config.exclude:
        refuse_shared(examples, read_examples(config.exclude), config.examples, "compare mitigations")
    refuse_searched_on(Path(config.model), examples)
    return split(examples)


def _open_model(config: MitigateConfig, splits: Splits) -> ComparedModel:
    builder = config.builder()
    examples = [*splits.selection, *splits.held_out]
    placements = list_placements(builder, config.n_docs, config.positions)
    require_distractors(examples, builder, placements)
    return ComparedModel.open_model(config.sweep_settings(), builder, placements, examples)


def _sweep_held_out(comparison: Comparison, finalists: Sequence[MitigationOutcome], out: Path) -> list[Evidence]:
    """Sweeps the unmodified model, the best finalist, and more finalists while the budget lasts."""
    evidence = [comparison.sweep_held_out(BASE, None, out / BASE)]
    clock = comparison.clock
    for each in finalists:
        seconds = comparison.seconds_to_sweep(each.name, each.parsed_settings) * len(comparison.splits.held_out)
        if len(evidence) == 1 or clock.seconds_spent + seconds <= (1 - TIMING) * clock.budget:
            evidence.append(comparison.sweep_held_out(each.name, each.parsed_settings, out / each.name))
    return evidence


def _summarize(
    config: MitigateConfig,
    comparison: Comparison,
    found: Sequence[MitigationOutcome],
    finalists: Sequence[MitigationOutcome],
    evidence: Sequence[Evidence],
) -> MitigateResult:
    """Compares each finalist's sweep with the unmodified model's, times finalists in memory, and sums up."""
    model = comparison.model
    base = evidence[0].sweep
    splits = comparison.splits
    differences = {each.label: each for each in compare_sweeps(evidence, together=True).differences}
    swept = {each.sweep.label: each for each in evidence}
    measured = [
        _measure(each, differences[each.name], swept[each.name], evidence[0], comparison, len(differences))
        for each in finalists
        if each.name in swept
    ]
    others = [_explain(each, finalists) for each in found if each.name not in swept]
    better = rank_helpful(measured)
    comparison.save_state()
    return MitigateResult(
        model=with_uris(config.model),
        model_digest=comparison.model_digest,
        task=config.task,
        n_docs=base.n_docs,
        elsewhere="" if model.in_memory else config.backend,
        budget=config.budget,
        seconds=round(comparison.clock.seconds_spent, 1),
        examples={name: len(half) for name, half in splits._asdict().items()},
        chosen_by=content_keys(splits.selection),
        base_mean=base.mean,
        base_gap=base.gap,
        base_gap_ci95=base.gap_ci95,
        retrieved=summarize_retrieved(evidence[0], splits.held_out, base.n_docs) if model.as_retrieved else None,
        found=[*measured, *others],
        choice=better[0].name if better else "",
    )


def _explain(found: MitigationOutcome, finalists: Sequence[MitigationOutcome]) -> MitigationOutcome:
    """Returns a mitigation that was not measured, with the reason."""
    reason = f"on the selection's examples not among the best {len(finalists)}"
    if found in finalists:
        reason = "the budget was over before it was measured"
    return found.model_copy(update={"reason": found.reason or reason})


def _measure(
    found: MitigationOutcome,
    difference: Difference,
    mitigated: Evidence,
    base: Evidence,
    comparison: Comparison,
    n_measured: int,
) -> MitigationOutcome:
    """Returns a mitigation with the figures of its sweep, the cost of an answer, and how to apply it."""
    model = comparison.model
    held_out = comparison.splits.held_out
    sweep = mitigated.sweep
    asked_by = model.prompt_mitigator(found.name, found.parsed_settings)
    tokens = None
    if sweep.spent and base.sweep.spent and base.sweep.spent.prompt_tokens:
        tokens = round(sweep.spent.prompt_tokens / base.sweep.spent.prompt_tokens, 3)
    cost = None
    if model.in_memory:
        from posgap.mitigations.search.timing import measure_cost  # torch, which endpoints do without

        seconds = TIMING * comparison.clock.budget / n_measured
        cost = measure_cost(model, found.name, found.parsed_settings, held_out, seconds)
    measured = Measurement(
        difference=difference,
        over_retrieved=compare_to_retrieved(mitigated, base, n_measured) if model.as_retrieved else None,
        mean=sweep.mean,
        gap=sweep.gap,
        gap_ci95=sweep.gap_ci95,
        cost=cost,
        tokens=tokens,
        calls=model.count_calls(found.name, found.parsed_settings, held_out[0]),
    )
    return found.model_copy(
        update={
            "measured": measured,
            "order_free": asked_by is not None and asked_by.is_order_free(held_out, model.placements),
            "command": usage_command(found, model.settings),
            "code": usage_code(found, model.settings.model),
        }
    )


def _record(result: MitigateResult, run: Run) -> None:
    run.metrics({"gap": result.base_gap, "mean": result.base_mean, "search_seconds": result.seconds})
    for each in result.measured_outcomes:
        assert each.measured
        difference = each.measured.difference
        run.metrics(
            {
                f"{each.name}_mean_difference": difference.mean,
                f"{each.name}_gain": each.measured.gain,
                f"{each.name}_gap_difference": difference.gap,
                f"{each.name}_answer_cost": each.measured.relative_cost,
            }
        )


def _say(result: MitigateResult, config: MitigateConfig) -> None:
    """Prints the result of the comparison: cost and answer, the other mitigations, how to apply the helpful one, and
    where the page will be."""
    held_out = result.examples["held_out"]
    n_questions = sum(result.examples.values())
    if result.seconds < seconds_of(config.budget) / 2:
        used = f"{result.seconds:.0f} s of {config.budget}"
        log.info("all %d questions were asked, in %s; only more questions would tell more", n_questions, used)
    log.log(RESULT, "%s", result.headline)
    for sentence in result.retrieved.sentences(held_out) if result.retrieved else []:
        log.log(RESULT, "%s", sentence)
    for each in result.measured_outcomes:
        if each.name != result.choice:
            log.log(RESULT, "%s", each.verdict_in_words)
    for each in result.helpful_outcomes:
        log.log(RESULT, "to use %s:\n%s", each.name, Lines(indent(each.command or each.code.rstrip(), "    ")))
    log.log(RESULT, "page: %s", page_address(config.out, MITIGATE_PAGE))
