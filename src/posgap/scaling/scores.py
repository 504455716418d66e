"""Scores of candidates, kept so that none is evaluated twice, even across interruptions of the search."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, read_model, write_json
from posgap.mitigations.curves import Candidate
from posgap.mitigations.factor_search import Score
from posgap.scaling.fitness import Evaluator


class _Scored(Record):
    factors: list[float]
    right: list[list[int]]


class _State(Record):
    """A search under way: what each candidate answered, as `Scores.right` has it."""

    identity: str
    forward_passes: int
    scored: list[_Scored]


class Scores:
    """Scores candidates by an evaluator, and keeps the results in memory and in the file `state`.

    With `halving`, all new candidates are evaluated on a quarter of the examples, the better half of them on half of
    the examples, and the better half of those on all: these are the finalists. No candidate is evaluated twice on an
    example, and a dropped candidate never scores above a finalist. A `state` written under another `identity` is
    ignored.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        fitness: Callable[[np.ndarray], float],
        halving: bool = False,
        state: Path | None = None,
        identity: str = "",
    ):
        n_examples = len(evaluator.questions)
        self.evaluator, self.fitness, self.state, self.identity = evaluator, fitness, state, identity
        self.rungs = sorted({-(-n_examples // 4), -(-n_examples // 2), n_examples}) if halving else [n_examples]
        # For each candidate and each rung it reached: right answers [P] among that rung's first examples.
        self.right: dict[Candidate, list[list[int]]] = {}
        if state is not None and state.exists():
            self._load(state)

    def __call__(self, candidates: Sequence[Candidate]) -> list[Score]:
        """The score of each candidate, in their order."""
        alive = list(dict.fromkeys(candidates))
        score: dict[Candidate, Score] = {}
        for rung in range(len(self.rungs)):
            self._climb(alive, rung)
            score |= {c: Score(self.fitness(self.accuracy(c, rung)), False) for c in alive}
            if rung < len(self.rungs) - 1:
                alive = sorted(alive, key=lambda c: -score[c].fitness)[: -(-len(alive) // 2)]
        worst = min(score[c].fitness for c in alive)
        finalists = set(alive)
        return [
            Score(score[c].fitness, True) if c in finalists else Score(min(score[c].fitness, worst), False)
            for c in candidates
        ]

    def accuracy(self, candidate: Candidate, rung: int = -1) -> np.ndarray:
        """Accuracy [P] in points over the examples of a rung, by default all examples."""
        return 100 * np.array(self.right[candidate][rung]) / self.rungs[rung]

    def _climb(self, candidates: Sequence[Candidate], rung: int) -> None:
        """Evaluates the candidates that have not reached `rung` on the examples it adds to the rung below."""
        new = [c for c in candidates if len(self.right.get(c, ())) <= rung]
        if not new:
            return
        below = self.rungs[rung - 1] if rung else 0
        correct = self.evaluator.correct(new, range(below, self.rungs[rung]))
        for candidate, right in zip(new, correct.sum(axis=1)):
            reached = self.right.setdefault(candidate, [])
            reached.append((right + (np.array(reached[-1]) if reached else 0)).tolist())
        if self.state is not None:
            scored = [{"factors": factors, "right": right} for factors, right in self.right.items()]
            saved = {"identity": self.identity, "forward_passes": self.evaluator.forward_passes, "scored": scored}
            write_json(self.state, saved)

    def _load(self, state: Path) -> None:
        try:
            saved = read_model(_State, state, state.name)
        except PosgapError as error:
            raise PosgapError(f"{error}; delete it and search again") from None
        if saved.identity == self.identity:
            self.right = {tuple(row.factors): row.right for row in saved.scored}
            self.evaluator.forward_passes = saved.forward_passes
