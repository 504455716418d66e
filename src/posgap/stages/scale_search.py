"""scale_search: RoPE factors, one per layer, under which the model answers best."""

import hashlib
import json
import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path

from posgap.config import ScaleSearchConfig
from posgap.errors import PosgapError
from posgap.files import digest, remove, write_json
from posgap.models import load_model
from posgap.scaling.application import layer_scaling
from posgap.scaling.curves import Curve
from posgap.scaling.fitness import Evaluator, Generated, Question, TeacherForced, fitness, position_weights
from posgap.scaling.plots import write_plot
from posgap.scaling.scaling_file import SCALING_FILE, Scaling
from posgap.scaling.scores import Scores
from posgap.scaling.search import search
from posgap.scaling.strategies import CMAES, Genetic, Strategy
from posgap.stage import stage
from posgap.tasks.examples import AnyExample, examples_file, read_examples
from posgap.tasks.placements import single_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.setup import prompt_builder
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def scale_search(config: ScaleSearchConfig, out: Path, run: Run) -> None:
    """Writes `scaling.json` and `scaling.png`.

    What is scored is kept in `<out>.state.json` until the search ends: one that is interrupted goes
    on from there.
    """
    examples = searched_examples(config)
    build = prompt_builder(config.task, config.model, config.max_new_tokens)
    placements = single_placements(config.n_docs, config.positions)
    positions = [placement.positions[0] for placement in placements]
    metric = config.metric or build.task.metric
    teacher_forced = is_teacher_forced(config, build, examples)
    questions = [
        [
            Question(
                build(example, placement),
                build.response_ids(example, placement, metric) if teacher_forced else [],
                example.answers,
            )
            for placement in placements
        ]
        for example in examples
    ]
    model = load_model(config.model, config.dtype)
    n_layers = layer_scaling(model).n_layers
    evaluator: Evaluator = (
        TeacherForced(model, questions, build.tokenizer.pad_token_id, config.batch_tokens)
        if teacher_forced
        else Generated(model, build.tokenizer, questions, metric, build.max_new_tokens, config.batch_tokens)
    )
    folder = Path(config.model)
    known = {
        "model_digest": digest(folder) if folder.exists() else "",
        "examples_digest": digest(examples_file(config.examples)),
        "example_ids": [example.id for example in examples],
        "prompt_digest": build.digest(),
        "metric": metric,
        "n_docs": config.n_docs,
        "positions": positions,
    }
    state = config.out.with_name(f"{config.out.name}.state.json")
    if config.force:
        remove(state)
    weights = position_weights(config.weights, positions, config.n_docs)
    scores = Scores(
        evaluator,
        partial(fitness, weights=weights, objective=config.objective),
        config.halving,
        state,
        _identity(known, config, teacher_forced),
    )
    curve = Curve(config.curve, config.order, config.low, config.high, config.monotone)
    ones = (1.0,) * n_layers
    (unscaled,) = scores([ones])
    found = search(
        _strategy(config, curve, n_layers),
        curve,
        n_layers,
        scores,
        config.generations,
        config.patience,
        lambda row: run.metrics({name: row[name] for name in row if name != "generation"}, step=int(row["generation"])),
    )
    accuracy = scores.accuracy(found.factors)
    if not accuracy.any():
        raise PosgapError(
            f"{config.model}: no candidate answers a single question; "
            + ("its responses may be worded otherwise: search with `evaluation` generation" if teacher_forced else "")
        )
    scaling = Scaling(
        model=config.model,
        **known,
        task=config.task,
        strategy=config.strategy,
        curve=asdict(curve),
        control_points=found.points.tolist(),
        factors=list(found.factors),
        objective=config.objective,
        weights=config.weights,
        fitness=found.fitness,
        accuracy=accuracy.tolist(),
        unscaled_fitness=unscaled.fitness,
        unscaled_accuracy=scores.accuracy(ones).tolist(),
        forward_passes=evaluator.forward_passes,
        history=found.history,
        settings={name: getattr(config, name) for name in config.parameters()},
    )
    write_json(out / SCALING_FILE, scaling.model_dump(mode="json"))
    write_plot(scaling, out / "scaling.png")
    figures = {"fitness": found.fitness, "unscaled_fitness": unscaled.fitness}
    run.metrics(figures | {"forward_passes": evaluator.forward_passes})
    run.artifact(out)
    remove(state)
    log.info("fitness %.2f, unscaled %.2f; factors %s", found.fitness, unscaled.fitness, list(found.factors))


def searched_examples(config: ScaleSearchConfig) -> list[AnyExample]:
    """The examples to search on; `PosgapError` where one of them is also an evaluation example."""
    examples = read_examples(config.examples)[: config.limit or None]
    held_out = {example.id for example in read_examples(config.exclude)} if config.exclude else set()
    if shared := [example.id for example in examples if example.id in held_out]:
        raise PosgapError(
            f"{config.examples}: {len(shared)} examples are evaluation examples too ({shared[0]}, ...); "
            "search on others"
        )
    return examples


def is_teacher_forced(config: ScaleSearchConfig, build: PromptBuilder, examples: list[AnyExample]) -> bool:
    """Whether one forward pass can stand for generation, as the config says or, by `auto`, the examples."""
    if config.evaluation == "auto":
        return bool(build.task.answer) and all(len(example.answers) == 1 for example in examples)
    return config.evaluation == "teacher_forced"


def _strategy(config: ScaleSearchConfig, curve: Curve, n_layers: int) -> Strategy:
    if config.strategy == "cma":
        return CMAES(curve, n_layers, config.population, config.seed)
    return Genetic(
        curve,
        n_layers,
        population=config.population,
        elite=config.elite,
        tournament=config.tournament,
        mutation=config.mutation,
        mutation_rate=config.mutation_rate,
        seed=config.seed,
    )


def _identity(known: dict, config: ScaleSearchConfig, teacher_forced: bool) -> str:
    """Scores of two searches may be exchanged where these agree."""
    parts = [known, config.halving, config.dtype, config.max_new_tokens, teacher_forced]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
