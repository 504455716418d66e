"""Searches RoPE factors, one per layer: all of `scale search`, and the search for LPES' settings in `mitigate`.

Right answers are forced upon the model, in one forward pass, if that predicts what it would generate; else it generates
its answers. `FactorSearch.find_factors` searches; `choose_as_generated` and `judge_aside` come after it.
"""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import digest_of
from posgap.generation.generator import Generator, LayerGenerator, Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.probe import target_of
from posgap.mitigations.curves import Candidate, Curve
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import load_config
from posgap.models.rope_lengths import RopeLengths
from posgap.scaling.fitness import Evaluator, ForcedEvaluator, GenerationEvaluator, fitness, position_weights
from posgap.scaling.forcing import answer_freely, pick_few
from posgap.scaling.genetic import Genetic, search_genetically
from posgap.scaling.questions import SearchQuestion, make_questions, one_right_response, unlike_generation
from posgap.scaling.scaling_file import MAX_UNLIKE, ForcingCheck, GeneratedFitness
from posgap.scaling.scores import Scores
from posgap.scaling.search_settings import SearchSettings
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder

log = logging.getLogger(__name__)
STATES = ("search.json", "generated.json")  # scores of the search, and of a second one by generation


@dataclass(frozen=True)
class Backend:
    """The generator of answers: its name, and the function that opens it; None if the model in memory generates
    them."""

    name: str
    open: Callable[[], Generator] | None


@dataclass
class FoundFactors:
    """The result of a search: the best `factors`, and `finalists`, its best candidates with their control points, the
    best first; none if time was over before one was scored. `scores` has the accuracy of each."""

    curve: Curve
    scores: Scores
    factors: Candidate
    finalists: Mapping[Candidate, np.ndarray]
    history: list[dict[str, float]]
    forward_passes: int
    forced: ForcingCheck | None = None
    generated: GeneratedFitness | None = None


class FactorSearch:
    """Searches the RoPE factors, one per layer, with which a model answers examples best.

    `aside` are held-out examples, which judge the factors. The model is loaded at its first use, and `choose_backend`
    is called once answers are to be generated.
    """

    def __init__(
        self,
        settings: SearchSettings,
        builder: PromptBuilder,
        examples: Sequence[AnyExample],
        placements: Sequence[Placement],
        load: Callable[[], PreTrainedModel],
        choose_backend: Callable[[], Backend],
        aside: Sequence[AnyExample] = (),
    ):
        self.settings = settings
        self.builder = builder
        self.load = load
        self.choose_backend = choose_backend
        self.backend = settings.backend
        self.metric = settings.metric or builder.task.metric
        self.score = partial(builder.task.score, metric=self.metric)
        weights = position_weights([placement.positions[0] for placement in placements], settings.n_docs)
        self.fitness = partial(fitness, weights=weights, objective=settings.objective)
        given = [*examples, *aside]
        # Whether right answers are forced. Turns False, here or in `find_factors`, if that misjudges the model.
        self.forces = one_right_response(builder, given, self.metric)
        questions = make_questions(builder, given, placements, self.metric, self.forces)
        model = load_config(settings.model)
        self.ones: Candidate = (1.0,) * model.get_text_config().num_hidden_layers  # changes nothing
        rope = RopeLengths.from_config(model)
        reason = unlike_generation(rope, questions) if self.forces else ""
        if reason:
            log.info("%s: %s; answers are generated", settings.model, reason)
            self.forces = False
            questions = make_questions(builder, given, placements, self.metric, self.forces)
        self.questions = questions[: len(examples)]
        self.others = questions[len(examples) :]

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model in this process, which is loaded now; `PosgapError` if it cannot be scaled."""
        model = self.load()
        layer_scaling(model)
        return model

    @cached_property
    def generator(self) -> LayerGenerator:
        """The generator of answers: the model that forces others, or, if none are forced, the chosen backend."""
        if self.forces:
            log.info("teacher forcing, several candidates in a batch")
        opening = None if self.forces else self._chosen.open
        if opening is None:
            return TransformersGenerator(self.model, self.builder.tokenizer, self.settings.batch_tokens, pack=True)
        opened = opening()
        if not isinstance(opened, LayerGenerator):
            raise BadOption(f"backend {self.backend} cannot change factors; take transformers or vllm")
        return opened

    @cached_property
    def _chosen(self) -> Backend:
        chosen = self.choose_backend()
        self.backend = chosen.name
        return chosen

    @property
    def loses_ties(self) -> bool:
        """Whether forcing loses right answers to ties, as it does in 16 bits: then the best candidates must be judged
        by what they generate."""
        return self.forces and self.model.dtype.itemsize == 2

    def find_factors(
        self,
        folder: Path,
        identity: str,
        on_generation: Callable[[dict[str, float]], None] = lambda row: None,
        is_over: Callable[[], bool] | None = None,
    ) -> FoundFactors:
        """Searches. Turns `forces` off if forcing misjudges the model.

        Scores are kept in `folder` under that identity, so an interrupted search resumes. If `is_over` returns True
        before a candidate, the search ends. Raises `PosgapError` if the model answers no question rightly, neither with
        the factors found nor without.
        """
        self._look_at_answers()
        found = self._search(folder / STATES[0], identity, on_generation, is_over)
        if self.forces and found.finalists:
            found.forced = self._compare_with_generation(list(found.finalists))
            # In 16 bits ties alone can make the two differ: then `choose_as_generated` follows, and no new search.
            if found.forced.unlike and not self.loses_ties:
                log.info("that is more than %g %%: the search starts again, by generation", 100 * MAX_UNLIKE)
                first = found
                self.forces = False
                found = self._search(folder / STATES[1], identity, on_generation, is_over)
                found.forced = first.forced
                found.forward_passes += first.forward_passes
        self._require_answers(found)
        return found

    def choose_as_generated(self, found: FoundFactors) -> None:
        """Takes of the finalists the one that generates the best answers."""
        right = self._generation_evaluator(self.questions).correct([self.ones, *found.finalists])
        unscaled, *accuracies = 100 * right.mean(axis=1)
        reached = [self.fitness(accuracy) for accuracy in accuracies]
        first = int(np.argmax(reached))
        found.factors = list(found.finalists)[first]
        found.generated = GeneratedFitness(
            fitness=reached[first],
            accuracy=accuracies[first].tolist(),
            unscaled_fitness=self.fitness(unscaled),
            unscaled_accuracy=unscaled.tolist(),
        )
        log.info(
            "by generation, which 16-bit ties do not lower: fitness %.2f, unscaled %.2f",
            reached[first], self.fitness(unscaled),
        )  # fmt: skip

    def judge_aside(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Returns which questions of the examples kept aside each candidate answers rightly: `[C, E, P]`."""
        evaluator = self._forced_evaluator if self.forces and not self.loses_ties else self._generation_evaluator
        return evaluator(self.others).correct(candidates)

    def _forced_evaluator(self, questions: Sequence[Sequence[SearchQuestion]]) -> Evaluator:
        return ForcedEvaluator(self.model, questions, self.builder.tokenizer.pad_token_id, self.settings.batch_tokens)

    def _generation_evaluator(self, questions: Sequence[Sequence[SearchQuestion]]) -> Evaluator:
        return GenerationEvaluator(self.generator, questions, self.score, Sampling.for_builder(self.builder))

    def _look_at_answers(self) -> None:
        """Makes the model answer a few questions freely, and gives forcing up if that misses its answers."""
        said = answer_freely(
            self.generator, self.questions, self.score, Sampling.for_builder(self.builder), target_of(self.builder)
        )
        if self.forces and said.hindrance:
            log.info(
                "the model %s; the search generates its responses, because teacher forcing would miss such answers",
                said.hindrance,
            )
            self.forces = False
            if self._chosen.open:
                del self.generator, self.model  # what answers from now on needs the memory
                gc.collect()
                torch.cuda.empty_cache()

    def _search(
        self,
        state: Path,
        identity: str,
        on_generation: Callable[[dict[str, float]], None],
        is_over: Callable[[], bool] | None,
    ) -> FoundFactors:
        settings = self.settings
        n_layers = len(self.ones)
        evaluator = (self._forced_evaluator if self.forces else self._generation_evaluator)(self.questions)
        scores = Scores(evaluator, self.fitness, state, digest_of([identity, self.forces, self.backend]))
        scores([self.ones])
        if not scores.accuracy(self.ones).any():
            log.warning("%s; the search fails unless some factors change that", self._silence)
        scores.is_over = is_over
        curve = Curve(settings.curve, dict(settings.curve_parameters), settings.low, settings.high)
        strategy = Genetic(curve, n_layers, settings.population, settings.seed)
        best = search_genetically(strategy, curve, n_layers, scores, settings.generations, on_generation)
        return FoundFactors(curve, scores, best.factors, best.finalists, best.history, evaluator.forward_passes)

    def _compare_with_generation(self, finalists: Sequence[Candidate]) -> ForcingCheck:
        """Compares forcing's scores of the finalists with their generated answers, on a few questions."""
        some = pick_few(self.questions)
        compared = ForcingCheck.from_scores(
            self._forced_evaluator(some).correct(finalists), self._generation_evaluator(some).correct(finalists)
        )
        log.info("%s", compared.summary)
        return compared

    def _require_answers(self, found: FoundFactors) -> None:
        candidates = [self.ones, found.factors] if found.finalists else [self.ones]
        if not any(found.scores.accuracy(candidate).any() for candidate in candidates):
            raise PosgapError(f"{self._silence}, scaled or unscaled")

    @property
    def _silence(self) -> str:
        return f"{self.settings.model}: answers none of the questions correctly (train it)"
