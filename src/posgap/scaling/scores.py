"""Scores of candidates, kept so that none is evaluated twice, even across interruptions of the search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import Record, read_model, write_json
from posgap.mitigations.curves import Candidate
from posgap.scaling.fitness import Evaluator


class _CandidateScore(Record):
    factors: list[float]
    right: list[float]


class _SearchState(Record):
    """A search under way: the result of each candidate, in the form of `Scores.right`."""

    identity: str
    forward_passes: int
    scored: list[_CandidateScore]


@dataclass
class Scores:
    """Scores candidates by an evaluator, and keeps the results in memory and in the file `state`.

    No candidate is evaluated twice. A `state` written under another `identity` is ignored.
    """

    evaluator: Evaluator
    fitness: Callable[[np.ndarray], float]
    state: Path | None = None
    identity: str = ""

    def __post_init__(self) -> None:
        self.is_over: Callable[[], bool] | None = None  # asked before each candidate but the first two
        self.right: dict[Candidate, list[float]] = {}  # sums of scores [P] of each candidate over all examples
        if self.state is not None and self.state.exists():
            self._load_scores(self.state)

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        """Returns the fitness of each candidate, in their order; if time is over, of the first ones alone."""
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self.right]
        if self.is_over is None:
            self._evaluate(new)
        else:
            for candidate in new:
                if len(self.right) > 1 and self.is_over():
                    break
                self._evaluate([candidate])
        scored = takewhile(lambda candidate: candidate in self.right, candidates)
        return [self.fitness(self.accuracy(candidate)) for candidate in scored]

    def accuracy(self, candidate: Candidate) -> np.ndarray:
        """Accuracy [P] in points over the examples."""
        return 100 * np.array(self.right[candidate]) / len(self.evaluator.questions)

    def _evaluate(self, candidates: Sequence[Candidate]) -> None:
        if candidates:
            correct = self.evaluator.correct(candidates)
            self.right |= zip(candidates, correct.sum(axis=1).tolist())
            self._save_scores()

    def _save_scores(self) -> None:
        if self.state is not None:
            scored = [{"factors": factors, "right": right} for factors, right in self.right.items()]
            saved = {"identity": self.identity, "forward_passes": self.evaluator.forward_passes, "scored": scored}
            write_json(self.state, saved)

    def _load_scores(self, state: Path) -> None:
        try:
            saved = read_model(_SearchState, state, state.name)
        except PosgapError as error:
            raise Malformed(f"{error}; delete it and search again") from None
        if saved.identity == self.identity:
            for row in saved.scored:
                self.right[tuple(row.factors)] = row.right
            self.evaluator.forward_passes = saved.forward_passes
