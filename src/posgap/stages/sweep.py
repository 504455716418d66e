"""sweep: accuracy with the gold documents at every position."""

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from posgap.choices import BACKENDS
from posgap.config import SweepConfig
from posgap.errors import PosgapError
from posgap.files import read_model, write_jsonl
from posgap.generation.backends import open_generator
from posgap.generation.served import AsServed, Changed
from posgap.interruption import goes_on
from posgap.locations import Location, as_location, with_uris
from posgap.measurement.explored import explored_sweep
from posgap.measurement.spending import estimate, estimated_tokens, read_price
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweeping import answered, figures
from posgap.measurement.sweeps import PREDICTIONS_FILE, SWEEP_FILE, Sweep, no_figures, read_sweep
from posgap.models.factors import config_factors
from posgap.scaling.scaling_file import refuse_searched
from posgap.stage import identity_of, lacking, record_of, stage
from posgap.storage.cache import fetch
from posgap.storage.inputs import on_this_machine, source, sources
from posgap.storage.lineage import method_of, training_examples
from posgap.tasks.examples import read_examples
from posgap.tasks.placements import shard_of, swept_placements
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_sweep

log = logging.getLogger(__name__)


def sweep(config: SweepConfig) -> Location:
    """Sweeps a model, as `_sweep` says, or only estimates what that takes, where the config asks for it.

    A complete sweep of an endpoint is reused where that says that it is still what it was, or says nothing. One that
    was made when more could go unanswered is left as it is, and refused.
    """
    if config.estimate:
        print(_estimated(config))
        return config.out
    if not config.force:
        _require_same_endpoint(config)
    swept = _sweep(config)
    if file := source(swept).read(SWEEP_FILE):
        recorded = read_model(Sweep, file, SWEEP_FILE)
        if recorded.outcomes and recorded.outcomes.worst_share > config.max_unanswered:
            unanswered = recorded.outcomes.phrase(recorded.placements)
            raise PosgapError(
                f"{swept}: {unanswered}, and {config.max_unanswered:g} % is allowed; "
                "give --max-unanswered as it was when this was swept"
            )
    return swept


@stage
@goes_on()
def _sweep(config: SweepConfig, out: Path, run: Run) -> None:
    """Writes `sweep.json`, `predictions.jsonl`, `sweep.png`, `sweep.html` and `model_card.md`.

    Answers are kept beside `out` as they come; a sweep that was interrupted goes on from there.
    """
    examples = read_examples(config.examples)[: config.limit or None]
    refuse_searched(Path(config.model), examples)
    build, label = BACKENDS[config.backend].builder(config), config.label or method_of(config.model) or "model"
    placements = shard_of(swept_placements(config.n_docs, build.task.n_gold, config.positions), config.shard)
    digests = {"model_digest": config.digest("model"), "prompt_digest": build.digest()}
    price = read_price(fetch(as_location(config.prices)), config.model) if config.prices else None
    asked = answered(config, examples, build, placements, digests, price)
    if asked.spent:
        run.metrics(asked.spent.metrics())
        log.info("%s: %s", label, asked.spent.sentence())
    if asked.outcomes.worst_share > config.max_unanswered:
        run.metrics(asked.outcomes.figures)
        write_jsonl(out / PREDICTIONS_FILE, asked.predictions)
        where, often = [placement.positions for placement in placements], asked.most_frequent_reason
        model = with_uris(config.model)
        raise no_figures(model, asked.outcomes, where, config.max_unanswered, often, "answers", config.out)
    result = figures(config, examples, build, placements, digests, asked, label, _factors(config))
    explored = explored_sweep(result, asked.predictions, examples, build)
    write_sweep(result, asked.predictions, training_examples(config.model), out, explored)
    log_sweep(result, run)
    run.artifact(out)


def _factors(config: SweepConfig) -> Sequence | None:
    """The RoPE factors that the model's config names; an endpoint does not tell its own."""
    if not BACKENDS[config.backend].local:
        return None
    from posgap.models.loading import load_config

    return config_factors(load_config(config.model))


def _estimated(config: SweepConfig) -> str:
    """What the whole sweep takes, in words. Nothing is sent, and no model is loaded."""
    config = on_this_machine(config, sources(config))
    price = read_price(fetch(as_location(config.prices)), config.model) if config.prices else None
    examples = read_examples(config.examples)[: config.limit or None]
    backend = BACKENDS[config.backend]
    build = backend.builder(config)
    placements = shard_of(swept_placements(config.n_docs, build.task.n_gold, config.positions), config.shard)
    asked = product(examples, placements, range(config.samples))
    prompts = (build.prompt(example, placement) for example, placement, _ in asked)
    tokens = (len(prompt.token_ids) if backend.local else estimated_tokens(prompt.text) for prompt in prompts)
    return estimate(tokens, backend.local, build.max_new_tokens + build.max_thinking_tokens, price)


def _require_same_endpoint(config: SweepConfig) -> None:
    """Asks an endpoint whose sweep is complete, and would be reused, whether it is still what it was."""
    if BACKENDS[config.backend].local:
        return
    inputs = {field: record_of(source) for field, source in sources(config).items()}
    if lacking(config.out, identity_of("sweep", config, inputs)):
        return
    served = read_sweep(fetch(config.out)).served
    if not served or not (served.models or served.fingerprints):
        return
    briefly = config.model_copy(update={"retries": 1, "concurrency": 1})
    generator = open_generator(briefly, BACKENDS[config.backend].builder(config))
    assert isinstance(generator, AsServed)
    generator.served = served
    try:
        generator.require_same()
    except Changed as changed:
        raise PosgapError(
            f"{changed.line}: the sweep in {config.out} is of what it was; --identity {changed.allowed_by} takes that, "
            "--force sweeps again"
        ) from None
    except PosgapError as error:
        log.warning("%s; so nobody can tell whether it is still the model of the sweep in %s", error, config.out)
