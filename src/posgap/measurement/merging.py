"""One sweep of its parts: sweeps of one model on the same examples, each of other placements."""

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
from pydantic import Field

from posgap.foundation.errors import NotAlike, PosgapError
from posgap.foundation.files import Record, parse_as
from posgap.generation.served import MUST_STAY, EndpointIdentity
from posgap.measurement.comparability import list_differences
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import baseline_scores, baselines_of, summarize
from posgap.measurement.outcomes import OutcomeCounts, Outcomes
from posgap.measurement.predictions import Prediction, read_predictions, swept_rows
from posgap.measurement.spending import TokenTotals
from posgap.measurement.sweeps import Sweep
from posgap.tasks.fields import Shard
from posgap.tasks.positions import format_positions, parse_shard

_ALIKE = ("groups", "label", "model_digest", "ancestors", "prompt_digest")  # besides the settings
_TAKEN_OVER = {*_ALIKE[1:], "model", "scaling", "task", "metric", "n_docs", "examples_digest"}
_TAKEN_OVER |= {"asked", "filled", "mitigation", "definition"}
_APART = {"placements", "shard", "positions"}  # in which parts differ


class _PartSettings(Record):
    """The settings of a sweep that decide how parts go together."""

    positions: list[str]
    seed: int = Field(ge=0)
    shard: Shard = ""
    max_unanswered: float = 0.0


def _read_settings(part: Evidence) -> _PartSettings:
    return parse_as(_PartSettings, part.sweep.settings, f"{part.path}: settings")


def merge_sweeps(parts: Sequence[Evidence], without_effect: Collection[str] = ()) -> tuple[Sweep, list[Prediction]]:
    """Returns the whole sweep and its predictions, in the order of a single sweep.

    Parts may differ in settings `without_effect` on figures. Raises `PosgapError` if the parts belong to different
    sweeps, overlap, or are incomplete.
    """
    parts = _in_order(parts)
    first, *others = parts
    for other in others:
        _require_alike(first, other, without_effect)
    most_unanswered = max(_read_settings(part).max_unanswered for part in parts)
    settings = first.sweep.settings | {"shard": "", "positions": _positions(parts), "max_unanswered": most_unanswered}
    placements: list[list[int]] = []
    categories: list[str] = []
    outcomes: list[OutcomeCounts] = []
    for part in parts:
        for placement in part.sweep.placements:
            if placement in placements:
                raise PosgapError(f"placement {format_positions(placement)} was swept in two parts; leave one out")
            placements.append(placement)
        categories += part.sweep.categories
        outcomes += part.outcomes.by_placement
    scores = np.concatenate([part.scores for part in parts], axis=1)
    predictions = _predictions(parts)
    baselines = baseline_scores(predictions, first.ids, first.sweep.asked.samples, first.path)
    whole = Sweep(
        **first.sweep.model_dump(include=_TAKEN_OVER),
        **summarize(scores, placements, _read_settings(first).seed, categories, first.sample),
        served=EndpointIdentity.combine(part.sweep.served for part in parts),
        spent=TokenTotals.combine(part.sweep.spent for part in parts),
        baselines=baselines_of(baselines, first.sample.average(scores), first.sample),
        outcomes=Outcomes.at(outcomes),
        settings=settings,
    )
    return whole, predictions


def _in_order(parts: Sequence[Evidence]) -> list[Evidence]:
    """Shards in their order, all of them; other parts as they were given."""
    shards = [_read_settings(part).shard for part in parts]
    if not all(shards):
        return list(parts)
    numbered: dict[tuple[int, int], Evidence] = {}
    for shard, part in zip(shards, parts):
        if parse_shard(shard) in numbered:
            raise PosgapError(f"shard {shard} is given twice; leave one out")
        numbered[parse_shard(shard)] = part
    _, count = max(numbered, key=lambda shard: shard[1])
    missing = [f"{number}/{count}" for number in range(1, count + 1) if (number, count) not in numbered]
    if missing:
        raise PosgapError(f"shards {', '.join(shards)}: {', '.join(missing)} is missing")
    return [part for _, part in sorted(numbered.items(), key=lambda item: item[0])]


def _require_alike(first: Evidence, other: Evidence, without_effect: Collection[str]) -> None:
    names = [name for name in _ALIKE if getattr(first.sweep, name) != getattr(other.sweep, name)]
    names += list_differences(first.sweep, other.sweep)
    settings = first.sweep.settings
    others = other.sweep.settings
    names += [name for name in settings if name not in without_effect and settings[name] != others.get(name)]
    names += _endpoint_differences(first.sweep, other.sweep)
    if (first.ids, first.contents) != (other.ids, other.contents):
        names.append("examples")
    names = [name for name in dict.fromkeys(names) if name not in _APART]
    if names:
        raise NotAlike(f"not parts of one sweep; {', '.join(names)} differ", at=f"{first.path} and {other.path}")


def _endpoint_differences(sweep: Sweep, other: Sweep) -> list[str]:
    """Returns what must be equal at both endpoints and is not."""
    if not sweep.served or not other.served:
        return []
    names = []
    for what in MUST_STAY.get(sweep.settings.get("identity", ""), ()):
        one = set(sweep.served.values_of(what))
        another = set(other.served.values_of(what))
        if one and another and one != another:
            names.append(f"the endpoint's {what}")
    return names


def _positions(parts: Sequence[Evidence]) -> list[str]:
    """Returns `positions` of an unsharded sweep: the shards' value, or the parts' values joined."""
    by_part = [_read_settings(part).positions for part in parts]
    return by_part[0] if all(positions == by_part[0] for positions in by_part) else list(chain.from_iterable(by_part))


def _predictions(parts: Sequence[Evidence]) -> list[Prediction]:
    """Yields predictions one example after the other, then those of the first part that has baselines."""
    rows: dict[str, list[Prediction]] = {}
    of_parts = [read_predictions(part.path) for part in parts]
    for row in chain.from_iterable(map(swept_rows, of_parts)):
        rows.setdefault(row["id"], []).append(row)
    for of_part in of_parts:
        baselines = [row for row in of_part if "baseline" in row]
        if baselines:
            break
    return [*chain.from_iterable(rows.values()), *baselines]
