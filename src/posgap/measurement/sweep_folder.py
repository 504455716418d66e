"""The folder of a sweep, whether it was swept at once or merged from parts."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from posgap.foundation.files import write_json, write_jsonl
from posgap.measurement.model_card import write_model_card
from posgap.measurement.page_examples import PageExamples
from posgap.measurement.predictions import PREDICTIONS_FILE, Prediction
from posgap.measurement.report import write_report
from posgap.measurement.sweeps import SWEEP_FILE, SWEEP_PAGE, Sweep
from posgap.storage.lineage import write_training_examples


def write_sweep(
    sweep: Sweep, predictions: Sequence[Prediction], learnt: Iterable[str], out: Path, explored: PageExamples
) -> None:
    """Writes `sweep.json`, `predictions.jsonl`, `training_examples.json`, `sweep.png`, `sweep.html` and
    `model_card.md`. `learnt` are the contents of the examples that the model was trained on, `explored` is what the
    page holds of the examples."""
    write_evidence(sweep, predictions, learnt, out)
    write_readable(sweep, out, explored)


def write_evidence(sweep: Sweep, predictions: Sequence[Prediction], learnt: Iterable[str], out: Path) -> None:
    """Writes of these files those that a gate reads: the first three."""
    write_jsonl(out / PREDICTIONS_FILE, predictions)
    write_training_examples(out, learnt)
    # Leave out the category fields if there is one gold document.
    write_json(out / SWEEP_FILE, sweep.model_dump(mode="json", exclude_defaults=True))


def write_readable(sweep: Sweep, out: Path, explored: PageExamples) -> None:
    """Writes what people read of a sweep: `sweep.png`, `sweep.html` and `model_card.md`."""
    write_report([sweep], out / "sweep.png", out / SWEEP_PAGE, sweep.title, explored)
    write_model_card(sweep, out / "model_card.md")
