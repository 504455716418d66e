"""Moving files to and from S3: in parts, several at once, in bounded memory, with progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from posgap.foundation.errors import Unreadable
from posgap.foundation.files import digest_path
from posgap.foundation.locations import split_uri
from posgap.foundation.progress import meter
from posgap.storage.client import client, explain_errors
from posgap.storage.objects import SHA256, Object

MB = 1 << 20
PART = 64 * MB  # of at most 10,000: objects up to 640 GB
THREADS = 8  # and so at most THREADS parts in memory
WORTH_SHOWING = 64 * MB


def download(wanted: Sequence[tuple[Object, Path]], what: str, accept: Callable[[Object, Path], None]) -> None:
    """Downloads objects to paths; calls `accept` with each one that is complete.

    An object that has changed since it was listed is refused.
    """
    from s3transfer.subscribers import BaseSubscriber

    class PinnedVersion(BaseSubscriber):
        def __init__(self, stored: Object):
            self.stored = stored

        def on_queued(self, future: Any, **_: Any) -> None:
            # Makes s3transfer request this size and this ETag, and not whatever is there by then.
            future.meta.provide_transfer_size(self.stored.size)
            future.meta.provide_object_etag(f'"{self.stored.etag}"')

    if not wanted:
        return
    # Smallest first: an interrupted download then keeps as many whole files as possible.
    ordered = sorted(wanted, key=lambda pair: pair[0].size)
    # s3transfer sends the ETag only with ranges, so even a small object is read as one.
    size = sum(stored.size for stored, _ in ordered)
    with _transfers(f"download of {what}", size, threshold=1) as (manager, counting):
        futures = [
            manager.download(stored.bucket, stored.key, str(path), subscribers=[PinnedVersion(stored), counting])
            for stored, path in ordered
        ]
        for future, (stored, path) in zip(futures, ordered):
            with explain_errors(stored.uri):
                future.result()
            accept(stored, path)


def require_sha256(stored: Object, path: Path, stated: str) -> str:
    """The sha256 of the file that arrived at `path`; `PosgapError` if the object's metadata state another."""
    sha256 = digest_path(path)
    if stated not in ("", sha256):
        raise Unreadable(
            f"checksum mismatch: the sha256 is {sha256}, and {stated} in its metadata; upload it again", at=stored.uri
        )
    return sha256


def upload_files(files: Sequence[tuple[Path, str, str]], what: str) -> None:
    """Uploads files, given each with its sha256 and its URI; the sha256 goes into the object's metadata."""
    if not files:
        return
    total = sum(path.stat().st_size for path, _, _ in files)
    with _transfers(f"upload of {what}", total, threshold=PART) as (manager, counting):
        futures = [
            manager.upload(
                str(path), *split_uri(uri), extra_args={"Metadata": {SHA256: sha256}}, subscribers=[counting]
            )
            for path, sha256, uri in files
        ]
        for future, (_, _, uri) in zip(futures, files):
            with explain_errors(uri):
                future.result()


@contextmanager
def _transfers(what: str, total: int, threshold: int) -> Iterator[tuple[Any, Any]]:
    """A transfer manager, and what counts the bytes it moves; files of `threshold` bytes move in parts."""
    from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager

    settings = TransferConfig(multipart_threshold=threshold, multipart_chunksize=PART, max_concurrency=THREADS)
    shown = meter(total, f"{what} (MB)", MB) if total >= WORTH_SHOWING else nullcontext(lambda more: None)
    # An exception in it cancels running transfers, and aborts multipart uploads.
    with shown as add, create_transfer_manager(client(), settings) as manager:
        yield manager, ProgressCallbackInvoker(add)
