"""scale_search: searches the RoPE factors, one per layer, with which the model answers best."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posgap.data.reading import examples_file, read_examples
from posgap.foundation.errors import BadOption
from posgap.foundation.files import delete_path, digest_of, digest_path, work_folder
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Sampling
from posgap.generation.setup import builder_of
from posgap.mitigations.in_force import load_model
from posgap.models.loading import commit_on_hub
from posgap.options.scale_search import ScaleSearchConfig
from posgap.scaling.holdout import MIN_EXAMPLES, SHARE, hold_out, measure_gain
from posgap.scaling.plots import write_plot
from posgap.scaling.scaling_file import Holdout, Scaling, write_scaling
from posgap.scaling.search import STATES, Backend, FactorSearch, FoundFactors
from posgap.tasks.content import content_keys, refuse_shared
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, swept_placements
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)


@stage
@resumable()
def scale_search(config: ScaleSearchConfig, out: Path, run: Run) -> None:
    """Writes `scaling.json` and `scaling.png`.

    Scores are kept beside `out` until the search ends, so an interrupted search resumes.
    """
    examples, aside = _split_examples(config)
    placements = swept_placements(config.n_docs, 1, config.positions)
    search = _open_search(config, examples, aside, placements)
    searched_on = _describe_questions(config, search, examples, placements)
    found = _find_factors(config, search, searched_on, run)
    scaling = Scaling(
        model=with_uris(config.model),
        objective=config.objective,
        weights="middle" if config.objective == "mean" else "uniform",
        settings=config.parameter_values() | {"backend": search.backend},
        **searched_on,
        **_figures(search, found),
        **_gain_aside(search, found, aside),
    )
    write_scaling(scaling, out)
    write_plot(scaling, out / "scaling.png")
    _record(scaling, run)
    run.artifact(out)


def _open_search(
    config: ScaleSearchConfig,
    examples: Sequence[AnyExample],
    aside: Sequence[AnyExample],
    placements: Sequence[Placement],
) -> FactorSearch:
    builder = builder_of(config.model, config.wording(), config.limits())
    if builder.task.n_gold != 1:
        raise BadOption(f"task {config.task}: has two gold documents; search on a task with one gold document")

    def choose_backend() -> Backend:  # once it is known whether answers are forced, which needs no other backend
        chosen = config.resolve_backend()
        in_memory = BACKENDS[chosen.backend].in_memory
        return Backend(chosen.backend, None if in_memory else lambda: open_generator(chosen.access(), builder))

    return FactorSearch(
        config.search_settings(),
        builder,
        examples,
        placements,
        load=lambda: load_model(config.model, config.dtype),
        choose_backend=choose_backend,
        aside=aside,
    )


def _describe_questions(
    config: ScaleSearchConfig, search: FactorSearch, examples: Sequence[AnyExample], placements: Sequence[Placement]
) -> dict[str, Any]:
    """Returns what the factors are searched on, as fields of `Scaling`."""
    return {
        "task": config.task,
        "n_docs": config.n_docs,
        "metric": search.metric,
        "positions": [placement.positions[0] for placement in placements],
        "model_digest": config.digest("model") or commit_on_hub(config.model),
        "examples_digest": digest_path(examples_file(config.examples)),
        "example_contents": content_keys(examples),
        "prompt_digest": search.builder.digest(),
    }


def _find_factors(
    config: ScaleSearchConfig, search: FactorSearch, searched_on: Mapping[str, Any], run: Run
) -> FoundFactors:
    """Searches, resuming an interrupted search, and tracks each generation."""
    folder = work_folder(config.out)
    if config.force:
        for name in STATES:
            delete_path(folder / name)

    def track(row: dict[str, float]) -> None:
        run.metrics({name: row[name] for name in row if name != "generation"}, step=int(row["generation"]))

    identity = digest_of([searched_on, config.dtype, asdict(Sampling.for_builder(search.builder))])
    found = search.find_factors(folder, identity, track)
    if search.loses_ties:
        search.choose_as_generated(found)
    return found


def _split_examples(config: ScaleSearchConfig) -> tuple[list[AnyExample], list[AnyExample]]:
    """Returns the examples to search on, and those that the search is kept from.

    Raises `PosgapError` if any of them is also an evaluation example (`exclude`).
    """
    given = read_examples(config.examples)[: config.limit or None]
    if config.exclude:
        refuse_shared(given, read_examples(config.exclude), config.examples, "search")
    examples, aside = hold_out(given)
    if not aside:
        log.info(
            "%d examples are too few: %g of them held out must be %d or more; all are searched on, so "
            "the reported gain is biased upwards",
            len(given), SHARE, MIN_EXAMPLES,
        )  # fmt: skip
    return examples, aside


def _figures(search: FactorSearch, found: FoundFactors) -> dict[str, Any]:
    """Returns the factors and their scores on the examples that chose them, as fields of `Scaling`."""
    accuracy, unscaled = (found.scores.accuracy(each) for each in (found.factors, search.ones))
    reached = search.fitness(accuracy), search.fitness(unscaled)
    best, base = reached
    if found.generated:
        best = found.generated.fitness
        base = found.generated.unscaled_fitness
    return {
        "curve": found.curve.as_record(),
        "control_points": found.finalists[found.factors].tolist(),
        "factors": list(found.factors),
        "fitness": reached[0],
        "accuracy": accuracy.tolist(),
        "unscaled_fitness": reached[1],
        "unscaled_accuracy": unscaled.tolist(),
        "search_gain": best - base,
        "history": found.history,
        "forward_passes": found.forward_passes,
        "forced": found.forced,
        "generated": found.generated,
    }


def _gain_aside(search: FactorSearch, found: FoundFactors, aside: Sequence[AnyExample]) -> dict[str, Any]:
    """Returns what the factors gain on the examples that the search was kept from, as fields of `Scaling`."""
    if not aside:
        return {}
    before, after = search.judge_aside([search.ones, found.factors])
    gained, interval = measure_gain(after, before, search.fitness, search.settings.seed)
    holdout = Holdout(
        examples=len(aside),
        contents=content_keys(aside),
        accuracy=(100 * after.mean(axis=0)).tolist(),
        unscaled_accuracy=(100 * before.mean(axis=0)).tolist(),
    )
    return {"gain": gained, "gain_ci95": interval, "holdout": holdout}


def _record(scaling: Scaling, run: Run) -> None:
    figures = scaling.model_dump(include={"fitness", "unscaled_fitness", "forward_passes", "search_gain", "gain"})
    run.metrics({name: value for name, value in figures.items() if value is not None})
    log.log(
        RESULT, "fitness %.2f, unscaled %.2f; factors %s", scaling.fitness, scaling.unscaled_fitness, scaling.factors
    )
    log.log(RESULT, "the factors gain %s", scaling.gain_in_words)
