"""mitigate: which mitigation does a model most good, at what cost?"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import indent
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of, remove, work_folder, write_json
from posgap.foundation.interruption import RESUMES, resumable
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.backends import BACKENDS, open_generator
from posgap.measurement.comparison import compare_sweeps
from posgap.measurement.config import SweepConfig
from posgap.measurement.explored import explored_sweep
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweeping import answered, figures, mitigated_by, placements_of, prompt_digest, require_others
from posgap.measurement.sweeps import Evidence
from posgap.mitigating.budget import SEARCHED, base_share, by_price, first_share, fitting
from posgap.mitigating.config import MitigateConfig
from posgap.mitigating.finalists import best_for, in_order
from posgap.mitigating.page import write_pages
from posgap.mitigating.report import (
    MITIGATE_FILE,
    PURPOSES,
    Found,
    Measured,
    Mitigate,
    advice,
    code,
    command,
    described,
    labelled,
)
from posgap.mitigating.retrieved import over_retrieved, retrieved
from posgap.mitigating.splits import Splits, split
from posgap.mitigating.timing import calls, cost
from posgap.mitigating.trials import BASE, Asking, CannotHave, OutOfTime, Trials, Tried, tried_settings
from posgap.mitigations.in_force import load_model
from posgap.mitigations.mitigation import Mitigation, Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.models.factors import config_factors
from posgap.models.loading import commit_on_hub
from posgap.scaling.scaling_file import refuse_searched
from posgap.stages.frame import stage
from posgap.storage.lineage import training_examples
from posgap.tasks.content import among, contents
from posgap.tasks.examples import AnyExample
from posgap.tasks.rag import order_of_retriever
from posgap.tasks.reading import read_examples, write_examples
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
# What has no effect on a trial: how many there are, and what of endpoints `deciding` leaves out.
_WITHOUT_EFFECT = {"budget", "methods", *(MitigateConfig.parameters().keys() - {*MitigateConfig.deciding()})}
_OWN = {"out", "force", "examples", "limit", "label"}  # fields of a sweep that are not those of the comparison
_AGAIN = 2  # settings of a mitigation that are tried again on the selection's examples
_WHATEVER = PURPOSES[:2]  # the best for these purposes are measured, on as many examples as there is time for
_MEASURED = 0.4  # at most this share of the budget is kept for the measurement as the best are tried again
_TIMING = 0.05  # of the budget, for the times of answers


@stage
@resumable()
def mitigate(config: MitigateConfig, out: Path, run: Run) -> None:
    """Writes `mitigate.json`, `mitigate.html`, `mitigate.png`, the held-out examples, and in `sweeps/` a sweep of them
    for the model as it is (`base`) and for each mitigation that was measured.

    What was tried is kept beside `out`; a comparison that was interrupted goes on from there.
    """
    began = time.monotonic()
    examples, splits = _examples(config)
    held_out = work_folder(config.out) / "held_out.jsonl"
    if config.force:
        remove(work_folder(config.out))
    held_out.parent.mkdir(parents=True, exist_ok=True)
    write_examples(held_out, splits.held_out)
    local = BACKENDS[config.backend].local
    build = BACKENDS[config.backend].builder(config)
    metric = config.metric or build.task.metric
    swept = _sweep_config(config, held_out)
    placements = placements_of(build, swept.n_docs, swept.positions, swept.shard)
    require_others(examples, build, placements)
    as_retrieved = order_of_retriever(build.task, examples, placements[0].n_docs)
    swept = swept.model_copy(update={"baselines": [as_retrieved.name] if as_retrieved else []})
    asking = Asking(
        load_model(config.model, config.dtype) if local else None,
        build,
        placements,
        partial(build.task.score, metric=config.metric),
        config,
        None if local else open_generator(config, build),
        as_retrieved,
    )
    model_digest = config.digest("model") or (local and commit_on_hub(config.model)) or ""
    settings = {name: value for name, value in config.chosen().items() if name not in _WITHOUT_EFFECT}
    asked_at = [placement.name for placement in asking.tried_at]
    identity = digest_of([settings, metric, model_digest, contents(examples), build.digest(), asked_at])
    took = time.monotonic() - began
    trials = Trials(asking, splits._asdict(), work_folder(config.out) / "tried.json", identity, took)

    mitigations = by_price([MITIGATIONS[name] for name in config.methods] or MITIGATIONS)
    _ask_as_it_is(trials, mitigations)
    found, best = _searched(mitigations, config, asking, trials)
    ranked, always_measured = _selected(config, trials, best, found)
    splits = _with_room(trials, ranked, always_measured)
    write_examples(held_out, splits.held_out)
    evidence = _measured(config, swept, asking, trials, splits, ranked, always_measured, found, model_digest, out)
    comparison = compare_sweeps(evidence, together=True) if len(evidence) > 1 else None
    base = evidence[0].sweep
    measured = {each.sweep.label: each for each in evidence[1:]}
    order = [name for name, _ in ranked if name in measured]
    timing = _TIMING * trials.clock.budget / max(1, len(measured))
    found = {name: found[name] for name in [*order, *(name for name in found if name not in order)]}
    for difference in comparison.differences if comparison else []:
        name = difference.label
        sweep = measured[name].sweep
        chosen = _settings(name, found[name].settings)
        asked_by = mitigated_by(_of_mitigation(swept, name, chosen), build)
        tokens = None
        if sweep.spent and base.spent and base.spent.prompt_tokens:
            tokens = round(sweep.spent.prompt_tokens / base.spent.prompt_tokens, 3)
        found[name] = found[name].model_copy(
            update={
                "measured": Measured(
                    difference=difference,
                    over_retrieved=over_retrieved(measured[name], evidence[0], len(measured)) if as_retrieved else None,
                    mean=sweep.mean,
                    gap=sweep.gap,
                    gap_ci95=sweep.gap_ci95,
                    cost=cost(asking, name, chosen, splits.held_out, timing) if local else None,
                    tokens=tokens,
                    calls=calls(asking, name, chosen, splits.held_out[0]),
                ),
                "order_free": asked_by is not None and asked_by.is_order_free(splits.held_out, placements),
                "command": command(name, found[name].settings, config),
                "code": code(name, found[name].settings),
            }
        )
    trials.keep()
    result = Mitigate(
        model=with_uris(config.model),
        model_digest=model_digest,
        task=config.task,
        n_docs=base.n_docs,
        objective=config.objective,
        elsewhere="" if local else config.backend,
        budget=config.budget,
        seconds=round(trials.clock.spent, 1),
        examples={name: len(part) for name, part in splits._asdict().items()},
        chosen_by=contents([*splits.search, *splits.selection]),
        base_mean=base.mean,
        base_gap=base.gap,
        base_gap_ci95=base.gap_ci95,
        retrieved=retrieved(evidence[0], splits.held_out, base.n_docs) if as_retrieved else None,
        found=list(found.values()),
        advice=advice(list(found.values())),
    )
    write_json(out / MITIGATE_FILE, result.model_dump(mode="json"))
    write_examples(out / "held_out.jsonl", splits.held_out)
    write_pages(result, [each.sweep for each in evidence], out)
    _record(result, run)
    run.artifact(out)


def _examples(config: MitigateConfig) -> tuple[list[AnyExample], Splits]:
    examples = read_examples(config.examples)[: config.limit or None]
    if config.exclude and (shared := among(examples, contents(read_examples(config.exclude)))):
        raise PosgapError(
            f"{config.examples}: {len(shared)} examples are evaluation examples too ({shared[0].id}, ...); "
            "compare mitigations on other examples"
        )
    refuse_searched(Path(config.model), examples)
    return examples, split(examples, config.search, config.selection)


def _sweep_config(config: MitigateConfig, held_out: Path) -> SweepConfig:
    """The config of a sweep of the held-out examples that asks as the trials do."""
    shared = (MitigateConfig.model_fields.keys() & SweepConfig.model_fields.keys()) - _OWN
    return SweepConfig(
        **{name: getattr(config, name) for name in shared} | {"processes": 1},
        examples=held_out,
        out=held_out.parent / "sweeps" / BASE,
    )


def _ask_as_it_is(trials: Trials, mitigations: Sequence[Mitigation]) -> None:
    """Asks the model as it is the search's examples, as many as it reaches in its share of the budget; of the
    selection's as many stay."""
    until = trials.clock.spent + base_share(mitigations) * trials.clock.budget
    trials("search", BASE, until=until)
    there, selection = len(trials.parts["search"]), len(trials.parts["selection"])
    if "search" in trials.kept and "selection" not in trials.kept and there < selection:
        trials.leave_out("selection", range(there))
        log.warning("%d examples to search on, and at most as many to select on: the budget allows no more", there)


def _with_room(trials: Trials, ranked: Sequence[tuple[str, Settings]], always_measured: Sequence[str]) -> Splits:
    """The parts of the examples, of those held out as many as can be asked, by the model as it is and the mitigations
    of `always_measured`, in the time that is left."""
    n = len(trials.parts["held_out"])
    if "held_out" not in trials.kept:
        each = trials.seconds_each(BASE) + sum(
            trials.seconds_each(name, settings) for name, settings in ranked if name in always_measured
        )
        left = max(0.0, trials.clock.budget - trials.clock.spent)
        fit = fitting(n, each, left)
        trials.leave_out("held_out", range(fit))
        trials.keep()
        if fit < n:
            log.warning(
                "%d of %d held-out examples are measured: all would take about %.0f s, and %.0f s are left; give a "
                "longer --budget for more",
                *(fit, n, each * n, left),
            )
    return Splits(**trials.parts)


def _searched(
    mitigations: Sequence[Mitigation], config: MitigateConfig, asking: Asking, trials: Trials
) -> tuple[dict[str, Found], dict[str, list[Tried]]]:
    """What is found of every mitigation, and of those that were tried all that was, the fittest first.

    Each gets a share of the time that is left for the search by its price, and may try one setting that exceeds it.
    None begins of which one setting takes longer than what is left, and settings that are clearly worse are given up
    early.
    """
    base, splits = trials("search", BASE), Splits(**trials.parts)
    held_out = len(splits.held_out) * asking.measured_prompts
    later = held_out * (1 + config.finalists) + len(splits.selection) * len(mitigations)
    budget = trials.clock.budget
    end = max(budget - base.seconds / len(splits.search) * later, SEARCHED * budget)
    log.info("base: mean %.1f on %d examples in %.1f s", trials.fitness(base), len(splits.search), base.seconds)
    found, best = dict[str, Found](), dict[str, list[Tried]]()
    for number, mitigation in enumerate(mitigations):
        now = trials.clock.spent
        about = described(mitigation)
        needed, left = mitigation.price * base.seconds, max(0.0, end - now)
        share = now + first_share(mitigations[number:], base.seconds, left)
        some = any(each.tried for each in found.values())
        if some and needed > left and not trials.has_tried(mitigation.name):
            why = f"the budget was over before it was tried: it takes about {needed:.0f} s, and {left:.0f} s were left"
            found[mitigation.name] = about.model_copy(update={"reason": why})
            continue
        try:
            rows = _trials_of(mitigation, asking, trials, splits, share, end if some else None)
        except PosgapError as refused:
            if asking.elsewhere is not None and not isinstance(refused, CannotHave):
                raise  # An endpoint that gives no answers says nothing of the mitigation.
            found[mitigation.name] = about.model_copy(update={"reason": str(refused)})
            log.info("%s: left out: %s", mitigation.name, refused)
            continue
        if not rows:
            found[mitigation.name] = about.model_copy(update={"reason": "the budget was over before it was tried"})
            continue
        if all(row.given_up for row in rows):
            found[mitigation.name] = about.model_copy(update={"tried": len(rows), "reason": rows[0].given_up})
            log.info("%s: %s", mitigation.name, rows[0].given_up)
            continue
        rows = [row for row in rows if not row.given_up]
        rows.sort(key=lambda row: -trials.fitness(row))
        best[mitigation.name] = rows
        gain = _mean(rows[0]) - _mean(base)
        found[mitigation.name] = about.model_copy(
            update={
                "settings": rows[0].settings,
                "curve": mitigation.curve(_settings(mitigation.name, rows[0].settings)),
                "tried": len(rows),
                "search_gain": round(gain, 3),
            }
        )
        log.info("%s: %d settings tried, the best %+.1f in the mean", mitigation.name, len(rows), gain)
    if not any(each.tried for each in found.values()):
        raise PosgapError(
            f"{config.model}: can have none of the mitigations: "
            + "; ".join(f"{each.name}: {each.reason}" for each in found.values())
        )
    return found, best


def _trials_of(
    mitigation: Mitigation, asking: Asking, trials: Trials, splits: Splits, share: float, end: float | None
) -> list[Tried]:
    """The trials of a mitigation's settings, of which after the first none begins that would exceed its share of the
    time, and none goes on when the whole search is over."""
    rows = list[Tried]()
    if end is not None and trials.clock.spent >= end:
        return rows

    def fitness(settings: Settings) -> float:
        if rows and trials.clock.spent + rows[-1].seconds > share:
            raise OutOfTime
        row = trials("search", mitigation.name, settings, until=end)
        if row not in rows:
            rows.append(row)
        return trials.fitness(row)

    with suppress(OutOfTime):
        for settings in tried_settings(mitigation, asking, splits.search):
            fitness(settings)
        mitigation.search(mitigation.parameters.of(asking.config), asking.model, fitness, asking.config.seed)
    return rows


def _selected(
    config: MitigateConfig, trials: Trials, best: dict[str, list[Tried]], found: dict[str, Found]
) -> tuple[list[tuple[str, Settings]], list[str]]:
    """The finalists with the settings that did best on the selection's examples: the best for each purpose, and then
    the best by the objective. Those after them are not measured. Also the names of those that are measured in any
    case.

    First the best settings of each mitigation are tried again, then the second best. What is the best for a purpose by
    the search goes first, so that there is time for it; time is left to measure the model and the finalists.
    """
    base, splits = trials("selection", BASE), Splits(**trials.parts)
    reached = dict[str, Tried]()
    searched = {name: rows[0] for name, rows in best.items()}
    by_search = in_order(searched, found, trials.fitness)
    always_measured = best_for(_WHATEVER, searched, found, trials.fitness)
    later = trials("search", BASE).seconds + sum(searched[name].seconds for name in by_search[: config.finalists])
    later *= trials.asking.measured_prompts
    for number, name in product(range(_AGAIN), by_search):
        if len(best[name]) <= number:
            continue
        row = best[name][number]
        left = trials.clock.budget - trials.clock.spent
        measuring = min(later * len(splits.held_out) / len(splits.search), _MEASURED * trials.clock.budget)
        needed = row.seconds * len(splits.selection) / len(splits.search) + measuring
        if needed > left and not (number == 0 and name in always_measured):
            continue
        again = trials("selection", name, _settings(name, row.settings))
        if again.given_up:
            found[name] = found[name].model_copy(update={"reason": again.given_up})
            continue
        if name not in reached or trials.fitness(again) > trials.fitness(reached[name]):
            reached[name] = again
    for name in by_search:
        if name not in reached:
            reason = found[name].reason or "the budget was over before it was tried again"
            found[name] = found[name].model_copy(update={"reason": reason})
            continue
        row = reached[name]
        gain = round(_mean(row) - _mean(base), 3)
        tried = next(tried for tried in best[name] if tried.settings == row.settings)
        found[name] = found[name].model_copy(
            update={
                "settings": row.settings,
                "reason": "",
                "curve": MITIGATIONS[name].curve(_settings(name, row.settings)),
                "selection_gain": gain,
                "search_gain": round(_mean(tried) - _mean(trials("search", BASE)), 3),
            }
        )
    ranked = in_order(reached, found, trials.fitness)
    count = max(config.finalists, len(best_for(PURPOSES, reached, found, trials.fitness)))
    for name in ranked[count:]:
        found[name] = found[name].model_copy(
            update={"reason": f"on the selection's examples not the best for any purpose, nor among the best {count}"}
        )
    finalists = [(name, _settings(name, reached[name].settings)) for name in ranked[:count]]
    return finalists, best_for(_WHATEVER, reached, found, trials.fitness)


def _measured(
    config: MitigateConfig,
    swept: SweepConfig,
    asking: Asking,
    trials: Trials,
    splits: Splits,
    ranked: Sequence[tuple[str, Settings]],
    always_measured: Sequence[str],
    found: dict[str, Found],
    model_digest: str,
    out: Path,
) -> list[Evidence]:
    """The sweeps of the held-out examples, that of the model as it is first; all but it and those of
    `always_measured` end with the budget."""
    learnt = training_examples(config.model)
    chosen_by = {*contents(splits.search), *contents(splits.selection)}
    evidence, slower = list[Evidence](), 1.0
    for name, settings in [(BASE, None), *ranked]:
        began = trials.clock.spent
        expected = trials.seconds_each(name, settings) * len(splits.held_out)
        late = began + slower * expected > (1 - _TIMING) * trials.clock.budget
        if len(evidence) > 1 and name not in always_measured and late:
            found[name] = found[name].model_copy(update={"reason": "the budget was over before it was measured"})
            continue
        own = _of_mitigation(swept, name, settings)
        # Under a mitigation it is another model than the one in the folder.
        is_other = name != BASE and MITIGATIONS[name].of_model
        parts = [model_digest, name, settings.model_dump(mode="json")] if settings and is_other else None
        digests = {
            "model_digest": digest_of(parts) if parts else model_digest,
            "prompt_digest": prompt_digest(asking.build, mitigated_by(own, asking.build)),
        }
        with asking.under(name, settings) as generator:
            asked = answered(own, splits.held_out, asking.build, asking.placements, digests, generator=generator)
            factors = config_factors(asking.model.config) if asking.model else None
        if asked.served:
            trials.require_same(asked.served)
            if asked.outcomes.worst_share > config.max_unanswered:  # type: ignore[attr-defined]  # a rule's parameter
                where = [placement.positions for placement in asking.placements]
                raise PosgapError(
                    f"{with_uris(config.model)}: {name}: {asked.outcomes.phrase(where)} on the held-out examples, and "
                    f"--max-unanswered is less; most often: {asked.most_frequent_reason}. What was answered is kept: "
                    f"{RESUMES}"
                )
        sweep = figures(own, splits.held_out, asking.build, asking.placements, digests, asked, name, factors)
        place = out / "sweeps" / name
        place.mkdir(parents=True)
        explored = explored_sweep(sweep, asked.predictions, splits.held_out)
        write_sweep(sweep, asked.predictions, learnt | (chosen_by if settings else set()), place, explored)
        evidence.append(Evidence(place, sweep, asked.predictions))
        slower = max(slower, (trials.clock.spent - began) / expected) if expected else slower
        trials.keep()
        log.info("%s, held-out examples: %s", name, labelled(sweep))
    return evidence


def _of_mitigation(swept: SweepConfig, name: str, settings: Settings | None) -> SweepConfig:
    """The config of the sweep under a mitigation."""
    changes: dict[str, Any] = {"label": name, "out": swept.out.with_name(name)}
    if settings and not MITIGATIONS[name].of_model:
        changes |= {"mitigation": name, "mitigation_settings": settings.model_dump(mode="json")}
    return swept.model_copy(update=changes)


def _settings(name: str, plain: dict) -> Settings:
    return MITIGATIONS[name].settings(**plain)


def _mean(row: Tried) -> float:
    return sum(row.accuracy) / len(row.accuracy)


def _record(result: Mitigate, run: Run) -> None:
    for sentence in result.retrieved.sentences(result.examples["held_out"]) if result.retrieved else []:
        log.log(RESULT, "%s", sentence)
    run.metrics({"gap": result.base_gap, "mean": result.base_mean, "search_seconds": result.seconds})
    for each in result.measured:
        assert each.measured
        difference = each.measured.difference
        run.metrics(
            {
                f"{each.name}_mean_difference": difference.mean,
                f"{each.name}_gain": each.measured.gain,
                f"{each.name}_gap_difference": difference.gap,
                f"{each.name}_answer_cost": each.measured.paid,
            }
        )
        log.log(RESULT, "%s", each.verdict)
    for said in result.advice:
        log.log(RESULT, "%s: %s: %s", said.purpose, said.name or "as it is", said.why)
    for said in result.taken:
        log.log(RESULT, "%s:\n%s", said.name, indent(said.command or said.code.rstrip(), "    "))
