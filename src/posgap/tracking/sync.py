"""`posgap sync`: sends to MLflow what runs could not send, and cleans up what killed commands left there."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from posgap.foundation import tables
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import is_uri
from posgap.foundation.printing import show
from posgap.storage.folders import local_copy
from posgap.tracking.champions import utc
from posgap.tracking.config import SyncConfig
from posgap.tracking.left_behind import left_behind
from posgap.tracking.outbox import Entry, Outbox, place_of, places_below
from posgap.tracking.server import CALL_SECONDS, VERB, is_tracking

_SHOWN = {"kind": "what", "name": "which", "since": "since (UTC)", "becomes": "becomes"}  # headings, by names in JSON


def sync(config: SyncConfig) -> None:
    """Sends all that is kept beside the outputs, or anywhere below the folders, and prints a line for each run.

    `PosgapError` where MLflow does not take it; what is not sent then stays where it is. `left_behind` is done last.
    """
    sent: list[dict[str, str]] = []
    for place in sorted(set(chain.from_iterable(map(_places, config.folders)))):
        for outbox in Outbox.left_behind(place):
            try:
                _send_outbox(outbox, place, sent)
            finally:
                outbox.close()
    if config.left_behind:
        _clean_up(config, sent)
    elif not sent:
        show("nothing is left to send", {"sent": []})


def _places(folder: Path | str) -> Iterator[Path]:
    here = local_copy(folder)
    beside = place_of(here.absolute())
    if beside.is_dir():
        yield beside
    elif not here.is_dir() and not is_uri(folder):
        raise PosgapError(f"{folder}: no such folder")
    yield from places_below(here)


def _send_outbox(outbox: Outbox, place: Path, sent: list[dict[str, str]]) -> None:
    opening, last = outbox.opening, outbox.pending[-1]
    if not is_tracking():
        raise PosgapError(f"{place}: holds a run for {opening.server}: set MLFLOW_TRACKING_URI to that, or to another")
    while outbox.pending:
        outbox.send_next(VERB, CALL_SECONDS)
    outbox.delete()
    ended = ((isinstance(last, Entry) and last.end) or "open").lower()
    sent.append({"output": str(place), "run": opening.name, "ended": ended, "mlflow_run_id": str(outbox.run_id)})
    show(f"{place}: {opening.name}, {ended}: is in MLflow as {outbox.run_id}", {"sent": sent})


def _clean_up(config: SyncConfig, sent: list[dict[str, str]]) -> None:
    """Prints as a Markdown table what killed commands left behind in MLflow, and removes it if `config` says so."""
    remains, remove = left_behind(config.name, config.older_than), config.left_behind == "remove"
    rows = [[each.kind, each.name, utc(each.since), each.becomes] for each in remains]
    for each in remains if remove else ():
        each.remove()
    unchanged = "" if remove else "\n\nNothing was changed. With --left-behind remove it is."
    table = f"{tables.markdown(list(_SHOWN.values()), rows, left=len(_SHOWN))}{unchanged}"
    listed = [dict(zip(_SHOWN, row, strict=True)) for row in rows]
    show(table if rows else "nothing was left behind", {"sent": sent, "remains": listed, "removed": remove})
