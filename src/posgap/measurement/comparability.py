"""Checks whether two sweeps are comparable, which `merge`, `compare` and `gate` require before they put figures side by
side."""

import json
from collections.abc import Callable, Collection
from typing import Any, get_args

from posgap.foundation.errors import NotAlike
from posgap.foundation.fields import Allowable
from posgap.foundation.files import digest_of
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweeps import Sweep
from posgap.tasks.metrics import METRICS
from posgap.tasks.positions import format_positions

ALLOWABLE: tuple[str, ...] = get_args(Allowable)
_SHOWN = 12  # characters of a digest
_ASKED: dict[str, Callable[[Sweep], Any]] = {
    "task": lambda sweep: sweep.task + _beside_wording(sweep),
    "metric": lambda sweep: sweep.metric,
    "n_docs": lambda sweep: sweep.n_docs,
    "examples": lambda sweep: sweep.examples_digest[:_SHOWN],
    "placements": lambda sweep: " ".join(map(format_positions, sweep.placements)),
    "prompt": lambda sweep: sweep.asked.prompt[:_SHOWN],
    "template": lambda sweep: sweep.asked.template[:_SHOWN] or "none",
    "question": lambda sweep: sweep.asked.question,
    "shuffle": lambda sweep: sweep.asked.shuffle,
    "max_new_tokens": lambda sweep: sweep.asked.max_new_tokens,
    "decoding": lambda sweep: sweep.asked.decoding,
    "system": lambda sweep: digest_of(sweep.asked.system)[:_SHOWN] if sweep.asked.system else "none",
    "template_args": lambda sweep: json.dumps(sweep.asked.template_args, sort_keys=True),
    "max_thinking_tokens": lambda sweep: sweep.asked.max_thinking_tokens,
    "stop": lambda sweep: json.dumps([text for text in sweep.asked.stop if text not in _without_effect(sweep)]),
    "date": lambda sweep: sweep.asked.date or "none",
    "body": lambda sweep: json.dumps(sweep.asked.body, sort_keys=True),
    "dtype": lambda sweep: sweep.asked.dtype or "not known",
    "backend": lambda sweep: _backend(sweep),
    "filling": lambda sweep: _filling(sweep) if sweep.filled else "none",
}


def _beside_wording(sweep: Sweep) -> str:
    """Returns settings from a task's own file that no prompt and no metric shows, by name and digest; empty if there
    are none."""
    said = json.loads(sweep.definition) if sweep.definition else {}
    beside = {name: said[name] for name in sorted(said) if name in ("chance", "closed_book", "target", "one_wording")}
    return f" with {' and '.join(beside)} {digest_of(beside)[:_SHOWN]}" if beside else ""


def _backend(sweep: Sweep) -> str:
    """Returns the backend and class of device that answered a sweep; each rounds in its own way."""
    backend = sweep.settings.get("backend", "not known")
    return f"{backend} on {sweep.asked.device}" if sweep.asked.device else backend


def _filling(sweep: Sweep) -> str:
    """Returns the length to which prompts were filled, at which depths, and from what. Tokens are counted by the
    model's own tokenizer; a share of the context is kept as a share."""
    of = sweep.filled
    assert of
    depths = "/".join(f"{depth:g}" for depth in of.depths)
    return f"{of.length} at {depths} from {of.pool[:_SHOWN]} by {of.seed}" + ("" if of.whole else ", the last one cut")


def _without_effect(sweep: Sweep) -> Collection[str]:
    """Returns the stop strings that change no score by the sweep's metric; the metric's package may be missing here."""
    return METRICS[sweep.metric].stop if sweep.metric in METRICS.names() else ()


def list_differences(sweep: Sweep, other: Sweep) -> list[str]:
    """Returns the names of the settings in which two sweeps differ; the user may allow those in `ALLOWABLE`."""
    return [name for name, of in _ASKED.items() if of(sweep) != of(other)]


def align_comparable(sweep: Evidence, reference: Evidence, allow: Collection[str] = ()) -> tuple[Evidence, list[str]]:
    """Returns the sweep with its examples in the order of the reference's, and the allowed differences of settings.

    Raises `PosgapError` that names the other differences.
    """
    names = list_differences(sweep.sweep, reference.sweep)
    others = [name for name in names if name not in allow]
    if others:
        differences = ", ".join(
            f"{name} ({_ASKED[name](sweep.sweep)}, not {_ASKED[name](reference.sweep)})" for name in others
        )
        meant = ",".join(name for name in names if name in ALLOWABLE)
        hint = f"; if you intend the difference, give --allow {meant}" if set(others) <= {*ALLOWABLE} else ""
        raise NotAlike(
            f"not asked alike: {differences}; sweep both models in one way{hint}",
            at=f"{sweep.path} and {reference.path}",
        )
    return sweep.reorder_like(reference), names
