"""sweep: accuracy with the gold documents at every position."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from posgap.data.reading import read_examples
from posgap.distillation.methods import label_of
from posgap.foundation.errors import PosgapError, Rejection
from posgap.foundation.files import read_model, write_jsonl
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import Location, page_address
from posgap.foundation.printing import RESULT, join_lines, show
from posgap.gating.evidence import GUARDS
from posgap.gating.guards import describe
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.batches import AnswerFiles
from posgap.generation.generator import Generator
from posgap.generation.served import EndpointChanged, EndpointGenerator
from posgap.measurement.evidence import Evidence
from posgap.measurement.filling import at_lengths
from posgap.measurement.lengths import LENGTHS_PAGE, folder_at, is_of_lengths, length_map, read_lengths
from posgap.measurement.page_examples import pack_sweep
from posgap.measurement.predictions import PREDICTIONS_FILE
from posgap.measurement.prompt_mitigator import Question
from posgap.measurement.resumption import OpensGenerator
from posgap.measurement.spending import estimate, estimated_tokens
from posgap.measurement.sweep_folder import write_evidence, write_sweep
from posgap.measurement.sweep_run import SweepRun, open_once
from posgap.measurement.sweeps import SWEEP_FILE, SWEEP_PAGE, Sweep, read_sweep
from posgap.measurement.text_curve import sweep_text
from posgap.models.factors import config_factors
from posgap.options.sweep import SweepConfig, SweepVerbConfig
from posgap.scaling.scaling_file import refuse_searched_on
from posgap.storage.cache import fetch_location
from posgap.storage.inputs import source
from posgap.storage.lineage import training_examples
from posgap.tasks.examples import AnyExample
from posgap.tasks.positions import is_first_part
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_lengths, log_sweep
from posgap.verbs.batches import read_answers, require_asked, write_requests
from posgap.verbs.first_look import RELIABLE, choose_first_look, reliable_commands
from posgap.verbs.frame import is_complete, run_stage
from posgap.verbs.guards import askable_guards, measure_texts, write_guard
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)


def sweep(config: SweepVerbConfig) -> Location:
    """Sweeps a model, and prints the curve and the page's address.

    Without examples it takes a first look: some are made, as many as two minutes allow, and the commands for a reliable
    measurement are printed too. With `requests` it writes those and ends; with `answers` it reads these in place of
    asking.
    """
    if config.requests:
        write_requests(config)
        return config.out
    if config.examples is not None:
        answers = read_answers(config) if config.answers else None
        place = sweep_model(config.with_examples(config.examples), answers)
        if not config.estimate:
            show_sweep(place)
        return place
    looked, generator = choose_first_look(config)
    place = sweep_model(looked, generator)
    commands = [f"  {command}" for command in reliable_commands(looked, Path(place))]
    show_sweep(place, f"A first look. For figures to rely on, with {RELIABLE} examples at every position:", *commands)
    return place


def show_sweep(place: Location, *more: str) -> None:
    """Prints the curve and the figures of a sweep, or the result of several lengths; the page's address; and more."""
    folder = fetch_location(place)
    if is_of_lengths(folder):
        lengths = read_lengths(folder)
        words = join_lines(lengths.summary_text())
        result = lengths.model_dump(mode="json")
        page = LENGTHS_PAGE
    else:
        swept = read_sweep(folder)
        words = sweep_text(swept)
        result = swept.model_dump(mode="json", exclude_defaults=True)
        page = SWEEP_PAGE
    show("\n".join([words, f"page: {page_address(place, page)}", *(["", *more] if more else [])]), result)


def sweep_model(config: SweepConfig, generator: Generator | None = None, earlier: Path | None = None) -> Location:
    """Sweeps a model, as `_write_sweeps` says, or only estimates the cost if the config says so. An open `generator` of
    the model replaces the config's own. Answers of an `earlier` sweep of fewer examples are reused.

    A complete sweep of an endpoint is reused if the endpoint says that its model is unchanged, or says nothing. A sweep
    with more unanswered prompts than is now allowed is kept, and refused.
    """
    if config.estimate:
        words = _estimate(config)
        show(words, {"estimate": words.splitlines()})
        return config.out
    if not config.force and generator is None:
        _require_same_endpoint(config)
    place = run_stage("sweep", config, lambda: partial(_write_sweeps, generator=generator, earlier=earlier))
    for written in _read_written(place):
        if written.outcomes and written.outcomes.worst_share > config.max_unanswered:
            unanswered = written.outcomes.phrase(written.placements)
            raise PosgapError(
                f"{place}: {unanswered}, and {config.max_unanswered:g} % is allowed; "
                "give --max-unanswered as it was when this was swept"
            )
    return place


def _read_written(place: Location) -> Iterator[Sweep]:
    """Yields the sweep, or the sweeps at several lengths, in a folder."""
    folder = source(place)
    for name in folder.sizes():
        file = folder.local_file(name) if Path(name).name == SWEEP_FILE else None
        if file:
            yield read_model(Sweep, file, SWEEP_FILE)


@resumable()
def _write_sweeps(
    config: SweepConfig, out: Path, run: Run, generator: Generator | None, earlier: Path | None = None
) -> None:
    """Writes `sweep.json`, `predictions.jsonl`, `sweep.png`, `sweep.html` and `model_card.md`; of several lengths each
    into a folder of its own, and of all together `lengths.json`, `lengths.png` and `lengths.html`.

    Responses are kept beside `out` as they come; an interrupted sweep resumes.
    """
    examples = read_examples(config.examples)
    refuse_searched_on(Path(config.model), examples[: config.limit or None])
    builder = config.builder()
    evidence = list[Evidence]()
    if is_first_part(config.shard):
        measure_texts(config, out / GUARDS)  # before a backend takes all of a GPU's memory
    opens = (lambda: generator) if generator else open_once(config.access(), builder)
    alone = config.model_copy(update={"guards": {}})  # a sweep's figures do not depend on guards
    lengths = at_lengths(config.lengths, config.depths, config.seed, builder, examples)
    for at_length in lengths:
        settings, place = alone, out
        if at_length.fill and len(lengths) > 1:
            settings = alone.model_copy(update={"lengths": [at_length.fill.length]})
            place = folder_at(out, at_length.fill.tokens)
            place.mkdir()
        sweep_run = SweepRun.plan(settings.sweep_settings(), at_length, examples, config.digest("model"))
        if earlier and len(lengths) == 1:
            log.info("%d answers of an earlier look are kept", sweep_run.take_over(Evidence(earlier)))
        if isinstance(generator, AnswerFiles):
            require_asked(generator, sweep_run)
            sweep_run.run(opens, "go on", answers_are_there=True)
        else:
            sweep_run.run(opens)
        evidence.append(Evidence(place, _write_figures(sweep_run, place, out, run)))
    if len(lengths) > 1:
        _write_lengths(evidence, lengths[0], config.most_gap, out, run)
    else:
        log_sweep(evidence[0].sweep, run)
    if is_first_part(config.shard):
        _sweep_guards(config, examples, opens, earlier, out, run)
    run.artifact(out)


def _sweep_guards(
    config: SweepConfig,
    examples: Sequence[AnyExample],
    opens: OpensGenerator | None,
    earlier: Path | None,
    out: Path,
    run: Run,
) -> None:
    """Sweeps the requested guards on examples, each into its own folder."""
    factors = _read_factors(config.model) if config.guards and BACKENDS[config.backend].local else None
    for name, guard, of_guard, builder, others in askable_guards(config, examples):
        sweep_run = SweepRun.plan(of_guard.sweep_settings(), builder, others, config.digest("model"))
        before = earlier / GUARDS / name if earlier else None
        if before and before.is_dir():
            sweep_run.take_over(Evidence(before))
        sweep_run.run(opens)
        if sweep_run.shortfall:
            raise Rejection(f"guard {name}: {sweep_run.shortfall}")
        place = out / GUARDS / name
        place.mkdir(parents=True)
        figures = sweep_run.summarize(config.label or label_of(config.model, ""), factors)
        write_evidence(figures, sweep_run.predictions, training_examples(config.model), place)
        write_guard(place, guard)
        run.metrics({f"guard_{name}_mean": figures.mean, f"guard_{name}_gap": figures.gap})
        shown = ", ".join(f"{accuracy:.1f}" for accuracy in figures.accuracy)
        log.log(RESULT, "guard %s: %s: %s at %s", name, describe(figures), shown, ", ".join(figures.placement_names))


def _write_figures(sweep_run: SweepRun, place: Path, out: Path, run: Run) -> Sweep:
    """Writes the folder `place` of a sweep, and returns its figures. If too little is answered, `out` keeps the
    answers."""
    settings = sweep_run.settings
    model = settings.model
    predictions = sweep_run.predictions
    label = settings.label or label_of(model, settings.mitigation)
    step = sweep_run.builder.fill.tokens if sweep_run.builder.fill else 0
    if sweep_run.spent:
        run.metrics(sweep_run.spent.metrics(), step=step)
        log.info("%s: %s", label, sweep_run.spent.totals_text())
    if sweep_run.shortfall:
        run.metrics(sweep_run.outcomes.metrics, step=step)
        write_jsonl(out / PREDICTIONS_FILE, predictions)
        raise Rejection(
            f"{sweep_run.shortfall}. See {settings.out}.rejected/{PREDICTIONS_FILE}. The answers are kept: "
            "the same command asks only the failed prompts again (for a batch, --requests FOLDER writes "
            "them); a higher --max-unanswered accepts these answers"
        )
    figures = sweep_run.summarize(label, _read_factors(model) if settings.is_local else None)
    explored = pack_sweep(figures, predictions, sweep_run.examples)
    write_sweep(figures, predictions, training_examples(model), place, explored)
    return figures


def _write_lengths(
    evidence: Sequence[Evidence], builder: TextPromptBuilder, most_gap: float, out: Path, run: Run
) -> None:
    """Writes the map of sweeps at several lengths."""
    from posgap.measurement.length_pages import write_map  # matplotlib, which a reused sweep need not load

    assert isinstance(builder, PromptBuilder)
    lengths = length_map(evidence, builder.context, most_gap)
    write_map(lengths, [each.sweep for each in evidence], out)
    log_lengths(lengths, run)


def _read_factors(model: str) -> Sequence | None:
    """Returns the RoPE factors that the config of a model on this machine names."""
    from posgap.models.loading import load_config

    return config_factors(load_config(model))


@with_local_paths
def _estimate(config: SweepConfig) -> str:
    """Returns what the whole sweep takes, in words: a line for each of several lengths, and one for each guard on
    examples. Nothing is sent, and no model is loaded."""
    examples = read_examples(config.examples)
    lines = []
    for builder in at_lengths(config.lengths, config.depths, config.seed, config.builder(), examples):
        at = f"{builder.fill.tokens:,} tokens: " if builder.fill else ""
        lines.append(at + _estimate_one(config, builder, examples))
    for guard in askable_guards(config, examples):
        lines.append(f"guard {guard.name}: {_estimate_one(guard.config, guard.builder, guard.examples)}")
    return "\n".join(lines)


def _estimate_one(config: SweepConfig, builder: TextPromptBuilder, examples: Sequence[AnyExample]) -> str:
    """Returns what a sweep at one length takes, in words."""
    backend = BACKENDS[config.backend]
    sweep_run = SweepRun.plan(config.sweep_settings(), builder, examples)
    tokens = list[int]()
    for example, placement in product(sweep_run.examples, sweep_run.all_placements):
        if sweep_run.mitigator:
            prompts = sweep_run.mitigator.build_variants(Question(example, placement)).prompts
        else:
            prompts = [builder.prompt(example, placement)]
        tokens += [len(prompt.token_ids) if backend.local else estimated_tokens(prompt.text) for prompt in prompts]
    return estimate(tokens * config.samples, backend.local, builder.max_new_tokens + builder.max_thinking_tokens)


def _require_same_endpoint(config: SweepConfig) -> None:
    """Asks the endpoint of a complete sweep whether its model is still the same, before the sweep is reused."""
    if BACKENDS[config.backend].local:
        return
    if not is_complete("sweep", config):
        return
    served = read_sweep(fetch_location(config.out)).served
    if not served or not (served.models or served.fingerprints):
        return
    generator = open_generator(config.access(), config.builder())
    assert isinstance(generator, EndpointGenerator)
    generator.served = served
    try:
        generator.require_same()
    except EndpointChanged as changed:
        raise PosgapError(
            f"{changed.line}: the sweep in {config.out} is of the earlier one; --identity "
            f"{changed.allowed_by} accepts the change, --force sweeps again"
        ) from None
    except PosgapError as error:
        log.warning("%s; unknown whether it is still the model of the sweep in %s", error, config.out)
