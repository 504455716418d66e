"""What became of a registered model: its versions, which was champion when and why, and the way back."""

import logging
from typing import TYPE_CHECKING, Any

from posgap.foundation import tables
from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import RESULT, set_result
from posgap.foundation.printing import show as show_result
from posgap.tracking import champions, registry
from posgap.tracking.champions import CHAMPION, PREVIOUS, Change
from posgap.tracking.config import HistoryConfig, RollbackConfig
from posgap.tracking.leases import Lease
from posgap.tracking.presentation import SHOWN

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)
# The fields of a version and of a change of the champion, as JSON names them, with their headings.
_VERSION = {"version": "version", "registered": "registered (UTC)", "aliases": "aliases"}
_VERSION |= {name: name for name in SHOWN} | {"champion": "champion (UTC)"}
_CHANGE = {"at": "since (UTC)", "before": "before", "version": "champion", "why": "why"}


def show(config: HistoryConfig) -> None:
    """Prints, as Markdown, a table of the versions of a registered model and one of the changes of its champion."""
    model = registry.required_model(config.name)
    aliases: dict[str, list[str]] = {}
    for alias, number in model.aliases.items():
        aliases.setdefault(str(number), []).append(alias)
    versions = sorted(registry.versions(config.name), key=lambda version: int(version.version))
    changes = champions.changes(model)
    rows = [
        [*_version_row(version, aliases.get(str(version.version), [])), _reign(str(version.version), changes)]
        for version in versions
    ]
    parts = [tables.markdown(list(_VERSION.values()), rows, left=len(_VERSION))]
    if changes:
        shown = [[str(change.get(key, "")) for key in _CHANGE] for change in changes]
        parts.append(tables.markdown(list(_CHANGE.values()), shown, left=4))
    result = {"name": config.name, "versions": [dict(zip(_VERSION, row, strict=True)) for row in rows]}
    show_result(
        "\n\n".join(parts),
        result | {"changes": [{key: str(change.get(key, "")) for key in _CHANGE} for change in changes]},
    )


def _version_row(version: "ModelVersion", aliases: list[str]) -> list[str]:
    shown = [version.tags.get(name, "") for name in SHOWN]
    return [str(version.version), champions.utc(version.creation_timestamp), ", ".join(sorted(aliases)), *shown]


def _reign(version: str, changes: list[dict[str, Any]]) -> str:
    """From when to when a version was champion, each time."""
    ends = [str(change.get("at", "")) for change in changes[1:]] + ["now"]
    return ", ".join(f"{change.get('at', '')} to {end}" for change, end in zip(changes, ends)
                     if str(change.get("version", "")) == version)  # fmt: skip


def rollback(config: RollbackConfig) -> None:
    """Makes the previous champion the champion again, and the present one the previous one."""
    if registry.registered_model(config.name) is None:
        raise PosgapError(f"{config.name}: no version has the alias `{CHAMPION}`; there is nothing to go back to")
    why = champions.ROLLED_BACK + config.reason

    def back(lease: Lease, completed: Change | None) -> Change:
        # The same command, which was killed, was completed now: once is enough.
        if completed and completed.why == why:
            return completed
        former, target = (champions.alias_version(lease.read_model(), alias) for alias in (CHAMPION, PREVIOUS))
        if not former or not target:
            missing = PREVIOUS if former else CHAMPION
            raise PosgapError(f"{config.name}: no version has the alias `{missing}`; there is nothing to go back to")
        return champions.set_champion(lease, target, why, former)

    change = champions.in_turn(config.name, back)
    champions.mark_rolled_back(config.name, change)
    again, previous = change.version, change.previous
    set_result({"name": config.name, "champion": again, "previous": previous})
    words = "%s: version %s is the champion again, and version %s the previous one"
    log.log(RESULT, words, config.name, again, previous)
