"""The history of a registered model: its versions, which was champion when and why, and the way back."""

import logging
from itertools import zip_longest
from typing import Any

from posgap.foundation import tables
from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.tracking import champions, registry
from posgap.tracking.champions import CHAMPION, PREVIOUS, Change
from posgap.tracking.leases import Lease
from posgap.tracking.presentation import GATE, SHOWN

log = logging.getLogger(__name__)
# The fields of a version and of a change of the champion, as JSON names them, with their headings.
_VERSION = {"version": "version", "registered": "registered (UTC)", "aliases": "aliases"}
_VERSION |= {name: name for name in SHOWN} | {"champion": "champion (UTC)"}
_CHANGE = {"at": "since (UTC)", "before": "before", "version": "champion", "why": "why"}


def show_history(name: str) -> None:
    """Prints, as Markdown, a table of the versions of a registered model and one of the changes of its champion."""
    model = registry.required_model(name)
    changes = champions.changes(model)
    versions = []
    for version in sorted(registry.versions(name), key=lambda version: int(version.version)):
        number = str(version.version)
        aliases = ", ".join(sorted(alias for alias, aliased in model.aliases.items() if str(aliased) == number))
        figures = {tag: version.tags.get(tag, "") for tag in SHOWN}
        if figures[GATE] and not registry.is_judged_here(version):
            figures[GATE] = f"not judged for {name}"
        first = {"version": number, "registered": champions.utc(version.creation_timestamp), "aliases": aliases}
        versions.append(first | figures | {"champion": _reign(number, changes)})
    shown = [{key: str(change.get(key, "")) for key in _CHANGE} for change in changes]
    text = _table(_VERSION, versions)
    if shown:
        text += f"\n\n{_table(_CHANGE, shown)}"
    show(text, {"name": name, "versions": versions, "changes": shown})


def _table(headings: dict[str, str], rows: list[dict[str, str]]) -> str:
    return tables.markdown(list(headings.values()), [list(row.values()) for row in rows], left=len(headings))


def _reign(version: str, changes: list[dict[str, Any]]) -> str:
    """From when to when a version was champion, each time."""
    reigns = []
    for change, following in zip_longest(changes, changes[1:], fillvalue={"at": "now"}):
        if str(change.get("version", "")) == version:
            reigns.append(f"{change.get('at', '')} to {following.get('at', '')}")
    return ", ".join(reigns)


def restore_previous(name: str, reason: str) -> Change:
    """Makes the previous champion the champion again, and the present one the previous one; returns the change."""
    if registry.registered_model(name) is None:
        raise PosgapError(f"{name}: no version has the alias `{CHAMPION}`; there is nothing to go back to")
    why = champions.ROLLED_BACK + reason

    def back(lease: Lease, completed: Change | None) -> Change:
        # The same command, which was killed, was completed now: once is enough.
        if completed and completed.why == why:
            return completed
        former, target = (champions.alias_version(lease.read_model(), alias) for alias in (CHAMPION, PREVIOUS))
        if not former or not target:
            missing = PREVIOUS if former else CHAMPION
            raise PosgapError(f"{name}: no version has the alias `{missing}`; there is nothing to go back to")
        return champions.set_champion(lease, target, why, former)

    return champions.in_turn(name, back)
