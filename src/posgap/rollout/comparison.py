"""Predicted against measured distributions: rank correlation and distance, with intervals over texts."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from posgap.measurement.plots import COLORS
from posgap.rollout.distributions import RESAMPLES, percentile_interval, spearman, wasserstein
from posgap.rollout.files import Accuracy
from posgap.rollout.plots import distribution_curves

DESCRIBES = 0.5  # the least Spearman correlation of a prediction that describes a model


def compare_distributions(predicted: np.ndarray, texts: np.ndarray, rng: np.random.Generator) -> dict:
    """Agreement of `predicted` [N] with the mean of the texts' distributions `texts` [E, N], over places or documents.

    Spearman's correlation over the N and the Wasserstein distance in places (scipy's definitions),
    each with the 95 % bootstrap interval over texts; the distance also as a share of the length. The correlation,
    and its interval, are None if one side is the same at every position, so that there is no order to agree on.
    """
    measured = texts.mean(axis=0)
    weights = rng.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=RESAMPLES)
    resampled = weights @ texts / len(texts)
    correlations = spearman(resampled, predicted)
    distance = float(wasserstein(measured, predicted))
    return {
        "spearman": _if_defined(spearman(measured, predicted)),
        "spearman_ci95": None if np.isnan(correlations).any() else percentile_interval(correlations),
        "wasserstein": distance,
        "wasserstein_ci95": percentile_interval(wasserstein(resampled, predicted)),
        "wasserstein_share": distance / max(1, len(predicted) - 1),
    }


def _if_defined(figure: np.ndarray) -> float | None:
    return None if np.isnan(figure) else float(figure)


def predicted_shares(predicted: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns each document's share [n] of a predicted distribution [N] over all documents, averaged over prompts;
    `edges` [E, 2 n] are the documents' beginnings and ends, as shares of a prompt's length."""
    sums = np.concatenate([[0.0], np.cumsum(predicted)])
    length = len(predicted)
    at = np.interp(edges * length, np.arange(length + 1), sums).reshape(len(edges), -1, 2)
    of_documents = at[:, :, 1] - at[:, :, 0]
    return (of_documents / of_documents.sum(axis=1, keepdims=True)).mean(axis=0)


def comparison_text(figures: Mapping, what: str, of: str, n: int) -> str:
    """One sentence on whether the prediction describes the measured influence `what`, over n places `of` the prompt."""
    rank = figures["spearman"]
    subject = "the prediction"
    if rank is not None and rank < DESCRIBES:
        subject = f"the prediction does not describe this model (Spearman below {DESCRIBES:g}): it"
    return (
        f"{subject} {_order_text(rank, figures['spearman_ci95'])} of the measured {what} over {n} {of}, "
        f"and lies {100 * figures['wasserstein_share']:.0f} % of the length away"
    )


def _order_text(rank: float | None, interval: Sequence[float] | None) -> str:
    """Describes how well the positions are ordered."""
    if rank is None:
        return "cannot be compared in order (no Spearman: one of the two is the same everywhere)"
    strength = "well" if rank > 0.7 else "in part" if rank > 0.3 else "hardly" if rank > -0.3 else "the wrong way round"
    between = f", {interval[0]:.2f} to {interval[1]:.2f}" if interval else ", without an interval"
    return f"gives the order {strength} (Spearman {rank:.2f}{between})"


def sweep_spearman(sweep: Accuracy, distribution: np.ndarray) -> float | None:
    """Spearman's correlation of accuracy at each gold position with that document's share of the distribution [N];
    None if one of the two is the same at every position.

    The n documents are assumed to divide the prompt into stretches of equal length.
    """
    edges = np.linspace(0, len(distribution), sweep.n_docs + 1).round().astype(int)
    shares = np.array([distribution[edges[i - 1] : edges[i]].sum() for i in sweep.positions])
    return _if_defined(spearman(np.array(sweep.accuracy), shares))


def sweep_summary(sweep: Accuracy, predicted: float | None, measured: float | None) -> str:
    """One sentence on how well a sweep's accuracy follows the predicted and the measured shares, by these
    correlations."""
    if predicted is None or measured is None:
        flat = min(sweep.accuracy) == max(sweep.accuracy)
        what = f"the accuracy of {sweep.label}" if flat else "one of the two curves of shares"
        return f"{what} is the same at every position, so nothing can be said of how accuracy follows the shares"
    return (
        f"the accuracy of {sweep.label} (gap {sweep.gap:.1f}) follows the measured shares with Spearman "
        f"{measured:.2f} and the predicted ones with {predicted:.2f}"
    )


def comparison_curves(curves: Mapping[str, np.ndarray], sweep: Accuracy | None) -> Figure:
    """Plots both distributions and, on a second axis, the sweep's accuracy at each gold document's place."""
    figure = distribution_curves(curves, "share of influence")
    if sweep is None:
        return figure
    (shares,) = figure.axes
    n = len(next(iter(curves.values())))
    axes = shares.twinx()
    x = (np.array(sweep.positions) - 0.5) / sweep.n_docs * n + 0.5
    label = f"accuracy, {sweep.label}"
    axes.plot(x, sweep.accuracy, color=COLORS[2], linestyle=":", marker="o", markersize=3, label=label)
    axes.set(ylim=(0, 103), ylabel=f"accuracy, % ({sweep.metric})")
    axes.spines[["top"]].set_visible(False)
    shares.legend_ = None  # one legend for both axes
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return figure
