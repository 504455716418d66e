"""Reads held-out examples and plain text from a training's history: the names of figures, the best step, a line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from posgap.foundation.errors import Malformed
from posgap.foundation.files import read_jsonl
from posgap.storage.inputs import read_manifest

WORST, MEAN, NATS, TEXT = "eval_worst", "eval_accuracy", "eval_nats", "eval_text_nats"
BEFORE = "_before"  # suffix of figures that were measured before the first step
HISTORY_FILE = "history.jsonl"
History = Sequence[Mapping[str, float]]
_SHOWN = (
    (WORST, "worst position", "{:.1f} %"),
    (MEAN, "mean", "{:.1f} %"),
    (TEXT, "plain text", "{:.3f} nats a token"),
)


def best_step(history: History) -> int:
    """Returns the step with the best worst placement, among equals with the fewest nats; 0 if none was measured."""
    measured = [row for row in history if WORST in row]
    if not measured:
        return 0
    return int(max(measured, key=lambda row: (row[WORST], -row[NATS], row["step"]))["step"])


def describe(history: History, keep: str = "last") -> str:
    """Reports the measurements before training and for the model that it kept, in a line; empty if there are none."""
    kept = history[best_step(history) - 1 if keep == "best" else -1]
    parts = []
    for name, words, form in _SHOWN:
        if name in kept:
            before = history[0].get(name + BEFORE)
            was = "" if before is None else f"{form.format(before)} before, "
            parts.append(f"{words} {was}{form.format(kept[name])} after")
    return "; ".join(parts)


def describe_training(model: Path) -> str:
    """Returns what the history in a model's folder says that was measured in training, in a line; empty if it says
    nothing. Raises `PosgapError` if it holds anything but numbers."""
    file = model / HISTORY_FILE
    history = [row for _, row in read_jsonl(file)] if file.is_file() else []
    for number, row in enumerate(history, start=1):
        if not all(isinstance(figure, int | float) for figure in row.values()):
            raise Malformed("expected only numbers, as `distill` writes them", at=f"{file}:{number}")
    return describe(history, read_manifest(model).get("config", {}).get("keep", "last")) if history else ""
