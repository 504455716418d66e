"""A sweep with its examples and their scores, as its predictions say."""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from posgap.foundation.errors import Contradiction, Malformed, NotAlike
from posgap.measurement.figures import baseline_scores
from posgap.measurement.predictions import Prediction, outcomes_of, read_predictions, swept_rows
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.tasks.positions import format_positions


def _scores_of(
    predictions: Sequence[Prediction], sweep: Sweep, path: Path
) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Example ids [E], their contents [E], scores [E, P] and shares of unanswered samples [E, P] of a sweep, which is
    at `path`; `PosgapError` if the predictions are not all of it."""
    column = {tuple(p): i for i, p in enumerate(sweep.placements)}
    samples = sweep.asked.samples
    scores: dict[str, list[float | None]] = {}  # of every placement and sample
    contents: dict[str, str] = {}
    unanswered: dict[str, list[int]] = {}  # how many samples of every placement
    for row in swept_rows(predictions):
        where = tuple(row["placement"])
        sample = row.get("sample", 0)
        of_example = scores.setdefault(row["id"], [None] * (len(column) * samples))
        if where not in column or sample >= samples or of_example[column[where] * samples + sample] is not None:
            fault = (
                "was predicted twice" if where in column and sample < samples else "is not a placement of this sweep"
            )
            raise Malformed(f"{format_positions(where)} {fault}", at=f"{path}: predictions of {row['id']}")
        contents.setdefault(row["id"], row["content"])
        unanswered_of_example = unanswered.setdefault(row["id"], [0] * len(column))
        if row.get("outcome", "answered") != "answered":
            if row["correct"]:
                place = format_positions(where)
                raise Contradiction(f"{row['outcome']} at {place}, but right", at=f"{path}: predictions of {row['id']}")
            unanswered_of_example[column[where]] += 1
        of_example[column[where] * samples + sample] = row["correct"]
    for row in predictions:  # also a baseline's
        if contents.get(row["id"], row["content"]) != row["content"]:
            raise Contradiction(
                "of one example with different contents; sweep again", at=f"{path}: predictions of {row['id']}"
            )
    if any(None in of_example for of_example in scores.values()) or len(scores) != sweep.n_examples:
        raise Malformed("predictions are missing; sweep again with --force", at=str(path))
    correct = np.array(list(scores.values()), dtype=float).reshape(len(scores), len(column), samples).mean(axis=2)
    return list(scores), list(contents.values()), correct, np.array(list(unanswered.values())) / samples


class Evidence:
    """A sweep with the `ids` [E], `contents` [E] and `scores` [E, P] of its examples, the shares of their samples that
    went `unanswered` [E, P], how its prompts ended, and its baselines' scores, all in its predictions' order.

    Statistics use `correct [n, P]`, the scores of the `sample`: groups of examples count once, and the order of lines
    does not matter. Columns are as in the sweep's `placements`.

    Sweep and predictions are read from `path` if they are not given; messages name it. Raises `PosgapError` if the
    predictions are not all of the sweep's.
    """

    def __init__(self, path: Path, sweep: Sweep | None = None, predictions: Sequence[Prediction] | None = None):
        self.path = path
        self.sweep = sweep or read_sweep(path)
        predictions = read_predictions(path) if predictions is None else predictions
        self.ids, self.contents, self.scores, self.unanswered = _scores_of(predictions, self.sweep, path)
        self.sample = Sample(self.contents, self.sweep.groups)
        self.correct = self.sample.average(self.scores)
        self.outcomes = outcomes_of(predictions, self.sweep.placements)
        self.baselines = baseline_scores(predictions, self.ids, self.sweep.asked.samples, path)

    def reorder_like(self, reference: "Evidence") -> "Evidence":
        """Returns a copy with the examples in the reference's order; `PosgapError` if the examples or their groups
        differ."""
        if sorted(self.contents) != sorted(reference.contents) or self.sweep.groups != reference.sweep.groups:
            raise NotAlike(
                f"{self.path} and {reference.path}: have predictions of different examples or groups; sweep both again"
            )
        order = np.empty(len(self.contents), dtype=int)
        order[np.argsort(reference.contents, kind="stable")] = np.argsort(self.contents, kind="stable")
        ordered = copy.copy(self)
        ordered.ids = [self.ids[i] for i in order]
        ordered.contents = reference.contents
        ordered.sample = reference.sample
        ordered.scores, ordered.unanswered = self.scores[order], self.unanswered[order]
        ordered.baselines = {name: each._replace(scores=each.scores[order]) for name, each in self.baselines.items()}
        return ordered

    def gains_over(self, reference: "Evidence") -> np.ndarray:
        """Returns the differences from a reference [n, P] with its examples in the same order.

        A prompt that the reference left unanswered counts as no difference: counted as the reference's mistake, it
        would hide as large a loss.
        """
        if not reference.unanswered.any():
            return self.correct - reference.correct
        return self.sample.average(self.scores * (1 - reference.unanswered) - reference.scores)
