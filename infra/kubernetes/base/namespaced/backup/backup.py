"""Backups of MLflow's database in S3: `python backup.py save|fetch FILE`.

The dumps themselves are PostgreSQL's (`pg_dump`, `pg_restore`). Here one is sent below a URI under the time of its
sending, or the newest, or a named one, is brought back.
"""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.storage import client
from posgap.storage.cache import fetch_location
from posgap.storage.folders import upload_path
from posgap.storage.objects import list_objects

WHERE = "POSGAP_BACKUPS"
SUFFIX = ".dump"


def save(file: Path, uri: str) -> str:
    """Sends a dump to `uri`; returns where it is, like s3://lab/backup/2026-11-23T02-17-05Z.dump.

    Names sort by time. `PosgapError` where the file is missing or empty, or S3 refuses.
    """
    if not file.is_file() or not file.stat().st_size:
        raise PosgapError(f"{file}: no dump, or an empty one; nothing was saved")
    saved = f"{uri}/{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}{SUFFIX}"
    upload_path(file, saved)
    return saved


def bring(uri: str, name: str, file: Path) -> str:
    """Brings the dump of this name, or with an empty one the newest, into `file`; returns where it was.

    Its content is compared with the sha256 that was stated when it was sent. `PosgapError` where there is none.
    """
    names = [stored.name for stored in list_objects(uri) if stored.name.endswith(SUFFIX)]
    if not names or (name and name not in names):
        raise PosgapError(f"{uri}: no backup{f' {name}; there are {names}' if names else ''}")
    chosen = f"{uri}/{name or max(names)}"
    shutil.copyfile(fetch_location(chosen), file)
    return chosen


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python backup.py", description=__doc__)
    parser.add_argument("verb", choices=["save", "fetch"])
    parser.add_argument("file", type=Path, help="the dump on this machine")
    parser.add_argument("--uri", default=os.environ.get(WHERE, ""), help=f"where the backups are; {WHERE}")
    parser.add_argument("--name", default="", help="of the backup to fetch; the newest unless told")
    given = parser.parse_args(words)
    if not given.uri.startswith("s3://"):
        raise PosgapError(f"{given.uri or WHERE}: give the URI below which the backups are, like s3://lab/backup")
    # A network plugin that enforces the rules may know a new pod only after its first second.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    client.UNREACHED = client.RETRY_POLICY
    uri = given.uri.rstrip("/")
    print(save(given.file, uri) if given.verb == "save" else bring(uri, given.name, given.file))


if __name__ == "__main__":
    try:
        main()
    except PosgapError as error:
        sys.exit(f"posgap: error: {error}")
