"""sweep: accuracy with the gold documents at every position."""

import logging
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np

from posgap.choices import BACKENDS
from posgap.config import SweepConfig
from posgap.errors import PosgapError, shortened
from posgap.files import read_model, write_jsonl
from posgap.generation.backends import open_generator
from posgap.generation.generator import Completion, Sampling
from posgap.generation.served import AsServed, Changed, Served
from posgap.interruption import GOES_ON, goes_on
from posgap.locations import Location, as_location, with_uris
from posgap.measurement.asking import Each, answers
from posgap.measurement.cases import mixed_cases
from posgap.measurement.spending import Spent, estimate, estimated_tokens, read_price
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweeps import (
    PREDICTIONS_FILE,
    SWEEP_FILE,
    Asked,
    Prediction,
    Sweep,
    no_figures,
    outcomes_of,
    prediction,
    read_sweep,
    summarize,
)
from posgap.models.factors import config_factors
from posgap.positions import format_positions
from posgap.scaling.scaling_file import refuse_searched
from posgap.stage import identity_of, lacking, record_of, stage
from posgap.storage.cache import fetch
from posgap.storage.inputs import on_this_machine, source, sources
from posgap.storage.lineage import method_of, training_examples
from posgap.tasks.content import contents, examples_digest
from posgap.tasks.examples import AnyExample, read_examples
from posgap.tasks.placements import Placement, shard_of, swept_placements
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_sweep

log = logging.getLogger(__name__)
_FAILURES = 25  # prompts that must have failed before a sweep ends early since too many did; each can take minutes


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
        figures = read_model(Sweep, file, SWEEP_FILE)
        if figures.outcomes and figures.outcomes.worst_share > config.max_unanswered:
            raise PosgapError(
                f"{swept}: {figures.outcomes.phrase(figures.placements)}, and {config.max_unanswered:g} % is allowed; "
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
    sampling, what = Sampling.of(build, config.temperature, config.seed), f"sweep of {config.label or 'the model'}"
    each = _supervision(config, len(examples) * len(placements) * config.samples, len(placements))
    completions, served = answers(config, examples, placements, build, sampling, what, digests, each, config.samples)
    if spent := Spent.of((completion.usage for completion in completions), price):
        run.metrics(spent.metrics())
        log.info("%s: %s", label, spent.sentence())
    asked = product(zip(examples, contents(examples)), placements, range(config.samples))
    predictions: list[Prediction] = [
        prediction(example, content, at, sample, said, build.task.score(said.text, example, config.metric))
        for ((example, content), at, sample), said in zip(asked, completions, strict=True)
    ]
    outcomes = outcomes_of(predictions, [placement.positions for placement in placements])
    if outcomes.worst_share > config.max_unanswered:
        run.metrics(outcomes.figures)
        write_jsonl(out / PREDICTIONS_FILE, predictions)
        reasons = Counter(row["reason"] for row in predictions if "outcome" in row and row.get("reason"))
        often = shortened(reasons.most_common(1)[0][0]) if reasons else ""
        where = [placement.positions for placement in placements]
        model = with_uris(config.model)
        raise no_figures(model, outcomes, where, config.max_unanswered, often, "answers", config.out)
    correct = np.array([p["correct"] for p in predictions], dtype=float)
    correct = correct.reshape(len(examples), len(placements), config.samples).mean(axis=2)
    result = Sweep(
        task=config.task,
        model=with_uris(config.model),
        label=label,
        scaling=_scaling(config),
        metric=config.metric or build.task.metric,
        n_docs=config.n_docs,
        **summarize(correct, [list(p.positions) for p in placements], config.seed),
        outcomes=outcomes,
        examples_digest=examples_digest(examples, config.n_docs, config.shuffle),
        **digests,
        asked=_asked(config, build, served),
        settings=config.settings(),
        served=served,
        spent=spent,
    )
    cases = mixed_cases(examples, predictions, config.n_docs, build)
    write_sweep(result, predictions, training_examples(config.model), out, cases)
    log_sweep(result, run)
    run.artifact(out)


def _scaling(config: SweepConfig) -> dict | None:
    """The RoPE factors that the model's config names; an endpoint does not tell its own."""
    if not BACKENDS[config.backend].local:
        return None
    from posgap.models.loading import load_config

    factors = config_factors(load_config(config.model))
    return {"factors": factors} if factors else None


def _supervision(config: SweepConfig, n_prompts: int, n_placements: int) -> Each:
    """What ends a sweep of so many prompts when too many have failed, and warns, once a placement, that more of its
    prompts are not answered than there may be."""
    unanswered: Counter[Placement] = Counter()
    most, failed = config.max_unanswered / 100 * n_prompts, 0

    def each(example: AnyExample, placement: Placement, completion: Completion) -> None:
        nonlocal failed
        if completion.outcome == "answered":
            return
        failed += completion.outcome == "failed"
        if failed >= _FAILURES and failed > most:
            raise PosgapError(
                f"{with_uris(config.model)}: {failed} of {n_prompts:,} prompts have failed already, the last: "
                f"{completion.reason}; no more than {config.max_unanswered:g} % may go without an answer "
                f"(--max-unanswered). What was answered is kept: when the endpoint works again, {GOES_ON}"
            )
        unanswered[placement] += 1
        if unanswered[placement] - 1 <= most / n_placements < unanswered[placement]:
            log.warning(
                "more than the %g %% of prompts that --max-unanswered allows are not answered with the gold at "
                "%s: there will be no figures (%s: %s)",
                config.max_unanswered, format_positions(placement.positions), completion.outcome, completion.reason,
            )  # fmt: skip

    return each


def _asked(config: SweepConfig, build: TextPromptBuilder, served: Served | None) -> Asked:
    backend = BACKENDS[config.backend]
    body = {} if backend.local else config.recorded()["body"]
    decoding = backend.decoding(config, served)
    if config.temperature:
        decoding = f"temperature {config.temperature:g}" if decoding == "greedy" else decoding
        decoding += f", {config.samples} samples" * (config.samples > 1)
    return Asked.by(build, decoding, body).model_copy(update={"samples": config.samples})


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
