"""sweep: accuracy with the gold documents at every position."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

from posgap.distillation.methods import label_of
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_model, write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import Location, with_uris
from posgap.foundation.printing import show
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Generator, LazyGenerator
from posgap.generation.served import EndpointChanged, EndpointGenerator
from posgap.measurement.config import SweepConfig
from posgap.measurement.filling import at_lengths
from posgap.measurement.lengths import estimated_lengths, folder_at, length_map
from posgap.measurement.page_examples import pack_sweep
from posgap.measurement.prompt_mitigator import Question
from posgap.measurement.spending import estimate, estimated_tokens
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweeping import (
    baseline_placements,
    figures,
    mitigated_by,
    placements_of,
    swept,
)
from posgap.measurement.sweeps import PREDICTIONS_FILE, SWEEP_FILE, Evidence, Sweep, no_figures_error, read_sweep
from posgap.models.factors import config_factors
from posgap.models.memory import cache_bytes
from posgap.scaling.scaling_file import refuse_searched_on
from posgap.stages.frame import is_complete, stage
from posgap.storage.cache import fetch_location
from posgap.storage.inputs import source, with_local_paths
from posgap.storage.lineage import training_examples
from posgap.tasks.examples import AnyExample
from posgap.tasks.prompts import Prompt, PromptBuilder, TextPromptBuilder
from posgap.tasks.reading import read_examples
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_answers, log_lengths, log_sweep

log = logging.getLogger(__name__)


def sweep(config: SweepConfig, generator: Generator | None = None) -> Location:
    """Sweeps a model, as `_write` says, or only estimates what that takes, where the config asks for it. A `generator`
    of the model that is open already answers in place of the config's own.

    A complete sweep of an endpoint is reused where that says that it is still what it was, or says nothing. One that
    was made when more could go unanswered is left as it is, and refused.
    """
    if config.estimate:
        words = _estimated(config)
        show(words, {"estimate": words.splitlines()})
        return config.out
    if not config.force:
        _require_same_endpoint(config)
    place = _run(config, generator)
    for recorded in _recorded(place):
        if recorded.outcomes and recorded.outcomes.worst_share > config.max_unanswered:
            unanswered = recorded.outcomes.phrase(recorded.placements)
            raise PosgapError(
                f"{place}: {unanswered}, and {config.max_unanswered:g} % is allowed; "
                "give --max-unanswered as it was when this was swept"
            )
    return place


def _recorded(place: Location) -> Iterator[Sweep]:
    """The sweep, or the sweeps at several lengths, in a folder."""
    folder = source(place)
    names = [name for name in folder.sizes() if Path(name).name == SWEEP_FILE]
    for file in filter(None, map(folder.local_file, names)):
        yield read_model(Sweep, file, SWEEP_FILE)


def _run(config: SweepConfig, generator: Generator | None) -> Location:
    @stage
    @resumable()
    def sweep(config: SweepConfig, out: Path, run: Run) -> None:
        _write(config, out, run, generator)

    return sweep(config)


def _write(config: SweepConfig, out: Path, run: Run, generator: Generator | None) -> None:
    """Writes `sweep.json`, `predictions.jsonl`, `sweep.png`, `sweep.html` and `model_card.md`; of several lengths each
    into a folder of its own, and of all together `lengths.json`, `lengths.png` and `lengths.html`.

    Answers are kept beside `out` as they come; a sweep that was interrupted goes on from there.
    """
    examples = read_examples(config.examples)
    refuse_searched_on(Path(config.model), examples[: config.limit or None])
    builder = BACKENDS[config.backend].builder(config)
    at_each = at_lengths(config.lengths, config.depths, config.seed, builder, examples) if config.lengths else []
    if len(at_each) > 1:
        _map(config, at_each, examples, out, run)
    else:
        log_sweep(_swept(config, at_each[0] if at_each else builder, examples, out, out, run, generator), run)
        log_answers(out, examples, run)
    run.artifact(out)


def _swept(
    config: SweepConfig,
    builder: TextPromptBuilder,
    examples: Sequence[AnyExample],
    place: Path,
    out: Path,
    run: Run,
    generator: Generator | None = None,
) -> Sweep:
    """A sweep, which is written into the folder `place`; where too little is answered, that is kept in `out`."""
    examples = examples[: config.limit or None]
    label, step = config.label or label_of(config.model, config.mitigation), builder.fill.tokens if builder.fill else 0
    placements = placements_of(builder, config.n_docs, config.positions, config.shard)
    asked, config, builder, digests = swept(config, examples, builder, placements, config.digest("model"), generator)
    if asked.spent:
        run.metrics(asked.spent.metrics(), step=step)
        log.info("%s: %s", label, asked.spent.totals_text())
    if asked.outcomes.worst_share > config.max_unanswered:
        run.metrics(asked.outcomes.metrics, step=step)
        write_jsonl(out / PREDICTIONS_FILE, asked.predictions)
        where, often = [placement.positions for placement in placements], asked.most_frequent_reason
        model = with_uris(config.model) + (f" at {step:,} tokens" if step else "")
        raise no_figures_error(model, asked.outcomes, where, config.max_unanswered, often, "answers", config.out)
    result = figures(config, examples, builder, placements, digests, asked, label, _factors(config))
    explored = pack_sweep(result, asked.predictions, examples)
    write_sweep(result, asked.predictions, training_examples(config.model), place, explored)
    return result


def _map(
    config: SweepConfig,
    at_each: Sequence[PromptBuilder],
    examples: Sequence[AnyExample],
    out: Path,
    run: Run,
) -> None:
    """Sweeps at each of several lengths, by one generator, and writes their map."""
    from posgap.measurement.length_pages import write_map  # matplotlib, for which a reused sweep need not wait

    generator, evidence = LazyGenerator(lambda: open_generator(config, at_each[0])), []
    for builder in at_each:
        assert builder.fill
        of_length = config.model_copy(update={"lengths": [builder.fill.length]})
        place = folder_at(out, builder.fill.tokens)
        place.mkdir()
        sweep = _swept(of_length, builder, examples, place, out, run, generator)
        evidence.append(Evidence(place, sweep))
    lengths = length_map(evidence, at_each[0].context, config.most_gap)
    write_map(lengths, [each.sweep for each in evidence], out)
    log_lengths(lengths, run)


def _factors(config: SweepConfig) -> Sequence | None:
    """The RoPE factors that the model's config names; an endpoint does not tell its own."""
    if not BACKENDS[config.backend].local:
        return None
    from posgap.models.loading import load_config

    return config_factors(load_config(config.model))


@with_local_paths
def _estimated(config: SweepConfig) -> str:
    """What the whole sweep takes, in words. Nothing is sent, and no model is loaded."""
    everything = read_examples(config.examples)
    examples = everything[: config.limit or None]
    backend = BACKENDS[config.backend]
    builder = backend.builder(config)
    if config.lengths:
        at_each = at_lengths(config.lengths, config.depths, config.seed, builder, everything)
        cache = partial(cache_bytes, config.model, config.resolve_auto().dtype)
        return estimated_lengths(at_each, examples, config.samples, cache)
    placements = placements_of(builder, config.n_docs, config.positions, config.shard)
    everywhere = [*placements, *baseline_placements(builder, config.baselines, config.n_docs, config.shard)]
    asked = product(examples, everywhere, range(config.samples))
    mitigated = mitigated_by(config, builder)

    def prompts(question: Question) -> Sequence[Prompt]:
        if mitigated is None:
            return [builder.prompt(question.example, question.placement)]
        return mitigated.build_variants(question).prompts

    every = chain.from_iterable(prompts(Question(*each)) for each in asked)
    tokens = (len(prompt.token_ids) if backend.local else estimated_tokens(prompt.text) for prompt in every)
    return estimate(tokens, backend.local, builder.max_new_tokens + builder.max_thinking_tokens)


def _require_same_endpoint(config: SweepConfig) -> None:
    """Asks an endpoint whose sweep is complete, and would be reused, whether it is still what it was."""
    if BACKENDS[config.backend].local:
        return
    if not is_complete("sweep", config):
        return
    served = read_sweep(fetch_location(config.out)).served
    if not served or not (served.models or served.fingerprints):
        return
    briefly = config.model_copy(update={"retries": 1, "concurrency": 1})
    generator = open_generator(briefly, BACKENDS[config.backend].builder(config))
    assert isinstance(generator, EndpointGenerator)
    generator.served = served
    try:
        generator.require_same()
    except EndpointChanged as changed:
        raise PosgapError(
            f"{changed.line}: the sweep in {config.out} is of what it was; --identity {changed.allowed_by} takes that, "
            "--force sweeps again"
        ) from None
    except PosgapError as error:
        log.warning("%s; so nobody can tell whether it is still the model of the sweep in %s", error, config.out)
