"""Predicted against measured distributions: rank correlation and distance, with intervals over texts."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from posgap.measurement.statistics import EACH_END
from posgap.measurement.sweeps import Sweep
from posgap.rollout.distributions import describe, spearman, wasserstein
from posgap.rollout.plots import COLORS, distribution_curves


def compare(predicted: np.ndarray, texts: np.ndarray, resamples: int, rng: np.random.Generator) -> dict:
    """Agreement of `predicted` [N] with the mean of the texts' distributions `texts` [E, N].

    Spearman's correlation over positions and the Wasserstein distance in tokens (scipy's definitions),
    each with the 95 % bootstrap interval over texts; the distance also as a share of the length.
    """
    measured = texts.mean(axis=0)
    weights = rng.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=resamples)
    resampled = weights @ texts / len(texts)
    distances = wasserstein(resampled, predicted)
    return {
        "spearman": float(spearman(measured, predicted)),
        "spearman_ci95": _interval(spearman(resampled, predicted)),
        "wasserstein": float(wasserstein(measured, predicted)),
        "wasserstein_ci95": _interval(distances),
        "wasserstein_share": float(wasserstein(measured, predicted) / max(1, len(predicted) - 1)),
    }


def _interval(resampled: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval of figures [resamples]."""
    low, high = np.percentile(resampled, [100 * EACH_END, 100 * (1 - EACH_END)])
    return float(low), float(high)


def reading(figures: Mapping, predicted: np.ndarray, measured: np.ndarray, what: str) -> str:
    """One sentence on how well the prediction agrees with the measurement."""
    rank, (low, high) = figures["spearman"], figures["spearman_ci95"]
    strength = "well" if rank > 0.7 else "in part" if rank > 0.3 else "hardly" if rank > -0.3 else "the wrong way round"
    return (
        f"predicted {describe(predicted)['shape']}, measured ({what}) {describe(measured)['shape']}; the prediction "
        f"orders the positions {strength} (Spearman {rank:.2f}, {low:.2f} to {high:.2f}) and lies "
        f"{figures['wasserstein']:.1f} tokens away ({100 * figures['wasserstein_share']:.0f} % of the length)"
    )


def sweep_spearman(sweep: Sweep, distribution: np.ndarray) -> float:
    """Spearman's correlation of accuracy at each gold position with that document's share of the distribution [N].

    The n documents are assumed to divide the prompt into stretches of equal length.
    """
    edges = np.linspace(0, len(distribution), sweep.n_docs + 1).round().astype(int)
    shares = np.array([distribution[edges[i - 1] : edges[i]].sum() for i in sweep.positions])
    return float(spearman(np.array(sweep.accuracy), shares))


def comparison_curves(curves: Mapping[str, np.ndarray], sweep: Sweep | None) -> Figure:
    """Plots both distributions and, on a second axis, the sweep's accuracy at each gold document's place."""
    figure = distribution_curves(curves, "share of influence")
    if sweep is None:
        return figure
    (shares,), n = figure.axes, len(next(iter(curves.values())))
    axes = shares.twinx()
    x = (np.array(sweep.positions) - 0.5) / sweep.n_docs * n + 0.5
    label = f"accuracy, {sweep.label}"
    axes.plot(x, sweep.accuracy, color=COLORS[2], linestyle=":", marker="o", markersize=3, label=label)
    axes.set(ylim=(0, 103), ylabel=f"accuracy, % ({sweep.metric})")
    axes.spines[["top"]].set_visible(False)
    if legend := shares.get_legend():
        legend.remove()
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return figure
