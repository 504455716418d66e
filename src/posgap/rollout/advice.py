"""What to change in a model whose gap is known: heads and layers by what their gates do to right responses.

The log-probability of the right response at each gold position is what a change is predicted on, since it moves long
before an answer does: by the gradient (`mitigations.head_gates`), all heads at once. The first few are then really
made, and measured on other examples. In shapes, E counts examples, P gold positions, L layers and H heads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posgap.foundation.files import Record
from posgap.measurement.plots import COLORS
from posgap.mitigations.head_gates import STEPS, Gates, turned
from posgap.rollout.distributions import spearman
from posgap.rollout.plots import styled

ADVICE_FILE = "advice.json"
TURNED = (-0.5, 0.5)  # by how much single heads and layers are turned


class Change(NamedTuple):
    """A change of some heads' gates by `change [L, H]`, and what it is called."""

    name: str
    change: np.ndarray

    @property
    def gates(self) -> Gates:
        return Gates(gates=tuple(tuple(float(max(0.0, 1 + each)) for each in row) for row in self.change))


class Effect(Record):
    """What a change does to the log-probability of right responses, in nats: to its `mean` over positions, and to its
    `gap` between the best and the worst position."""

    mean: float
    gap: float


class Checked(Effect):
    """The same, measured; with the accuracy by position in points, and what mean and gap of it change, in points with
    95 % intervals over examples that hold for all changes that were made together (Bonferroni). That of the gap is of
    the change without what chance adds (`statistics.gap_difference`)."""

    accuracy: list[float]
    accuracy_mean: float
    accuracy_mean_ci95: tuple[float, float]
    accuracy_gap: float
    accuracy_gap_ci95: tuple[float, float]


class Advised(Record):
    """A change, by its gates [L][H] (settings of the mitigation head-gates), with what the gradient predicts of it and,
    if it was made, what was measured on other examples."""

    name: str
    gates: list[list[float]]
    predicted: Effect
    measured: Checked | None = None


class Advice(Record):
    """`log_probability` and `accuracy` [P] are the model's as it is, on the examples that the changes are checked on;
    `pull` [L][H] is what each head's gate adds to the log-probability at the first position beyond what it adds on
    average elsewhere. `changes` are all that were considered, the flattest first by prediction; `agreement` is
    Spearman's correlation of what the gradient predicts and measurement over those that were made."""

    label: str
    model: str
    task: str
    n_docs: int
    positions: list[int]
    examples: dict[str, int]
    log_probability: list[float]
    accuracy: list[float]
    pull: list[list[float]]
    changes: list[Advised]
    agreement: dict[str, float | None]
    summary: str
    settings: dict[str, Any]


def changes(by_gate: np.ndarray, weak: np.ndarray) -> list[Change]:
    """Each head, and each layer's attention as a whole, turned down and up; and all heads along `weak [L, H]`, the
    gradient of the weaker half of the responses. `by_gate` is [E, P, L, H]."""
    n_layers, n_heads = by_gate.shape[2:]
    found = []
    for amount in TURNED:
        word = f"{'down' if amount < 0 else 'up'} by {abs(amount):g}"
        for layer in range(n_layers):
            whole = np.zeros((n_layers, n_heads))
            whole[layer] = amount
            found.append(Change(f"attention of layer {layer + 1} {word}", whole))
            for head in range(n_heads):
                single = np.zeros((n_layers, n_heads))
                single[layer, head] = amount
                found.append(Change(f"layer {layer + 1} head {head + 1} {word}", single))
    for step in STEPS:
        along = np.array(turned(weak, step).gates) - 1
        found.append(Change(f"all heads along the gradient, the greatest by {step:g}", along))
    return found


def predicted(change: Change, by_gate: np.ndarray, log_probability: np.ndarray) -> Effect:
    """The first-order effect of a change, from `by_gate [E, P, L, H]` and `log_probability [E, P]`."""
    before = log_probability.mean(axis=0)
    moved = np.einsum("eplh,lh->ep", by_gate, change.change).mean(axis=0)
    return Effect(mean=float(moved.mean()), gap=float(np.ptp(before + moved) - np.ptp(before)))


def first_pull(by_gate: np.ndarray) -> np.ndarray:
    """What each head's gate adds at the first position that was asked beyond its average at the others, [L, H]."""
    at = by_gate.mean(axis=0)
    return at[0] - at[1:].mean(axis=0)


def to_check(ranked: Sequence[Advised], number: int) -> list[int]:
    """Which changes are really made: the first `number`, and as many spread evenly over the others, down to the last,
    so that agreement is seen over the whole range."""
    if number >= len(ranked):
        return list(range(len(ranked)))
    spread = np.linspace(number, len(ranked) - 1, number).round().astype(int)
    return sorted({*range(number), *spread.tolist()})


def agreement(made: Sequence[Advised]) -> dict[str, float | None]:
    """Spearman's correlation of changes of log-probability as the gradient predicts them and as they were measured: of
    the `mean` and of the `gap`."""
    figures: dict[str, float | None] = {}
    for name in ("mean", "gap"):
        rows = [(getattr(each.predicted, name), getattr(each.measured, name)) for each in made if each.measured]
        value = float(spearman(*np.transpose(rows))) if len(rows) > 2 else float("nan")
        figures[name] = None if np.isnan(value) else value
    return figures


def summary_text(
    advice_changes: Sequence[Advised], pull: np.ndarray, agreed: dict[str, float | None], accuracy: np.ndarray
) -> str:
    """What to take from it, in words."""
    layer, head = np.unravel_index(np.argmax(pull), pull.shape)
    said = (
        f"layer {layer + 1} head {head + 1} pulls most to the first position: its gate adds {pull[layer, head]:.2f} "
        "nats more there than elsewhere"
    )
    made = [each for each in advice_changes if each.measured]
    if not made:
        return f"{said}; no change was made to check what is predicted"
    known = {name: "is not defined" if value is None else f"{value:.2f}" for name, value in agreed.items()}
    said += (
        f"; over {len(made)} changes that were made, predicted and measured effects agree with Spearman "
        f"{known['mean']} (mean log-probability) and {known['gap']} (its gap)"
    )
    if not (best := flattest(made)) or not (measured := best.measured):
        return f"{said}; none of them is for certain flatter without a lower mean, all {len(made)} taken together"
    gap, mean = float(np.ptp(accuracy)), float(np.mean(accuracy))
    return (
        f"{said}; the flattest of those that are so for certain, all taken together, is {best.name}: gap {gap:.1f} to "
        f"{gap + measured.accuracy_gap:.1f} points, mean {mean:.1f} to {mean + measured.accuracy_mean:.1f}"
    )


def flattest(advice_changes: Sequence[Advised]) -> Advised | None:
    """Of the changes that were made and are for certain flatter, without a mean that is for certain lower, the
    flattest, and of equally flat ones that with the greatest mean; None where there is none."""
    best, least = None, (0.0, 0.0)
    for each in advice_changes:
        measured = each.measured
        if not measured or not measured.accuracy_gap_ci95[1] < 0 <= measured.accuracy_mean_ci95[1]:
            continue
        if (figures := (measured.accuracy_gap, -measured.accuracy_mean)) < least:
            best, least = each, figures
    return best


def advice_figure(advice: Advice) -> Figure:
    """Plots each head's pull to the first position, predicted against measured changes, and accuracy by position as it
    is and under the flattest change that was made."""
    figure, (heads, agreeing, curve) = plt.subplots(1, 3, figsize=(13, 4.2), dpi=144, layout="constrained")
    pull = np.array(advice.pull)
    most = float(np.abs(pull).max()) or 1.0
    n_layers, n_heads = pull.shape
    picture = heads.imshow(
        pull, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest",
        extent=(0.5, n_heads + 0.5, n_layers + 0.5, 0.5),
    )  # fmt: skip
    figure.colorbar(picture, ax=heads)
    heads.set(title="pull to the first position, nats a gate", xlabel="head", ylabel="layer")
    for axis in (heads.xaxis, heads.yaxis):
        axis.get_major_locator().set_params(integer=True)
    made = [each for each in advice.changes if each.measured]
    for name, color in zip(("mean", "gap"), COLORS):
        x = [getattr(each.predicted, name) for each in made]
        y = [getattr(each.measured, name) for each in made]
        agreeing.scatter(x, y, s=16, color=color, label=name)
    agreeing.axline((0, 0), slope=1, color="#94a3b8", linewidth=1, linestyle="--")
    styled(
        agreeing, title="change of the log-probability, nats", xlabel="predicted", ylabel="measured on other examples"
    )
    agreeing.legend(frameon=False)
    curve.plot(advice.positions, advice.accuracy, color=COLORS[0], marker="o", markersize=3, label="as it is")
    if (best := flattest(made)) and best.measured:
        curve.plot(advice.positions, best.measured.accuracy, color=COLORS[1], marker="o", markersize=3, label=best.name)
    styled(curve, title="accuracy by gold position, %", xlabel="gold position", ylim=(0, 103))
    curve.legend(frameon=False, fontsize=8)
    return figure
