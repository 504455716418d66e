"""What tells, before it is scored, that an answer will be right: attention to the gold document, and simple things.

In shapes, E counts prompts and F heads.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from posgap.rollout.distributions import RESAMPLES, percentile_interval

FOLDS = 5
TOP_HEADS = 5  # those that told best on the other folds
HEADS = "heads"
RIDGE = 1.0  # on standardised features, which keeps weights finite where a feature tells everything

# The values [E] of a feature, where only prompts that are `seen [E]` may be looked at to choose it.
Feature = Callable[[np.ndarray], np.ndarray]
# A figure of the prompts in these rows, which may be there several times; None where they do not give it.
Figure = Callable[[np.ndarray], float | None]


def telling(
    features: Mapping[str, np.ndarray], heads: np.ndarray, right: np.ndarray, positions: np.ndarray, seed: int
) -> dict[str, Any]:
    """How well each of the `features` [E], and the best `heads` [E, F], tell the answers that are `right [E]` from the
    others, beside the gold documents' `positions [E]` alone.

    `auc` is the chance that of a right and a wrong answer the right one's value is greater (0.5: it tells nothing),
    `auc_within_position` the same among prompts of one gold position. `gain` is what the AUC gains where a logistic
    regression is given the feature beside the position. All but the first two are cross-validated over prompts in
    five folds: what is fitted or chosen is so on the other folds, and pairs are of one fold. Heads are the five whose
    attention to the gold document told best there. Intervals are bootstrapped over prompts, without fitting again.
    """
    rng = np.random.default_rng(seed)
    folds = rng.permutation(np.arange(len(right)) % FOLDS)
    result: dict[str, Any] = {"prompts": len(right), "accuracy": 100 * float(right.mean()), "features": {}}
    if right.all() or not right.any():
        return result
    drawn = rng.integers(len(right), size=(RESAMPLES // 4, len(right)))
    alone = _scores(right, positions, folds, None)
    of_position = _area(alone, right, folds)
    result["position"] = _areas(drawn, of_position)
    chosen = {name: _constant(values) for name, values in features.items()}
    if heads.size:
        chosen[HEADS] = lambda seen: best_heads(heads, right, seen)
    for name, feature in chosen.items():
        values = _held_out(folds, feature)
        area = _areas(drawn, _area(values, right, folds if name == HEADS else np.zeros(len(right))))
        gain = _areas(drawn, _minus(_area(_scores(right, positions, folds, feature), right, folds), of_position))
        result["features"][name] = {
            "auc": area[0],
            "auc_ci95": area[1],
            "auc_within_position": auc(values, right, positions),
            "gain": gain[0],
            "gain_ci95": gain[1],
        }
    return result


def auc(values: np.ndarray, right: np.ndarray, groups: np.ndarray | None = None) -> float | None:
    """The chance that the value of one that is `right` [E] exceeds that of one that is not (Mann and Whitney; a tie
    counts half), among pairs of one of the `groups` [E]; None without such a pair."""
    wins, pairs = 0.0, 0
    for group in [np.full(len(values), True)] if groups is None else [groups == each for each in np.unique(groups)]:
        own, good = values[group], right[group]
        n_good, n_bad = int(good.sum()), int((~good).sum())
        if n_good and n_bad:
            wins += float(rankdata(own)[good].sum()) - n_good * (n_good + 1) / 2
            pairs += n_good * n_bad
    return wins / pairs if pairs else None


def best_heads(heads: np.ndarray, right: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The mean [E] over the heads [E, F] that tell best among the prompts `seen [E]`, each less its mean there and
    divided by its deviation."""
    ranks, good = rankdata(heads[seen], axis=0), right[seen]
    best = np.argsort(-ranks[good].mean(axis=0), kind="stable")[:TOP_HEADS]
    return _standardised(heads[:, best], seen).mean(axis=1)


def _constant(values: np.ndarray) -> Feature:
    return lambda seen: values


def _held_out(folds: np.ndarray, feature: Feature) -> np.ndarray:
    """Each prompt's value of a feature that was chosen on the other folds."""
    values = np.zeros(len(folds))
    for fold in np.unique(folds):
        values[folds == fold] = feature(folds != fold)[folds == fold]
    return values


def _scores(right: np.ndarray, positions: np.ndarray, folds: np.ndarray, feature: Feature | None) -> np.ndarray:
    """How likely each answer is to be right [E] by accuracy at its position on the other folds, and by a feature."""
    scores = np.zeros(len(right))
    for fold in np.unique(folds):
        seen = folds != fold
        known = _rate_at(right[seen], positions[seen], positions)
        if feature is None:
            scores[~seen] = known[~seen]
            continue
        x = _standardised(np.stack([known, feature(seen)], axis=1), seen)
        scores[~seen] = x[~seen] @ logistic(x[seen], right[seen])
    return scores


def _rate_at(right: np.ndarray, positions: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Accuracy at each position that is `asked`, of the answers given, with one answer of the mean accuracy more."""
    mean = right.mean()
    at = {each: (right[positions == each].sum() + mean) / ((positions == each).sum() + 1) for each in np.unique(asked)}
    return np.array([at[each] for each in asked])


def _standardised(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    deviation = values[seen].std(axis=0)
    return (values - values[seen].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


def logistic(x: np.ndarray, right: np.ndarray, steps: int = 25) -> np.ndarray:
    """The weights of a ridge logistic regression of `right [E]` on features `x [E, K]`, its constant left out.

    Newton's method on the log-likelihood less RIDGE / 2 times the weights' squares.
    """
    x = np.hstack([np.ones((len(x), 1)), x])
    penalty = RIDGE * np.diag([1e-6] + [1.0] * (x.shape[1] - 1))
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (right - chance) - penalty @ weights
        curvature = (x * (chance * (1 - chance))[:, None]).T @ x + penalty
        weights = weights + np.linalg.solve(curvature, slope)
    return weights[1:]


def _area(values: np.ndarray, right: np.ndarray, groups: np.ndarray) -> Figure:
    return lambda rows: auc(values[rows], right[rows], groups[rows])


def _minus(one: Figure, other: Figure) -> Figure:
    def difference(rows: np.ndarray) -> float | None:
        areas = one(rows), other(rows)
        return None if areas[0] is None or areas[1] is None else areas[0] - areas[1]

    return difference


def _areas(drawn: np.ndarray, area: Figure) -> tuple[float | None, list[float] | None]:
    """A figure of all prompts, and its 95 % interval over the prompts that were `drawn` [R, E]."""
    again = [value for rows in drawn if (value := area(rows)) is not None]
    interval = percentile_interval(np.array(again)) if len(again) == len(drawn) else None
    return area(np.arange(drawn.shape[1])), interval


def telling_summary(told: Mapping[str, Any]) -> str:
    """One sentence on what `telling` found of the answers of `label`: the feature that gains most beside position."""
    label = told["label"]
    if not told["features"]:
        return (
            f"{label} answered all of the {told['prompts']} measured prompts alike, so nothing can tell a right answer"
        )
    known = {name: found for name, found in told["features"].items() if found["gain"] is not None}
    area, interval = told["position"]
    position = f"the position alone tells right answers of {label} with AUC {_figure(area, interval)}"
    if not known:
        return f"{position}; {told['prompts']} prompts are too few to say what else does"
    best = max(known, key=lambda name: known[name]["gain"])
    gain = known[best]["gain_ci95"]
    sure = "gains" if gain and gain[0] > 0 else "shows no certain gain"
    return (
        f"{position}; of {len(known)} other things {best} adds most, AUC {_figure(known[best]['gain'], gain, '+.2f')}: "
        f"it {sure} ({told['prompts']} prompts, cross-validated; as the best of {len(known)} it is a little too high)"
    )


def _figure(value: float | None, interval: list[float] | None, form: str = ".2f") -> str:
    if value is None:
        return "unknown"
    return f"{value:{form}}" + (f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else "")
