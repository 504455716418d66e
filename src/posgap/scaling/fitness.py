"""How good a candidate is: right answers by position, then one number.

A candidate is one factor per layer. Evaluators answer every question under every candidate asked
for: `correct [C, E, P]`, for C candidates, E examples and P placements.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posgap.generation.batching import batches, reading_order
from posgap.generation.generator import Sampling
from posgap.generation.prefix_cache import PrefixCache, can_reuse_prefixes
from posgap.generation.transformers import TransformersGenerator
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import on_device
from posgap.progress import track
from posgap.scaling.questions import Question
from posgap.tasks.examples import AnyExample
from posgap.tasks.prompts import Prompt

Candidate = tuple[float, ...]
Weights = Literal["middle", "uniform"]
Objective = Literal["mean", "worst", "mean_minus_gap"]


class Evaluator(Protocol):
    """Answers `questions [E][P]`; `forward_passes` counts the rows that went through the model."""

    forward_passes: int
    questions: Sequence[Sequence[Question]]

    def correct(self, candidates: Sequence[Candidate], examples: range) -> np.ndarray:
        """`correct [C, len(examples), P]`."""
        ...


def position_weights(kind: Weights, positions: Sequence[float], n_docs: int) -> np.ndarray:
    """Weights [P] that sum to one: equal, or twice as high in the middle as at the ends."""
    depth = (np.asarray(positions, dtype=np.float64) - 1) / max(n_docs - 1, 1)
    weights = 1 + 4 * depth * (1 - depth) if kind == "middle" else np.ones(len(depth))
    return weights / weights.sum()


def fitness(accuracy: np.ndarray, weights: np.ndarray, objective: Objective) -> float:
    """One number in points from `accuracy [P]` in points."""
    if objective == "worst":
        return float(accuracy.min())
    mean = float(weights @ accuracy)
    return mean if objective == "mean" else mean - float(np.ptp(accuracy))


class TeacherForced:
    """Exact match without generation.

    Greedy decoding gives exactly the tokens r_1..r_T if and only if, fed with them, the model ranks
    each of them first: one forward pass tells. Candidates differ in cos and sin alone, so that rows of
    several of them share a batch; and what the placements of an example begin with alike is read once.
    """

    def __init__(
        self, model: PreTrainedModel, questions: Sequence[Sequence[Question]], pad_token_id: int, batch_tokens: int
    ):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.scaling = on_device(model, self.device), layer_scaling(model)
        self.questions, self.pad, self.batch_tokens = questions, pad_token_id, batch_tokens
        self.reuse = can_reuse_prefixes(model)
        self.orders = [reading_order([question.read for question in row]) for row in questions]
        self.forward_passes = 0

    def correct(self, candidates: Sequence[Candidate], examples: range) -> np.ndarray:
        factors = torch.tensor(candidates, dtype=torch.float32)
        asked = list(product(range(len(candidates)), examples))
        lengths = [max(len(question.read) for question in self.questions[example]) for _, example in asked]
        groups = list(batches(lengths, self.batch_tokens))
        right = np.empty((len(asked), len(self.questions[0])), dtype=bool)
        for rows in track(groups, len(groups), "scaling candidates"):
            own = factors[[asked[row][0] for row in rows]]
            right[rows] = self._match([asked[row][1] for row in rows], own)
        self.forward_passes += right.size
        return right.reshape(len(candidates), len(examples), -1)

    @torch.inference_mode()
    def _match(self, examples: Sequence[int], factors: torch.Tensor) -> np.ndarray:
        """Whether the examples [B] are answered exactly as they should be at each placement, under
        `factors [B, L]`: [B, P]."""
        cache, right = PrefixCache(len(examples), self.device), []
        with self.scaling.rows(factors.T.to(self.device)):
            for turn in range(len(self.questions[0])):
                asked = [self.questions[example][self.orders[example][turn]] for example in examples]
                if not self.reuse:
                    cache = PrefixCache(len(examples), self.device)
                right.append(self._answers(asked, cache))
        at = np.argsort([self.orders[example] for example in examples], axis=1)  # a placement's turn
        return np.take_along_axis(np.stack(right, axis=1), at, axis=1)

    def _answers(self, asked: Sequence[Question], cache: PrefixCache) -> np.ndarray:
        """Whether each row [B] ranks its response's tokens first; what the cache holds is not read again."""
        width = max(len(question.response) for question in asked)
        ids, mask = cache.read([question.read for question in asked], self.pad, outputs=width)
        known = cache.states.get_seq_length()
        padded = [[-1] * (width - len(question.response)) + question.response for question in asked]
        targets = torch.tensor(padded, device=self.device)
        logits = self.model(
            input_ids=ids[:, known:],
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0)[:, known:],
            past_key_values=cache.states if self.reuse else None,
            use_cache=self.reuse,
            logits_to_keep=width,
        ).logits
        return ((logits.argmax(-1) == targets) | (targets < 0)).all(1).cpu().numpy()


class Generated:
    """The task's metric of generated responses, one candidate after another."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        questions: Sequence[Sequence[Question]],
        score: Callable[[str, AnyExample], float],
        max_new_tokens: int,
        batch_tokens: int,
    ):
        self.generator = TransformersGenerator(model, tokenizer, batch_tokens)
        self.scaling, self.questions = layer_scaling(model), questions
        self.score, self.sampling = score, Sampling(max_new_tokens)
        self.forward_passes = 0

    def correct(self, candidates: Sequence[Candidate], examples: range) -> np.ndarray:
        right = np.empty((len(candidates), len(examples), len(self.questions[0])))
        groups = [[Prompt("", question.prompt) for question in self.questions[example]] for example in examples]
        for found, factors in zip(right, candidates):
            self.scaling.set(factors)
            answered = self.generator.generate(groups, self.sampling)
            for which, completions in track(answered, len(groups), "scaling candidates"):
                asked = self.questions[examples[which]]
                found[which] = [self.score(c.text, q.example) for q, c in zip(asked, completions) if q.example]
                self.forward_passes += sum(len(completion.token_ids) for completion in completions)
        return right
