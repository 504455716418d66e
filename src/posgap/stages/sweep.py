"""sweep: accuracy with the gold documents at every position."""

import logging
from itertools import product
from pathlib import Path

import numpy as np

from posgap.config import SweepConfig
from posgap.files import digest, write_json, write_jsonl
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.cases import mixed_cases
from posgap.measurement.model_card import write_model_card
from posgap.measurement.report import write_report
from posgap.measurement.sweeps import PREDICTIONS_FILE, SWEEP_FILE, Sweep, summarize
from posgap.models import load_model
from posgap.progress import track
from posgap.stage import stage
from posgap.tasks.examples import examples_file, read_examples
from posgap.tasks.placements import swept_placements
from posgap.tasks.setup import order_of, prompt_builder
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def sweep(config: SweepConfig, out: Path, run: Run) -> None:
    """Writes `sweep.json`, `predictions.jsonl`, `sweep.png`, `sweep.html` and `model_card.md`."""
    examples = read_examples(config.examples)[: config.limit or None]
    build = prompt_builder(config.task, config.model, config.max_new_tokens, order_of(config))
    placements = swept_placements(config.n_docs, build.task.n_gold, config.positions)
    asked = list(product(examples, placements))
    prompts = [build(example, placement) for example, placement in asked]
    generator = TransformersGenerator(load_model(config.model, config.dtype), build.tokenizer, config.batch_tokens)
    completions = generator.generate(prompts, Sampling(build.max_new_tokens, seed=config.seed))
    predictions = [
        {
            "id": example.id,
            "placement": list(placement.positions),
            "response": completion.text,
            "correct": build.task.score(completion.text, example, config.metric),
        }
        for (example, placement), completion in zip(asked, track(completions, len(asked), f"sweep of {config.label}"))
    ]
    correct = np.array([p["correct"] for p in predictions], dtype=float).reshape(len(examples), len(placements))
    model = Path(config.model)
    result = Sweep(
        task=config.task,
        model=config.model,
        label=config.label,
        scaling=None,
        metric=config.metric or build.task.metric,
        n_docs=config.n_docs,
        **summarize(correct, [list(p.positions) for p in placements], config.resamples, config.seed),
        examples_digest=digest(examples_file(config.examples)),
        model_digest=digest(model) if model.exists() else "",
        prompt_digest=build.digest(),
        settings={name: getattr(config, name) for name in config.parameters()},
    )
    write_jsonl(out / PREDICTIONS_FILE, predictions)
    # A sweep of single positions has no categories, and does not say so.
    write_json(out / SWEEP_FILE, result.model_dump(mode="json", exclude_defaults=True))
    title = f"{config.label}: position gap {result.gap:.1f} points"
    cases = mixed_cases(examples, predictions, config.n_docs, build)
    write_report([result], out / "sweep.png", out / "sweep.html", title, cases)
    write_model_card(result, out / "model_card.md")
    run.metrics({"gap": result.gap, "gap_ci95_high": result.gap_ci95[1], "mean": result.mean})
    if result.by_category:
        run.metrics({f"accuracy_{name}": figures.accuracy for name, figures in result.by_category.items()})
    else:
        for position, value in zip(result.positions, result.accuracy):
            run.metrics({"accuracy_by_position": value}, step=position)
    run.tags({"posgap.label": config.label})
    run.artifact(out)
    log.info("%s: mean %.1f, gap %.1f (%.1f to %.1f)", config.label, result.mean, result.gap, *result.gap_ci95)
    for name, figures in result.by_category.items():
        log.info("%s, %s: %.1f (%.1f to %.1f)", config.label, name, figures.accuracy, *figures.ci95)
