"""The fitness of a candidate: its right answers by position, and one number made of them.

A candidate is a tuple with one factor per layer. An evaluator lets the model answer every question under every
candidate and returns `correct [C, E, P]`, for C candidates, E examples and P placements.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from posgap.foundation.progress import meter
from posgap.generation.batching import BATCH_TOKENS, batches, reading_order
from posgap.generation.generator import LayerGenerator, Sampling, complete_groups
from posgap.generation.prefix_cache import PrefixCache, can_reuse_prefixes
from posgap.mitigations.curves import Candidate
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import on_device
from posgap.scaling.questions import SearchQuestion, as_groups


class Evaluator(Protocol):
    """Answers `questions [E][P]` under candidates; `forward_passes` counts the rows the model has read."""

    forward_passes: int
    questions: Sequence[Sequence[SearchQuestion]]

    def correct(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Returns each candidate's score (0 to 1) at each question, `[C, E, P]`; of forced answers, right or not."""
        ...


def position_weights(positions: Sequence[float], n_docs: int) -> np.ndarray:
    """Weights [P] that sum to one, twice as high in the middle as at the ends."""
    depth = (np.asarray(positions, dtype=np.float64) - 1) / max(n_docs - 1, 1)
    weights = 1 + 4 * depth * (1 - depth)
    return weights / weights.sum()


def fitness(accuracy: np.ndarray, weights: np.ndarray, objective: str) -> float:
    """Returns the fitness in points of `accuracy [P]` in points, with `weights [P]` for its mean; see `objective` of
    `ScaleSearchConfig`."""
    of_objective = {"mean": weights @ accuracy, "uniform": accuracy.mean(), "worst": accuracy.min()}
    return float(of_objective[objective])


class ForcedEvaluator:
    """Judges exact match by one forward pass instead of generation.

    Greedy decoding gives exactly the tokens r_1..r_T if and only if the model, when it reads them after the prompt,
    ranks each of them first. Candidates differ only in their tables of cos and sin, so rows of several candidates
    share a batch. The common beginning of an example's placements is read once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        questions: Sequence[Sequence[SearchQuestion]],
        pad_token_id: int,
        batch_tokens: int,
    ):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = on_device(model, self.device)
        self.scaling = layer_scaling(model)
        self.questions = questions
        self.pad = pad_token_id
        self.batch_tokens = batch_tokens or BATCH_TOKENS
        self.reuse = can_reuse_prefixes(model)
        # For each example: the order of reading its placements, and the tokens of the longest one.
        self.orders = []
        self.lengths = []
        for row in questions:
            read = [question.token_ids for question in row]
            self.orders.append(reading_order(read))
            self.lengths.append(max(map(len, read)))
        self.forward_passes = 0

    def correct(self, candidates: Sequence[Candidate]) -> np.ndarray:
        factors = torch.tensor(candidates, dtype=torch.float32)
        pairs = list(product(range(len(candidates)), range(len(self.questions))))
        groups = batches([self.lengths[example] for _, example in pairs], self.batch_tokens)
        right = np.empty((len(pairs), len(self.questions[0])), dtype=bool)
        with meter(len(pairs), "scaling candidates", unit=len(self.questions)) as done:
            for rows in groups:
                own, examples = zip(*(pairs[row] for row in rows))
                right[rows] = self._match(examples, factors[list(own)])
                done(len(rows))
        self.forward_passes += right.size
        return right.reshape(len(candidates), len(self.questions), -1)

    @torch.inference_mode()
    def _match(self, examples: Sequence[int], factors: torch.Tensor) -> np.ndarray:
        """Whether each of the examples [B], under its row of `factors [B, L]`, is answered with exactly the right
        response at each placement: [B, P]."""
        cache = PrefixCache(len(examples), self.device)
        right = []
        with self.scaling.factors_by_row(factors.T.to(self.device)):
            for turn in range(len(self.questions[0])):
                questions = [self.questions[example][self.orders[example][turn]] for example in examples]
                if not self.reuse:
                    cache = PrefixCache(len(examples), self.device)
                right.append(self._match_responses(questions, cache))
        at = np.argsort([self.orders[example] for example in examples], axis=1)  # the turn of each placement
        return np.take_along_axis(np.stack(right, axis=1), at, axis=1)

    def _match_responses(self, questions: Sequence[SearchQuestion], cache: PrefixCache) -> np.ndarray:
        """Returns whether the model ranks every token of a question's response first, [B].

        It reads only the tokens that `cache` does not hold. Shorter responses are padded on the left by -1, which any
        token matches.
        """
        width = max(len(question.response) for question in questions)
        ids, mask = cache.advance([question.token_ids for question in questions], self.pad, outputs=width)
        n_cached = cache.states.get_seq_length()
        padded = [[-1] * (width - len(question.response)) + question.response for question in questions]
        targets = torch.tensor(padded, device=self.device)
        logits = self.model(
            input_ids=ids[:, n_cached:],
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0)[:, n_cached:],
            past_key_values=cache.states if self.reuse else None,
            use_cache=self.reuse,
            logits_to_keep=width,
        ).logits
        return ((logits.argmax(-1) == targets) | (targets < 0)).all(1).cpu().numpy()


@dataclass
class GenerationEvaluator:
    """Scores generated responses by the task's metric, one candidate after another."""

    generator: LayerGenerator
    questions: Sequence[Sequence[SearchQuestion]]
    score: Callable[[str, Sequence[str]], float]
    sampling: Sampling
    forward_passes: int = 0

    def correct(self, candidates: Sequence[Candidate]) -> np.ndarray:
        right = np.empty((len(candidates), len(self.questions), len(self.questions[0])))
        groups = as_groups(self.questions)
        with meter(right[..., 0].size, "scaling candidates", unit=len(groups)) as done:
            for scores, factors in zip(right, candidates):
                self.generator.scale_layers(factors)
                for which, completions in complete_groups(self.generator, groups, self.sampling):
                    for at, (question, completion) in enumerate(zip(self.questions[which], completions)):
                        scores[which, at] = self.score(completion.text, question.answers)
                        self.forward_passes += len(completion.token_ids)
                    done(1)
        return right
