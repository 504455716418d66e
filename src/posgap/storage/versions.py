"""Data versions: files and folders of one series, told apart by a date or a number in their names.

`train-2026-11-20.jsonl.gz`, `v=2026-11-20/`, `v1.10.0/`. A folder counts as soon as it holds `manifest.json` or
`_SUCCESS`, which mark it as complete; a file counts as soon as it exists, since files appear atomically. The newest
version has the highest date or number, regardless of when it was written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

from posgap.foundation.errors import BadOption, NotFound
from posgap.foundation.locations import Location, as_location, is_address, is_uri, split_uri
from posgap.storage.cache import INCOMPLETE, MANIFEST
from posgap.storage.client import client, explain_errors
from posgap.storage.objects import head

COMPLETE = (MANIFEST, "_SUCCESS")
# A version ends a name, except for suffixes or a folder's slash; the part before it is the series.
_END = r"(?:/|(?:\.[A-Za-z][\w-]*)*)"
_DATED = re.compile(rf"(?P<series>(?:.*\D)?)(?P<version>\d{{4}}-\d\d-\d\d(?:T\d\d-?\d\d(?:-?\d\d)?Z?)?){_END}")
_NUMBERED = re.compile(rf"(?P<series>(?:.*[-_=])?v?)(?P<version>\d+(?:\.\d+){{0,3}}){_END}")


@dataclass(frozen=True)
class Version:
    """One version: its name, like `2026-11-20` or `1.10.0`, and its place."""

    name: str
    location: Location
    series: str
    is_folder: bool

    @property
    def order(self) -> tuple[bool, list[int]]:
        """Dates stand apart from numbers; 1.10 comes after 1.9, and 1.2 before 1.2.0."""
        if _is_date(self.name):
            return True, [int(re.sub(r"\D", "", self.name).ljust(len("YYYYmmddHHMMSS"), "0"))]
        return False, [int(part) for part in self.name.split(".")]

    def is_complete(self) -> bool:
        return not self.is_folder or (
            any(_is_there(self.location, name) for name in COMPLETE) and not _is_there(self.location, INCOMPLETE)
        )


def newest(prefix: str) -> Version:
    """Returns the newest complete version whose place begins with `prefix`, or the released one, on this machine or in
    S3.

    `prefix` is a folder, or a folder and the beginning of names in it. It can also be a file, a complete folder without
    versions, or the address of a file; each of these is its own only version. Raises `PosgapError` if there is none, or
    if it is unclear which is newest: with names of several series, dates beside numbers, or two of one version.
    """
    if is_address(prefix):
        return _itself(prefix)
    names = list(_entries(prefix))
    beginning = prefix.rpartition("/")[2]
    if beginning and f"{beginning}/" in names:
        return newest(f"{prefix}/")
    if beginning in names:
        return _itself(prefix)
    versions = list(filter(None, map(partial(parse_version, prefix), names)))
    if not versions and not beginning and INCOMPLETE not in names and set(COMPLETE) & set(names):
        return _itself(prefix)
    series = {version.series for version in versions}
    if len(series) > 1:
        named = ", ".join(sorted(series))
        raise BadOption(f"versions of {len(series)} series ({named}): give the beginning of one's names", at=prefix)
    if len({version.order[0] for version in versions}) > 1:
        raise BadOption("dates and numbers, which have no common order: name all versions one way", at=prefix)
    for version in sorted(versions, key=lambda version: version.order, reverse=True):
        if version.is_complete():
            same = [other for other in versions if other.order == version.order and other.is_complete()]
            if len(same) > 1:
                named = " and ".join(sorted(str(other.location) for other in same))
                raise BadOption(f"{named} name one version; remove one, or give more of its name", at=prefix)
            return version
    named = "no file or folder there is named by a date or number" if names else "no file or folder begins so"
    reason = f"of {len(versions)} none is complete" if versions else named
    raise NotFound(f"no data version: {reason} ({' or '.join(COMPLETE)} completes a folder)", at=prefix)


def _itself(prefix: str) -> Version:
    place = prefix.rstrip("/")
    name = place.rpartition("/")[2]
    return parse_version(place, name) or Version(name, as_location(place), "", place != prefix)


def parse_version(prefix: str, name: str) -> Version | None:
    """The version that an entry is, a folder if it ends in a slash; None if its name holds no version."""
    parts = _DATED.fullmatch(name) or _NUMBERED.fullmatch(name)
    if not parts or name.startswith(".") or (parts.re is _DATED and not _is_date(parts["version"])):
        return None
    folder = prefix[: prefix.rfind("/") + 1]
    return Version(parts["version"], as_location(folder + name.rstrip("/")), parts["series"], name.endswith("/"))


def _is_date(version: str) -> bool:
    try:
        return "-" in version and bool(date.fromisoformat(version[:10]))
    except ValueError:
        return False


def _entries(prefix: str) -> Iterator[str]:
    """Returns the names that begin with `prefix`, without their folder; a folder's name ends in a slash."""
    if not is_uri(prefix):
        folder, slash, beginning = prefix.rpartition("/")
        at = Path(folder + slash)
        if not at.is_dir():
            raise NotFound("no such folder", at=prefix)
        for path in at.iterdir():
            if path.name.startswith(beginning):
                yield path.name + ("/" if path.is_dir() else "")
        return
    bucket, key = split_uri(prefix)
    start = key.rfind("/") + 1
    with explain_errors(prefix):
        pages = client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key, Delimiter="/")
        for page in pages:
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"][start:]
            for entry in page.get("Contents", ()):
                if entry["Key"][start:]:  # a folder's placeholder has no name below it
                    yield entry["Key"][start:]


def _is_there(folder: Location, name: str) -> bool:
    return head(f"{folder}/{name}") is not None if is_uri(folder) else (Path(folder) / name).is_file()
