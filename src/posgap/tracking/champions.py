"""Who is champion of a registered model: aliases that move one change at a time, and a record that is only added to.

A change is written down before it is made, and recorded afterwards. If it breaks off between two writes, the next
holder of the lease completes it. Everything that writes here does so under the lease of the name.
"""

import logging
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import RegisteredModel
from posgap.foundation.json_text import parse_json
from posgap.tracking import leases
from posgap.tracking.leases import Lease
from posgap.tracking.server import look_up

log = logging.getLogger(__name__)
CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
CHANGE = "posgap.champion."  # how tags of a registered model begin that record a change of its champion
UNDER_WAY = "posgap.change_under_way"  # tag of a registered model: the change in progress
ROLLED_BACK = "rolled back: "  # how the reason of a rollback begins
MOVES = 5  # of an alias, after which MLflow is not believed any more
ELSEWHERE = "noticed: moved by something else than posgap"


class Change(BaseModel):
    """A change of the champion: when (UTC), from which version to which, and why.

    `previous` is the version of the alias `previous` afterwards, and `run` the MLflow run that promoted; empty if there
    is none. `tag` records the change.
    """

    model_config = ConfigDict(extra="forbid")

    tag: str
    at: str
    version: str
    before: str
    previous: str = ""
    why: str
    run: str = ""

    def tag_value(self) -> str:
        """The value of its tag."""
        return self.model_dump_json(exclude={"tag"})


def in_turn(name: str, work: "Callable[[Lease, Change | None], leases.T]") -> leases.T:
    """Calls `work` under the lease of a registered model, and returns what it returns. A change that another process
    left unfinished is completed before, and is its second argument."""
    return leases.in_turn(name, lambda lease: work(lease, repair(lease)))


def utc(milliseconds: float) -> str:
    """A moment in milliseconds since 1970, for people."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def alias_version(model: RegisteredModel, alias: str) -> str:
    """The version that has an alias; empty if there is none."""
    return str(model.aliases.get(alias, ""))


def changes(model: RegisteredModel) -> list[dict[str, Any]]:
    """Each change of the champion, in order: when (`at`, UTC), to which `version`, from which `before`, and `why`."""
    return list(_changes_by_tag(model).values())


def _changes_by_tag(model: RegisteredModel) -> dict[str, dict[str, Any]]:
    recorded = {}
    for tag in sorted(filter(_moment, model.tags), key=lambda tag: (_moment(tag), tag)):
        change = parse_json(model.tags[tag], f"{model.name}: tag {tag}")
        if isinstance(change, dict):
            recorded[tag] = change
    return recorded


def rolled_back(model: RegisteredModel) -> dict[str, str]:
    """Returns the versions that a rollback ended last, with its record."""
    ended: dict[str, str] = {}
    for change in changes(model):
        ended[str(change.get("before", ""))] = str(change.get("why", ""))
        ended.pop(str(change.get("version", "")), None)
    return {version: why for version, why in ended.items() if why.startswith(ROLLED_BACK)}


def ended_by(model: RegisteredModel, version: str) -> str:
    """The tag that records the last end of a version's reign; empty if it has none."""
    ends = [tag for tag, change in _changes_by_tag(model).items() if str(change.get("before", "")) == version]
    return ends[-1] if ends else ""


def set_champion(lease: Lease, version: str, why: str, previous: str = "", run: str = "") -> Change:
    """Makes a version the champion. The alias `previous` moves to the version `previous`, or is removed if that is
    empty. The alias `champion` has a version at every moment.
    """
    change = _change(lease.read_model(), version, previous, why, run)
    lease.send_change(lambda client: client.set_registered_model_tag(lease.name, UNDER_WAY, change.model_dump_json()))
    _complete(lease, change)
    return change


def repair(lease: Lease) -> Change | None:
    """Repairs what an earlier process, or somebody by hand, left behind; returns the change that it completed, if any.

    It completes an unfinished change. It replaces a champion that was deleted by the previous one. If `previous` is the
    champion itself, the alias moves to the champion before. A change that was made elsewhere is recorded.
    """
    model = lease.read_model()
    completed = _complete_what_is_under_way(lease, model)
    for alias, version in _overwritten(lease, model).items():
        lease.set_alias(alias, version)
    model = lease.read_model()
    champion = alias_version(model, CHAMPION)
    previous = alias_version(model, PREVIOUS)
    recorded = changes(model)
    last = str(recorded[-1].get("version", "")) if recorded else ""
    if not champion and last and previous and not _is_there(lease.name, last):
        log.warning("%s: its champion, version %s, was deleted; version %s follows", lease.name, last, previous)
        set_champion(lease, previous, f"version {last} was deleted", _before(lease.name, recorded, {previous}))
    elif champion and last and champion != last:
        change = _change(model, champion, previous, ELSEWHERE, before=last)
        lease.send_change(lambda client: client.set_registered_model_tag(lease.name, change.tag, change.tag_value()))
    if champion and champion == previous:
        lease.set_alias(PREVIOUS, _before(lease.name, recorded, {champion}))
    return completed


def _complete_what_is_under_way(lease: Lease, model: RegisteredModel) -> Change | None:
    text = model.tags.get(UNDER_WAY)
    if not text:
        return None
    try:
        change = Change.model_validate_json(text)
    except ValidationError:
        change = None
    # A request that arrived after its sender had given up is older than the last record, or is about a champion other
    # than today's.
    if (
        change
        and _moment(change.tag) > _last_moment(model)
        and alias_version(model, CHAMPION) in (change.before, change.version)
        and _is_there(lease.name, change.version)
    ):
        log.warning(
            "%s: an earlier command was interrupted; making version %s the champion", lease.name, change.version
        )
        _complete(lease, change)
        return change
    lease.send_change(lambda client: client.delete_registered_model_tag(lease.name, UNDER_WAY))
    return None


def _complete(lease: Lease, change: Change) -> None:
    meant = {PREVIOUS: change.previous, CHAMPION: change.version}
    for _ in range(MOVES):
        wrong = [alias for alias, version in meant.items() if alias_version(lease.read_model(), alias) != version]
        if not wrong:
            break
        for alias in wrong:
            lease.set_alias(alias, meant[alias])
            lease.read_model()
        lease.await_inflight()
    else:
        raise PosgapError(f"{lease.name}: MLflow accepted the aliases {' and '.join(wrong)}, but does not have them")
    lease.send_change(lambda client: client.set_registered_model_tag(lease.name, change.tag, change.tag_value()))
    lease.send_change(lambda client: client.delete_registered_model_tag(lease.name, UNDER_WAY))


def _overwritten(lease: Lease, model: RegisteredModel) -> dict[str, str]:
    """The recorded versions of aliases that this process may have overwritten after it lost the lease."""
    recorded = changes(model) if lease.stale else []
    overwritten = {}
    for alias, key in ((CHAMPION, "version"), (PREVIOUS, "previous")):
        if recorded and key in recorded[-1] and alias in lease.stale:
            meant = str(recorded[-1][key])
            if alias_version(model, alias) == lease.stale[alias] != meant:
                overwritten[alias] = meant
    return overwritten


def _change(
    model: RegisteredModel, version: str, previous: str, why: str, run: str = "", before: str | None = None
) -> Change:
    """Returns a change with a moment after all recorded ones, even if the machines' clocks differ."""
    milliseconds = max(int(1000 * time.time()), _last_moment(model) + 1)
    return Change(
        tag=f"{CHANGE}{milliseconds}-{uuid.uuid4().hex[:8]}",
        at=utc(milliseconds),
        version=version,
        before=alias_version(model, CHAMPION) if before is None else before,
        previous=previous,
        why=why,
        run=run,
    )


def _last_moment(model: RegisteredModel) -> int:
    """The moment of the last recorded change, in milliseconds; 0 if there is none."""
    return max(map(_moment, model.tags), default=0)


def _moment(tag: str) -> int:
    """The moment in the name of a change's tag; 0 for another tag."""
    moment = tag.removeprefix(CHANGE).partition("-")[0]
    return int(moment) if tag.startswith(CHANGE) and moment.isdecimal() else 0


def _before(name: str, recorded: list[dict[str, Any]], but: set[str]) -> str:
    """The last champion that still exists and is none of `but`; empty if there is none."""
    for change in reversed(recorded):
        for version in (str(change.get("version", "")), str(change.get("before", ""))):
            if version and version not in but and _is_there(name, version):
                return version
    return ""


def _is_there(name: str, version: str) -> bool:
    return look_up(lambda client: client.get_model_version(name, version)) is not None
