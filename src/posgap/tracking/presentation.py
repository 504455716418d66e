"""Shows people a registered version in MLflow: short tags, a description with the curve, and figures.

MLflow lists a version's tags by name, so those for people have short names, which stand before `posgap.*`.
"""

import logging
from pathlib import Path

from posgap.foundation.locations import MODELS
from posgap.foundation.printing import printable
from posgap.measurement.model_card import position_gap, write_model_card
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions
from posgap.tracking.runs import Run
from posgap.tracking.server import MAX_CHARACTERS, TrackingError, call_mlflow
from posgap.tracking.sweeps import log_sweep

log = logging.getLogger(__name__)
SHOWN = METHOD, GAP, MEAN, WORST, GATE, POLICY, DATA, GUARDS = (
    "method", "gap", "mean", "worst", "gate", "policy", "data", "guards",
)  # fmt: skip
OF_RUN = METHOD, GATE, POLICY, DATA, GUARDS  # those that the run gets too; it has the figures as metrics
CARD_FILE, CURVE_FILE = "model_card.md", "curve.png"
# MLflow's pages keep the line breaks.
_ABOUT = """Models that posgap's gate admitted: their accuracy depends little on where in the prompt the answer lies.
The alias `champion` is the one to use: `posgap.load_model("models:/{name}@champion")`.
`posgap view models:/{name}` says how it came to that.
"""


def short_tags(sweep: Sweep, method: str, outcome: str, policy: str) -> dict[str, str]:
    """A version's tags for people; `outcome` is the gate's, `policy` names the one that admitted it. Figures are in
    points, with their 95 % intervals. What others named has escapes for what is not to be printed."""
    tags = {
        METHOD: method or "none",
        GAP: _with_interval(sweep.gap, sweep.gap_ci95),
        MEAN: _with_interval(sweep.mean, sweep.mean_ci95),
        WORST: f"{sweep.worst.accuracy:.1f} at {format_positions(sweep.worst.placement)}",
        GATE: outcome,
        POLICY: policy,
        DATA: f"{sweep.task}, {sweep.sample_text}, {sweep.examples_digest[:12]}",
    }
    return {name: printable(value) for name, value in tags.items()}


def write_pages(sweep: Sweep, out: Path) -> None:
    """Writes what the description shows and names, `curve.png` and `model_card.md`, to be among the run's files."""
    from posgap.measurement.plots import picture_of, save_picture

    save_picture(picture_of([sweep]), out / CURVE_FILE, dots_per_inch=90)
    write_model_card(sweep, out / CARD_FILE)


def describe_version(name: str, version: str, sweep: Sweep, run: Run, judged_on: str, trained: str) -> None:
    """Gives a version its description, and logs the sweep's figures for its logged model and for the run that promoted
    it. A registered model without a description gets one. `judged_on` says on what the version was judged, `trained`
    what its training's history says, if anything.

    The run has the files of `write_pages`. If MLflow does not answer, it only warns.
    """
    # Lists of versions show the first line, as it is.
    head = f"Gap {_with_interval(sweep.gap, sweep.gap_ci95)}, mean {_with_interval(sweep.mean, sweep.mean_ci95)}."
    picture = f"![Accuracy at each position](get-artifact?run_uuid={run.id}&path={CURVE_FILE})"
    training = f"Held-out figures by its training's history: {trained}.\n\n" if trained else ""
    text = f"{head}\n\nThe verdict was {judged_on}.\n\n{training}{position_gap(sweep)}\n{picture}\n"[:MAX_CHARACTERS]
    source = ""
    try:
        source = call_mlflow(lambda client: client.update_model_version(name, version, text)).source or ""
        if not call_mlflow(lambda client: client.get_registered_model(name)).description:
            call_mlflow(lambda client: client.update_registered_model(name, _ABOUT.format(name=name)))
    except TrackingError as error:
        log.warning("%s version %s is without its description: %s", name, version, error)
    log_sweep(sweep, run, source.removeprefix(MODELS) if source.startswith(MODELS) else "")


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1f} ({interval[0]:.1f} to {interval[1]:.1f})"
