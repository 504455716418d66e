"""A sweep's answers to the prompts that are measured, and what tells the right ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posgap.data.distractors import relevance
from posgap.foundation.errors import PosgapError
from posgap.measurement.sweeps import Sweep, read_predictions, read_sweep
from posgap.rollout.documents import Asked, gold_shares
from posgap.rollout.files import Accuracy
from posgap.rollout.telling import FOLDS, telling
from posgap.tasks.content import content
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.task import CLOSED_BOOK


@dataclass(frozen=True)
class SweptAnswers:
    """What a sweep answered: scores by an example's content and the gold position, and those without any documents by
    content."""

    path: Path
    sweep: Sweep
    scores: Mapping[tuple[str, int], float]
    closed_book: Mapping[str, float]

    def accuracy(self) -> Accuracy:
        """The sweep's accuracy by position."""
        of = self.sweep
        return Accuracy(
            label=of.label, gap=of.gap, n_docs=of.n_docs, metric=of.metric, positions=of.positions, accuracy=of.accuracy
        )

    def require_enough(self, examples: Mapping[str, AnyExample], asked: Sequence[Asked]) -> None:
        """Raises `PosgapError` where the sweep answered too few of the prompts to learn from."""
        if (number := len(self._answered(examples, asked))) < 2 * FOLDS:
            raise PosgapError(
                f"{self.path}: has answers to {number} of {len(asked)} prompts to measure, and {2 * FOLDS} are the "
                "fewest to learn from; sweep and measure the same examples"
            )

    def _answered(self, examples: Mapping[str, AnyExample], asked: Sequence[Asked]) -> dict[int, tuple[str, int]]:
        """The content and the gold position of those prompts that the sweep answered, by their number."""
        keys = [(content(examples[each.id]), each.position) for each in asked]
        return {number: key for number, key in enumerate(keys) if key in self.scores}

    def told(
        self,
        build: PromptBuilder,
        examples: Mapping[str, AnyExample],
        asked: Sequence[Asked],
        lengths: Sequence[int],
        shares: Mapping[str, np.ndarray],
        attention: np.ndarray,
        seed: int,
    ) -> dict[str, Any]:
        """What tells the right answers to the measured prompts (`telling.telling`), from their `lengths [E]` in tokens,
        the documents' `shares [E, n]` by measure and the last token's `attention [E, L, H, n]` to them.
        """
        answered = self._answered(examples, asked)
        at, positions = list(answered), np.array([position for _, position in answered.values()])
        features = {f"{name} of the gold document": gold_shares(each[at], positions) for name, each in shares.items()}
        features["a short prompt"] = -np.array([lengths[i] for i in at], dtype=float)
        features["BM25"] = -np.array([self._rank(build, examples[asked[i].id], asked[i].position) for i in at])
        if all(of_example in self.closed_book for of_example, _ in answered.values()):
            features["closed book"] = np.array([self.closed_book[of_example] for of_example, _ in answered.values()])
        to_gold = np.take_along_axis(attention[at], (positions - 1)[:, None, None, None], axis=3)
        right = np.array([self.scores[key] for key in answered.values()]) > 0.5
        return {"label": self.sweep.label} | telling(features, to_gold.reshape(len(at), -1), right, positions, seed)

    def _rank(self, build: PromptBuilder, example: AnyExample, position: int) -> float:
        """The gold document's rank among the documents of a prompt by BM25; those that score alike share theirs."""
        scores = np.array(
            relevance(example.question, build.documents(example, Placement((position,), self.sweep.n_docs)))
        )
        gold = scores[position - 1]
        return float((scores > gold).sum() + (scores == gold).sum() / 2)


def read_answers(path: Path, build: PromptBuilder | None, n_docs: int) -> SweptAnswers:
    """The answers of a sweep folder. Raises `PosgapError` where it did not ask the prompts of `build`."""
    if not build:
        raise PosgapError("sweep: has answers to prompts: give the `task` and examples that it asked")
    sweep = read_sweep(path)
    sweep.require_model_alone(path, "give a sweep without one, whose positions are those that the model reads")
    if sweep.categories:
        raise PosgapError(
            f"{path}: a sweep of pairs has no curve over positions; give one of a task with one gold document"
        )
    if (sweep.task, sweep.n_docs) != (build.task.name, n_docs):
        raise PosgapError(
            f"{path}: asked {sweep.n_docs} documents of the task {sweep.task}, and not {n_docs} of {build.task.name}; "
            "measure what was swept"
        )
    if sweep.prompt_digest != build.digest():
        raise PosgapError(
            f"{path}: asked other prompts than are measured (another order, system message, template or tokenizer); "
            "sweep the model by the task's own prompts"
        )
    scores, closed_book = dict[tuple[str, int], float](), dict[str, float]()
    for row in read_predictions(path):
        if row.get("sample"):
            continue
        if "baseline" not in row:
            scores[row["content"], row["placement"][0]] = float(row["correct"])
        elif row["baseline"] == CLOSED_BOOK.name:
            closed_book[row["content"]] = float(row["correct"])
    return SweptAnswers(path, sweep, scores, closed_book)
