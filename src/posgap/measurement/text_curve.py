"""A sweep's curve as lines of text, for a terminal or a report that shows no pictures."""

from posgap.foundation.printing import join_lines
from posgap.measurement.statistics import ends
from posgap.measurement.summary import position_sentence
from posgap.measurement.sweeps import Sweep

WIDTH = 40  # characters of a bar at 100 %
MAX_LINES = 60
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def sweep_text(sweep: Sweep) -> str:
    """Returns what a terminal shows of a sweep: the curve with its baselines, the figures, and whether position
    matters."""
    figures = (
        f"gap {sweep.gap:.1f} points ({ends(sweep.gap_ci95)}), mean {sweep.mean:.1f} ({ends(sweep.mean_ci95)}), of "
        f"{sweep.sample_text} of the task {sweep.task} with {sweep.n_docs} documents"
    )
    unanswered = sweep.outcomes.phrase(sweep.placements) if sweep.outcomes else ""
    baselines = [f"{name}: {figure.accuracy:.1f} ({ends(figure.ci95)})" for name, figure in sweep.baselines.items()]
    figures = "; ".join(filter(None, [figures, unanswered]))
    return "\n".join([text_curve(sweep), join_lines([*baselines, "", figures, position_sentence(sweep)])])


def text_curve(sweep: Sweep) -> str:
    """A line for each placement: its name, a bar, its accuracy and 95 % interval in percent; best and worst are marked.

    With more than 60 placements, evenly spaced ones are shown, the best and the worst among them.
    """
    best, worst = (sweep.placements.index(place) for place in (sweep.advantageous, sweep.worst.placement))
    step = -(-len(sweep.placements) // MAX_LINES)
    shown = sorted({*range(0, len(sweep.placements), step), len(sweep.placements) - 1, best, worst})
    marks = {best: "  best", worst: "  worst"} if best != worst else {}
    width = max(len(name) for name in sweep.placement_names)
    lines = [
        f"{sweep.placement_names[at]:>{width}} {_bar(sweep.accuracy[at])} {sweep.accuracy[at]:5.1f} "
        f"({sweep.ci95[at][0]:.1f} to {sweep.ci95[at][1]:.1f}){marks.get(at, '')}"
        for at in shown
    ]
    left_out = len(sweep.placements) - len(shown)
    return "\n".join([*lines, *([f"and {left_out} placements between these"] if left_out else [])])


def _bar(accuracy: float) -> str:
    """Returns a bar of `WIDTH` characters that is filled to the accuracy, to an eighth of a character."""
    whole, eighths = divmod(round(8 * WIDTH * accuracy / 100), 8)
    return (_EIGHTHS[8] * whole + _EIGHTHS[eighths] * (eighths > 0)).ljust(WIDTH)
