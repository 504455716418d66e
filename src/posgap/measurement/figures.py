"""The figures of `sweep.json`, from scores."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.measurement import statistics
from posgap.measurement.outcomes import OutcomeCounts
from posgap.measurement.predictions import Prediction, ending_of
from posgap.measurement.sample import Sample
from posgap.measurement.shape import shape_of
from posgap.measurement.sweeps import BaselineFigures, Flatness
from posgap.tasks.placements import in_order


def summarize(
    correct: np.ndarray,
    placements: list[list[int]],
    seed: int,
    categories: Sequence[str] = (),
    sample: Sample | None = None,
) -> dict:
    """Returns the statistics of a sweep from `correct [E, P]`, and the placements' categories, if they have some, under
    the field names of `Sweep`. Without a `sample` each row is a draw, and they stand in the order of their content."""
    n_examples = len(correct)
    correct = sample.average(correct) if sample else correct
    accuracy = statistics.accuracy(correct)
    worst = int(np.argmin(accuracy))
    flatness = Flatness(p=statistics.flatness_p(correct))
    return {
        "n_examples": n_examples,
        "groups": sample.groups if sample else [],
        "placements": placements,
        "accuracy": accuracy.tolist(),
        "ci95": statistics.mean_interval(correct).tolist(),
        "mean": float(accuracy.mean()),
        "mean_ci95": statistics.mean_interval(correct.mean(axis=1)).tolist(),
        "gap": statistics.gap(accuracy),
        "gap_ci95": statistics.gap_interval(correct),
        "gap_noise": statistics.gap_noise(correct, np.random.default_rng(seed)),
        "flatness": flatness,
        "worst": {"placement": placements[worst], "accuracy": float(accuracy[worst])},
        **(
            _of_categories(correct, categories)
            if any(categories)
            else {"shape": shape_of(correct, [placement[0] for placement in placements], uneven=flatness.is_refuted)}
        ),
    }


def _of_categories(correct: np.ndarray, categories: Sequence[str]) -> dict:
    """The figures of each category from `correct [E, P]`, those there are in order."""
    figures = {}
    for name in in_order(categories):
        within = correct[:, [i for i, own in enumerate(categories) if own == name]]
        accuracy = statistics.accuracy(within)
        figures[name] = {
            "accuracy": float(accuracy.mean()),
            "ci95": statistics.mean_interval(within.mean(axis=1)).tolist(),
            "gap": statistics.gap(accuracy),
        }
    return {"categories": list(categories), "by_category": figures}


class BaselineScores(NamedTuple):
    """A baseline's scores [E], for the same order of examples as the placements, and how its prompts ended."""

    scores: np.ndarray
    outcomes: OutcomeCounts


def baseline_scores(
    predictions: Iterable[Prediction], ids: Sequence[str], samples: int, where: object
) -> dict[str, BaselineScores]:
    """Returns each baseline's scores for the examples `ids` [E] in these predictions; raises `PosgapError`, which names
    `where`, if a baseline does not have all of them."""
    rows: dict[str, dict[str, list[Prediction]]] = {}
    for row in predictions:
        if "baseline" in row:
            rows.setdefault(row["baseline"], {}).setdefault(row["id"], []).append(row)
    found = {}
    for name, by_id in rows.items():
        if by_id.keys() != set(ids) or any(len(of_example) != samples for of_example in by_id.values()):
            raise PosgapError(f"{where}: predictions of {name} are not one of each example; sweep again")
        endings = map(ending_of, chain.from_iterable(by_id.values()))
        scores = np.array([np.mean(list(map(itemgetter("correct"), by_id[id]))) for id in ids])
        found[name] = BaselineScores(scores, OutcomeCounts.count(endings))
    return found


def baselines_of(
    baselines: Mapping[str, BaselineScores], correct: np.ndarray, sample: Sample
) -> dict[str, BaselineFigures]:
    """Returns the figures of baselines for a sample whose scores at the placements are `correct [n, P]`."""
    figures = {}
    for name, (of_examples, outcomes) in baselines.items():
        scores = sample.average(of_examples)
        over, over_ci95 = statistics.paired_difference(scores, correct.mean(axis=1))
        best, best_ci95 = None, None
        if correct.shape[1] > 1 and len(correct) > 1:
            best, best_ci95, _ = statistics.difference_at_best(correct - scores[:, None], correct)
        figures[name] = BaselineFigures(
            accuracy=float(100 * scores.mean()),
            ci95=statistics.mean_interval(scores).tolist(),
            over_mean=over,
            over_mean_ci95=over_ci95,
            best_over=best,
            best_over_ci95=best_ci95,
            outcomes=outcomes,
        )
    return figures
