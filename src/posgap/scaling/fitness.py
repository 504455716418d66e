"""How good a candidate is: right answers by position, then one number.

A candidate is one factor per layer. Evaluators answer every question under every candidate asked
for: `correct [C, E, P]`, for C candidates, E examples and P placements.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posgap.generation.batching import batches
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.progress import track
from posgap.scaling.application import layer_scaling
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
    each of them first: one forward pass tells. And candidates differ in cos and sin alone, so that
    rows of several of them share a batch.
    """

    def __init__(
        self, model: PreTrainedModel, questions: Sequence[Sequence[Question]], pad_token_id: int, batch_tokens: int
    ):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.scaling = model.to(self.device), layer_scaling(model)
        self.questions, self.pad, self.batch_tokens = questions, pad_token_id, batch_tokens
        self.forward_passes = 0

    def correct(self, candidates: Sequence[Candidate], examples: range) -> np.ndarray:
        asked = [question for example in examples for question in self.questions[example]]
        factors = torch.tensor(candidates, dtype=torch.float32)
        lengths = [len(q.prompt) + len(q.response) - 1 for q in asked] * len(candidates)
        groups = list(batches(lengths, self.batch_tokens))
        right = np.empty(len(lengths), dtype=bool)
        for rows in track(groups, len(groups), "scaling candidates"):
            own = factors[[row // len(asked) for row in rows]]
            right[rows] = self._match([asked[row % len(asked)] for row in rows], own)
        self.forward_passes += len(lengths)
        return right.reshape(len(candidates), len(examples), -1)

    @torch.inference_mode()
    def _match(self, asked: Sequence[Question], factors: torch.Tensor) -> np.ndarray:
        """Whether each row [B] answers exactly as it should, under `factors [B, L]`."""
        inputs = self._right_aligned([q.prompt + q.response[:-1] for q in asked], self.pad)
        mask = self._right_aligned([[1] * (len(q.prompt) + len(q.response) - 1) for q in asked], 0)
        targets = self._right_aligned([q.response for q in asked], -1)
        with self.scaling.rows(factors.T.to(self.device)):
            logits = self.model(
                input_ids=inputs,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp_min(0),
                use_cache=False,
                logits_to_keep=targets.shape[1],
            ).logits
        return ((logits.argmax(-1) == targets) | (targets < 0)).all(1).cpu().numpy()

    def _right_aligned(self, rows: Sequence[list[int]], fill: int) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([[fill] * (width - len(row)) + row for row in rows], device=self.device)


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
        asked = [question for example in examples for question in self.questions[example]]
        right = []
        for factors in candidates:
            self.scaling.set(factors)
            completions = complete(self.generator, [Prompt("", q.prompt) for q in asked], self.sampling)
            for question, completion in zip(asked, track(completions, len(asked), "scaling candidates")):
                right.append(self.score(completion.text, question.example))
                self.forward_passes += len(completion.token_ids)
        return np.array(right, dtype=float).reshape(len(candidates), len(examples), -1)
