"""What a training's history says of held-out examples and plain text: the names of figures, the best step, a line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from posgap.foundation.files import read_jsonl
from posgap.storage.inputs import read_manifest

WORST, MEAN, NATS, TEXT = "eval_worst", "eval_accuracy", "eval_nats", "eval_text_nats"
BEFORE = "_before"  # behind the names of what was measured before the first step
HISTORY_FILE = "history.jsonl"
History = Sequence[Mapping[str, float]]


def best_step(history: History) -> int:
    """The step after which the worst placement was best, with the fewest nats among equals; 0 if none was measured."""
    measured = [row for row in history if WORST in row]
    if not measured:
        return 0
    return int(max(measured, key=lambda row: (row[WORST], -row[NATS], row["step"]))["step"])


def describe(history: History, keep: str = "last") -> str:
    """What was measured before training, and of the model that it kept, in a line; empty if nothing was."""
    first = history[0]
    last = history[(best_step(history) if keep == "best" else 0) - 1]
    parts = []
    for name, words, form in (
        (WORST, "worst position", "{:.1f} %"),
        (MEAN, "mean", "{:.1f} %"),
        (TEXT, "plain text", "{:.3f} nats a token"),
    ):
        if name in last:
            before = first.get(name + BEFORE)
            was = "" if before is None else f"{form.format(before)} before, "
            parts.append(f"{words} {was}{form.format(last[name])} after")
    return f"held out: {'; '.join(parts)}" if parts else ""


def describe_training(model: Path) -> str:
    """Returns what was measured while the model of this folder was trained, in a line; empty if nothing was."""
    file = model / HISTORY_FILE
    if not file.is_file():
        return ""
    return describe([row for _, row in read_jsonl(file)], read_manifest(model).get("config", {}).get("keep", "last"))
