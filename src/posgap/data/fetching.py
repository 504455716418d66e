"""How public data files come into the cache."""

import hashlib
import http.client
import logging
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from posgap.config.sources import Source
from posgap.errors import PosgapError
from posgap.files import atomic, digest
from posgap.locations import cache_folder

log = logging.getLogger(__name__)
SECONDS = 60  # without a byte, after which a download is given up


def fetched(source: Source) -> Path:
    """The source's file in the cache, downloaded unless it is there whole.

    What is downloaded must have the published checksum. Where none is published, the sha256 of the first
    download is trusted, and later ones must have that. It is kept beside the file, as `<file>.sha256`.
    `PosgapError` says what went wrong, and nothing is kept then.
    """
    path = cache_folder() / source.file
    record = path.with_name(f"{path.name}.sha256")
    known = record.read_text().split()[0] if record.is_file() else ""
    if path.is_file() and known == digest(path):
        log.info("%s: in the cache", path)
        return path
    with atomic(path) as partial:
        _download(source.url, partial)
        _check(source, partial)
        if source.member:
            _unpack(source, partial)
        found = digest(partial)
        if known not in ("", found) and not source.checksum:
            raise PosgapError(
                f"{source.url}: its sha256 is {found}, not {known} as when it was first downloaded; the file was not "
                f"kept. Remove {record} to take the new one"
            )
        with atomic(record) as written:
            written.write_text(f"{found}  {path.name}\n")
    how = "checked" if source.checksum else f"recorded in {record.name}, for lack of a published one"
    log.info("%s: %.1f MB, sha256 %s, %s", path, path.stat().st_size / 1e6, found, how)
    return path


def checksum(path: Path, algorithm: str) -> str:
    """Of a file, by "sha256", "md5", or "git": the id that git gives it as a blob."""
    if algorithm == "git":
        sha = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        sha = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def _check(source: Source, downloaded: Path) -> None:
    if not source.checksum:
        return
    algorithm, _, wanted = source.checksum.partition(":")
    if (found := checksum(downloaded, algorithm)) != wanted:
        raise PosgapError(f"{source.url}: its {algorithm} checksum is {found}, not {wanted}; the file was not kept")


def _unpack(source: Source, archive: Path) -> None:
    """Puts the member in the archive's place."""
    unpacked = archive.with_name(f"{archive.name}.member")
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(source.member) as member, open(unpacked, "wb") as file:
            shutil.copyfileobj(member, file)
        os.replace(unpacked, archive)
    except (zipfile.BadZipFile, KeyError) as error:
        raise PosgapError(f"{source.url}: holds no {source.member}: {error}") from None
    finally:
        unpacked.unlink(missing_ok=True)


def _download(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "posgap"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer, open(path, "wb") as file:
            shutil.copyfileobj(answer, file)
            length = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        error.close()
        raise PosgapError(f"{url}: cannot be downloaded: HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise PosgapError(f"{url}: cannot be downloaded ({reason}); is there a network?") from None
    if length and int(length) != path.stat().st_size:
        raise PosgapError(f"{url}: the download broke off after {path.stat().st_size} of {length} bytes; try again")
