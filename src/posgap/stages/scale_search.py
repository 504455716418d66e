"""scale_search: searches the RoPE factors, one per layer, under which the model answers best."""

import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest, digest_of, remove, work_folder
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.generator import Sampling
from posgap.generation.setup import builder_of
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.probe import target_of
from posgap.mitigations.curve_kinds import CURVES
from posgap.mitigations.curves import Candidate, Curve
from posgap.mitigations.factor_search import Genetic, search
from posgap.mitigations.in_force import load_model
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import commit_on_hub, load_config
from posgap.models.rope_lengths import RopeLengths
from posgap.scaling.config import ScaleSearchConfig
from posgap.scaling.fitness import Evaluator, Generated, TeacherForced, fitness, position_weights
from posgap.scaling.forcing import few, tried
from posgap.scaling.holdout import MIN_EXAMPLES, gain, kept_aside
from posgap.scaling.plots import write_plot
from posgap.scaling.questions import Question, ask, one_right_response, unlike_generation
from posgap.scaling.scaling_file import MAX_UNLIKE, Forced, Holdout, Scaling, Spoken, write_scaling
from posgap.scaling.scores import Scores
from posgap.stages.frame import stage
from posgap.tasks.content import among, contents
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import swept_placements
from posgap.tasks.reading import examples_file, read_examples
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
STATES = ("search.json", "generated.json")  # scores of the search, and of a second one by generation


@stage
@resumable()
def scale_search(config: ScaleSearchConfig, out: Path, run: Run) -> None:
    """Writes `scaling.json` and `scaling.png`.

    Scores are kept beside `out` until the search ends, so that an interrupted search goes on where it was.
    """
    examples, aside = kept_aside(given := searched_examples(config), config.holdout)
    if config.holdout and not aside:
        log.info(
            "%d examples are too few: %g of them kept aside must be %d or more; all are searched on, and what the "
            "factors gain there is too high",
            len(given), config.holdout, MIN_EXAMPLES,
        )  # fmt: skip
    build = builder_of(config)
    if build.task.n_gold != 1:
        raise PosgapError(f"task {config.task}: has two gold documents; search on a task with one gold document")
    placements = swept_placements(config.n_docs, 1, config.positions)
    positions = [placement.positions[0] for placement in placements]
    metric = config.metric or build.task.metric
    teacher_forced = config.evaluation == "teacher_forced" or (
        config.evaluation == "auto" and one_right_response(build, given, metric)
    )
    questions, others = (ask(build, part, placements, metric, teacher_forced) for part in (examples, aside))
    rope = RopeLengths.of(load_config(config.model))
    if teacher_forced and (reason := unlike_generation(rope, [*questions, *others])):
        if config.evaluation == "teacher_forced":
            raise PosgapError(f"{config.model}: {reason}; take `evaluation` generation")
        log.info("%s: %s; answers are generated", config.model, reason)
        teacher_forced = False
        questions, others = (ask(build, part, placements, metric, False) for part in (examples, aside))
    model, score = load_model(config.model, config.dtype), partial(build.task.score, metric=metric)

    def forced(questions: list[list[Question]]) -> Evaluator:
        return TeacherForced(model, questions, build.tokenizer.pad_token_id, config.batch_tokens)

    def generated(questions: list[list[Question]]) -> Evaluator:
        return Generated(model, build.tokenizer, questions, score, Sampling.of(build), config.batch_tokens)

    ones = (1.0,) * layer_scaling(model).n_layers
    by_forcing = config.evaluation == "teacher_forced"
    if by_forcing or config.evaluation == "auto":
        generator = TransformersGenerator(model, build.tokenizer, config.batch_tokens)
        said = tried(generator, questions, score, Sampling.of(build), target_of(build))
        if teacher_forced and (why := said.hindrance):
            if by_forcing:
                log.warning("the model %s: teacher forcing misses such answers; take `evaluation` generation", why)
            else:
                log.info("the model %s: its responses are generated, since teacher forcing misses such answers", why)
                teacher_forced = False
    weights = position_weights(config.weights, positions, config.n_docs)
    searched_on = {
        "task": config.task,
        "n_docs": config.n_docs,
        "metric": metric,
        "positions": positions,
        "model_digest": config.digest("model") or commit_on_hub(config.model),
        "examples_digest": digest(examples_file(config.examples)),
        "example_contents": contents(examples),
        "prompt_digest": build.digest(),
    }
    folder = work_folder(config.out)
    if config.force:
        for name in STATES:
            remove(folder / name)

    def searched(teacher_forced: bool, state: str) -> tuple[Scores, dict, np.ndarray, list[Candidate]]:
        scores = Scores(
            (forced if teacher_forced else generated)(questions),
            partial(fitness, weights=weights, objective=config.objective),
            folder / state,
            digest_of([searched_on, config.dtype, asdict(Sampling.of(build)), teacher_forced]),
        )
        scores([ones])
        if not scores.accuracy(ones).any():
            log.warning("%s; the search fails unless some factors change that", _silence(config.model, teacher_forced))
        ties = teacher_forced and loses_ties
        return scores, *_search(config, scores, len(ones), run, generated(questions) if ties else None)

    loses_ties = model.dtype.itemsize == 2
    scores, chosen, accuracy, finalists = searched(teacher_forced, STATES[0])
    forward_passes = scores.evaluator.forward_passes
    checked = None
    if teacher_forced:
        some = few(questions)
        checked = Forced.of(forced(some).correct(finalists), generated(some).correct(finalists))
        log.info("%s", checked.told)
        if checked.unlike and not loses_ties:  # in 16 bits the finalists were chosen by what they generate
            if by_forcing:
                log.warning("teacher forcing misjudges the best candidates; take `evaluation` generation")
            else:
                log.info("that is more than %g %%: the search begins again, by generation", 100 * MAX_UNLIKE)
                teacher_forced = False
                scores, chosen, accuracy, _ = searched(False, STATES[1])
                forward_passes += scores.evaluator.forward_passes
    (unscaled,), unscaled_accuracy = scores([ones]), scores.accuracy(ones)
    judge = (forced if teacher_forced and not loses_ties else generated)(others) if others else None
    _refuse_silence(config.model, np.stack([accuracy, unscaled_accuracy]), teacher_forced)
    spoken = chosen.get("generated")
    best, base = (spoken.fitness, spoken.unscaled_fitness) if spoken else (chosen["fitness"], unscaled)
    chosen["search_gain"] = best - base
    if judge:
        before, after = judge.correct([ones, tuple(chosen["factors"])])
        chosen["gain"], chosen["gain_ci95"] = gain(after, before, scores.fitness, config.seed)
        chosen["holdout"] = Holdout(
            examples=len(aside),
            contents=contents(aside),
            accuracy=(100 * after.mean(axis=0)).tolist(),
            unscaled_accuracy=(100 * before.mean(axis=0)).tolist(),
        )
    scaling = Scaling(
        model=with_uris(config.model),
        objective=config.objective,
        weights=config.weights,
        accuracy=accuracy.tolist(),
        unscaled_fitness=unscaled,
        unscaled_accuracy=unscaled_accuracy.tolist(),
        forward_passes=forward_passes,
        forced=checked,
        settings=config.chosen(),
        **searched_on,
        **chosen,
    )
    write_scaling(scaling, out)
    write_plot(scaling, out / "scaling.png")
    told = ("fitness", "unscaled_fitness", "forward_passes", "search_gain", "gain")
    run.metrics({name: value for name in told if (value := getattr(scaling, name)) is not None})
    run.artifact(out)
    log.log(
        RESULT, "fitness %.2f, unscaled %.2f; factors %s", scaling.fitness, scaling.unscaled_fitness, scaling.factors
    )
    log.log(RESULT, "the factors gain %s", scaling.gained)


def _search(
    config: ScaleSearchConfig, scores: Scores, n_layers: int, run: Run, spoken: Evaluator | None
) -> tuple[dict, np.ndarray, list[Candidate]]:
    """The best candidate of the search as fields of `Scaling`, its accuracy [P], and all finalists; with `spoken`, the
    best of these by the responses that they generate."""

    def record(row: dict[str, float]) -> None:
        run.metrics({name: row[name] for name in row if name != "generation"}, step=int(row["generation"]))

    parameters = CURVES[config.curve].parameters.of(config).model_dump()
    curve = Curve(config.curve, parameters, config.low, config.high)
    strategy = Genetic(curve, n_layers, config.population, config.seed, **config.genetic)
    best = search(strategy, curve, n_layers, scores, config.generations, config.patience, record)
    chosen: dict[str, Any] = {"curve": curve.described(), "history": best.history}
    factors = best.factors
    if spoken:
        finalists = [(1.0,) * n_layers, *best.finalists]
        right = spoken.correct(finalists)
        unscaled, *accuracies = 100 * right.mean(axis=1)
        reached = [scores.fitness(accuracy) for accuracy in accuracies]
        first = int(np.argmax(reached))
        factors = finalists[1 + first]
        chosen["generated"] = Spoken(
            fitness=reached[first],
            accuracy=accuracies[first].tolist(),
            unscaled_fitness=scores.fitness(unscaled),
            unscaled_accuracy=unscaled.tolist(),
        )
        log.info(
            "as generated, which in 16 bits ties do not lower: fitness %.2f, unscaled %.2f",
            reached[first], scores.fitness(unscaled),
        )  # fmt: skip
    accuracy = scores.accuracy(factors)
    chosen |= {"control_points": best.finalists[factors].tolist(), "factors": list(factors)}
    return chosen | {"fitness": scores.fitness(accuracy)}, accuracy, list(best.finalists)


def searched_examples(config: ScaleSearchConfig) -> list[AnyExample]:
    """The examples to search on; raises `PosgapError` if any of them is also an evaluation example (`exclude`)."""
    examples = read_examples(config.examples)[: config.limit or None]
    held_out = contents(read_examples(config.exclude)) if config.exclude else []
    if shared := among(examples, held_out):
        raise PosgapError(
            f"{config.examples}: {len(shared)} examples are evaluation examples too ({shared[0].id}, ...); "
            "search on other examples"
        )
    return examples


def _refuse_silence(model: str, accuracies: np.ndarray, teacher_forced: bool) -> None:
    if not accuracies.any():
        raise PosgapError(f"{_silence(model, teacher_forced)}, scaled or unscaled")


def _silence(model: str, teacher_forced: bool) -> str:
    hint = "its responses may be worded differently: try `evaluation` generation" if teacher_forced else "train it"
    return f"{model}: answers none of the questions correctly ({hint})"
