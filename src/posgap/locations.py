"""Where files are: on this machine, as a `Path`, or in S3, as the text `s3://bucket/key`.

What is in S3 is worked on in the cache, at a path that ends in the bucket and the key: the URI can
be read off it again.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any, TypeGuard

Location = Path | str  # text is a URI
SCHEME = "s3://"


def cache_folder() -> Path:
    """POSGAP_CACHE, else `posgap` in the user's cache folder (XDG_CACHE_HOME, ~/.cache), else a temporary place."""
    if given := os.environ.get("POSGAP_CACHE"):
        return Path(given)
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "posgap"
    try:
        return Path.home() / ".cache" / "posgap"
    except RuntimeError:  # a container's user without a home
        return Path(tempfile.gettempdir()) / "posgap"


def s3_cache() -> Path:
    """What of S3 is on this machine, and what goes there."""
    return cache_folder().absolute() / "s3"


def blobs() -> Path:
    """Files of S3 under the name of their sha256."""
    return s3_cache() / "blobs"


def is_uri(location: object) -> TypeGuard[str]:
    """Whether this is the text of a URI; other text names a model on the hub."""
    return isinstance(location, str) and location.startswith(SCHEME)


def as_location(value: Any) -> Any:
    """A URI as text, without a slash at its end; everything else becomes a path.

    `Path("s3://bucket/key")`, which has lost a slash, is taken for the URI. Raises `ValueError`
    where a URI names no bucket.
    """
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    if not text.startswith("s3:/"):
        return Path(value)
    bucket, _, key = text.removeprefix("s3:/").removeprefix("/").rstrip("/").partition("/")
    if not bucket or ".." in key.split("/"):
        raise ValueError("write s3://bucket/key")
    return f"{SCHEME}{bucket}/{key}".rstrip("/")


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of a URI; the key is empty where all of a bucket is meant."""
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    return bucket, key


def below(location: Location, name: str) -> Location:
    """The place of this name in a folder."""
    return f"{location}/{name}" if is_uri(location) else Path(location) / name


def in_cache(kind: str, mark: str, uri: str) -> Path:
    """Where a URI's files are on this machine: a place for each `kind` and `mark` of 16 hex digits."""
    return s3_cache() / kind / mark / uri.removeprefix(SCHEME)


def with_uris(text: str) -> str:
    """The text with the URIs in place of the paths that stand for them in the cache."""
    return re.sub(re.escape(str(s3_cache())) + r"/\w+/[0-9a-f]{16}/", SCHEME, str(text))
