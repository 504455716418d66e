"""Downloads public data files into the cache, and checks them."""

import hashlib
import logging
import os
import shutil
import time
import zipfile
from pathlib import Path

from posgap.data.sources import Source
from posgap.foundation.errors import Contradiction, Malformed, NoServer, Refused
from posgap.foundation.files import atomic, digest_path, write_text
from posgap.foundation.locations import cache_folder
from posgap.foundation.retries import RetryPolicy, TransientError, Waits, retrying

log = logging.getLogger(__name__)
SECONDS = 60.0  # how long an answer may take to begin, and a download may pause
BYTES_PER_SECOND = 20_000  # below this rate a download fails
_AS_IT_IS = {"Accept-Encoding": "identity"}  # checksums are of unmodified files
RETRY_POLICY = RetryPolicy(tries=4, longest_wait=10)


def fetch_source(source: Source) -> Path:
    """The source's file in the cache, downloaded unless it is there and complete.

    A download must have the published checksum. If none is published, the sha256 of the first download is trusted and
    later downloads must have the same; it is kept beside the file, as `<file>.sha256`. Raises `PosgapError`, and keeps
    nothing, if the download fails or has another checksum.
    """
    path = cache_folder() / source.file
    record = path.with_name(f"{path.name}.sha256")
    recorded = record.read_text().split()[0] if record.is_file() else ""
    if path.is_file() and recorded == digest_path(path):
        log.info("%s: in the cache", path)
        return path
    with atomic(path) as partial:
        _download(source.url, partial)
        _require_checksum(source, partial)
        if source.member:
            _unpack(source, partial)
        sha256 = digest_path(partial)
        if recorded not in ("", sha256) and not source.checksum:
            raise Contradiction(
                f"its sha256 is {sha256}, not {recorded} as at the first download; the file was not kept. Remove "
                f"{record} to accept the new file",
                at=source.url,
            )
        write_text(record, f"{sha256}  {path.name}\n")
    how = "checked" if source.checksum else f"recorded in {record.name}, since none is published"
    log.info("%s: %.1f MB, sha256 %s, %s", path, path.stat().st_size / 1e6, sha256, how)
    return path


def checksum(path: Path, algorithm: str) -> str:
    """A file's checksum by the algorithm "sha256", "md5" or "git" (its blob id in git)."""
    with open(path, "rb") as file:
        if algorithm != "git":
            return hashlib.file_digest(file, algorithm).hexdigest()
        blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        return hashlib.file_digest(file, lambda: blob).hexdigest()


def _require_checksum(source: Source, downloaded: Path) -> None:
    if not source.checksum:
        return
    algorithm, _, wanted = source.checksum.partition(":")
    actual = checksum(downloaded, algorithm)
    if actual != wanted:
        raise Contradiction(f"its {algorithm} checksum is {actual}, not {wanted}; the file was not kept", at=source.url)


def _unpack(source: Source, archive: Path) -> None:
    """Replaces the archive by the member that the source names."""
    unpacked = archive.with_name(f"{archive.name}.member")
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(source.member) as member, open(unpacked, "wb") as file:
            shutil.copyfileobj(member, file)
        os.replace(unpacked, archive)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Malformed(f"holds no {source.member}: {error}", at=source.url) from None
    finally:
        unpacked.unlink(missing_ok=True)


def _download(url: str, path: Path) -> None:
    import httpx2

    def once() -> None:
        began = time.monotonic()
        size = 0
        try:
            with (
                open(path, "wb") as file,
                httpx2.stream("GET", url, headers=_AS_IT_IS, follow_redirects=True, timeout=SECONDS) as answer,
            ):
                answer.raise_for_status()
                for chunk in answer.iter_raw():
                    size += file.write(chunk)
                    if time.monotonic() - began > SECONDS + size / BYTES_PER_SECOND:
                        raise TransientError(f"the download is too slow: {size} bytes in more than {SECONDS:g} s")
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            complaint = f"cannot be downloaded: HTTP {status} {error.response.reason_phrase}"
            if status in (408, 429) or status >= 500:
                raise TransientError(complaint) from None
            raise Refused(complaint, at=url) from None
        except (httpx2.ConnectError, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
            raise NoServer(f"cannot be downloaded ({error}); is there a network?", at=url) from None
        except httpx2.HTTPError as error:
            raise TransientError(f"cannot be downloaded ({str(error) or type(error).__name__})") from None

    try:
        retrying(RETRY_POLICY, Waits(url))(once)
    except TransientError as error:
        raise NoServer(f"{error}; try again later", at=url) from None
