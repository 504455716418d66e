"""A record that several processes change: a JSON object in a file, here or in S3, of which no change is lost.

It is replaced only if it has not changed since it was read. If two processes change it at once, one wins, and the other
reads it again. In S3 a conditional put (If-Match, If-None-Match) ensures that; on a disk a lock, between processes that
share a cache.
"""

import json
import os
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.json_text import parse_json
from posgap.foundation.locations import Location, is_uri
from posgap.storage.cache import lock_mark
from posgap.storage.objects import get, put_if

Record = dict[str, Any]
LOOKS = 30  # at a record that others replace all the time
MAX_WAIT = 0.5  # seconds between two of them
_ID = "id"  # of a change, by which its writer knows it again


def read_shared_record(place: Location) -> Record | None:
    """The record at `place`; None if there is none, and `PosgapError` if it is no JSON object."""
    return _read_with_etag(place)[0]


def amend(place: Location, change: Callable[[Record | None], Record | None]) -> Record | None:
    """Replaces the record at `place` by what `change` makes of it; returns the record that is there afterwards.

    `change` gets None if there is no record, and returns None to leave the record as it is. If another process replaced
    the record meanwhile, it is called again with the new one. `PosgapError` if that never ends, and if S3 ignores
    conditions, so that a change could be lost.
    """
    if not is_uri(place):
        with lock_mark(files.digest_of(["record", os.path.realpath(place)])[:16]):
            standing = read_shared_record(place)
            wanted = change(standing)
            if wanted:
                with files.atomic(Path(place)) as partial:
                    partial.write_bytes(_body(wanted))
            return wanted or standing
    mark = uuid.uuid4().hex
    for _ in range(LOOKS):
        standing, etag = _read_with_etag(place)
        if standing and standing.get(_ID) == mark:
            return standing  # S3 had written it, and its answer was lost on the way
        wanted = change(standing)
        if not wanted:
            return standing
        wanted = wanted | {_ID: mark}
        if put_if(place, _body(wanted), etag):
            _require_conditions(place, wanted)
            return wanted
        time.sleep(random.uniform(0, MAX_WAIT))
    raise PosgapError(f"{place}: others replace it all the time; run the same command again")


def _require_conditions(place: Location, written: Record) -> None:
    """Writes the record once more, on the condition that none exists: raises `PosgapError` if S3 does so, since it then
    ignores conditions."""
    if put_if(str(place), _body(written), ""):
        raise PosgapError(
            f"{place}: is written, but this S3 server takes no heed of If-None-Match, so that of two writers both may "
            "think that theirs is there; let one at a time write it, or use a server that knows conditional puts"
        )


def _read_with_etag(place: Location) -> tuple[Record | None, str]:
    """The record, and its ETag if it is in S3."""
    if is_uri(place):
        stored = get(str(place))
        if not stored:
            return None, ""
        content, etag = stored
    elif Path(place).exists():
        content, etag = Path(place).read_bytes(), ""
    else:
        return None, ""
    try:
        record = parse_json(content, str(place))
    except PosgapError:
        record = None
    if not isinstance(record, dict):
        raise PosgapError(f"{place}: holds no JSON object; remove it, and run the same command again")
    return record, etag


def _body(record: Record) -> bytes:
    return json.dumps(record, indent=2).encode() + b"\n"
