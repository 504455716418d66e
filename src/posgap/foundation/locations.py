"""Locations of files: on this machine, as a `Path`; in S3, as the text `s3://bucket/key`; or at an address that is only
read, as the text `hf://datasets/owner/name/file`.

Files in S3 are processed in the cache, at a path that ends in the bucket and the key, so that the URI can be recovered
from the path.
"""

import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

Location = Path | str  # text is a URI
SCHEME = "s3://"
# Beginnings of addresses that are read and never written, and the package that reads each for fsspec.
READERS = {
    "hf": "huggingface_hub",
    "gs": "gcsfs",
    "az": "adlfs",
    "https": "aiohttp",
    "http": "aiohttp",
    "memory": "fsspec",  # what this process holds, under a name
}
_ADDRESS = re.compile(rf"({'|'.join(READERS)}):/{{1,2}}(.*)", re.DOTALL)
# Folders in which another program has put files by the rest of their URI, as pairs like /s3/=s3://, separated by
# spaces.
MOUNTS_VARIABLE = "POSGAP_MOUNTS"
MODELS = "models:/"  # in MLflow, before a registered model's name and version, or the id of a logged model


def cache_folder() -> Path:
    """POSGAP_CACHE, or `posgap` in the user's cache folder (XDG_CACHE_HOME, ~/.cache) or else in a temporary one."""
    if os.environ.get("POSGAP_CACHE"):
        return Path(os.environ["POSGAP_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "posgap"
    try:
        return Path.home() / ".cache" / "posgap"
    except RuntimeError:  # a container's user without a home
        return Path(tempfile.gettempdir()) / "posgap"


def s3_cache() -> Path:
    """The folder of local copies of files in S3, and of files on their way there."""
    return cache_folder().absolute() / "s3"


def blobs() -> Path:
    """The folder of downloaded files, each named by its sha256."""
    return s3_cache() / "blobs"


def registered_cache() -> Path:
    """The folder of downloaded models of MLflow's registry: `<mark>/<name>/<version>`."""
    return cache_folder().absolute() / "registered"


def addressed_cache() -> Path:
    """The folder of files that were read at an address: `<mark>/<scheme>/<the rest of the address>`."""
    return cache_folder().absolute() / "addressed"


def is_registered(location: object) -> TypeGuard[str]:
    """Whether this names a model in MLflow's registry."""
    return isinstance(location, str) and location.startswith(MODELS)


def is_uri(location: object) -> TypeGuard[str]:
    """Whether this is an S3 URI; other text is the name of a model on the hub."""
    return isinstance(location, str) and location.startswith(SCHEME)


def is_address(location: object) -> TypeGuard[str]:
    """Whether this is the address of a file that can be read, and not be written."""
    return isinstance(location, str) and bool(_ADDRESS.fullmatch(location))


def is_hub_name(text: str) -> bool:
    """Returns whether this can name a model on the hub: `gpt2`, `owner/model`, `owner/model@revision`. A text counts as
    a path if it begins with an existing folder, or if the hub does not accept it as a name."""
    name, _, _ = text.partition("@")
    owner, slash, _ = name.partition("/")
    part = r"\w(?:[\w.-]{0,94}\w)?"
    if not re.fullmatch(rf"({part}/)?{part}", name, re.ASCII) or re.search(r"--|\.\.|\.git$", name):
        return False
    return not (slash and Path(owner).is_dir())


def as_location(value: Any) -> Any:
    """Returns an S3 URI or the address of a file as text without a slash at its end, and other text as a path, which
    may begin with `~`.

    `Path("s3://bucket/key")`, which has lost a slash, is accepted as the URI. Raises `ValueError` if a URI names no
    bucket, or if an address contains more than a file's place: it is recorded in manifests, so it must not hold a
    password.
    """
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    address = _ADDRESS.fullmatch(text)
    if address:
        scheme = address[1]
        rest = address[2].strip("/")
        parts = rest.split("/")
        if not parts[0] or "@" in parts[0] or ".." in parts or re.search(r"[?#\s\0]|::", rest):
            raise ValueError(f"write {scheme}://, and then the file's place, without a user, a password or a ?query")
        return f"{scheme}://{rest}"
    if not text.startswith("s3:/"):
        return at_home(Path(value))
    bucket, _, key = text.removeprefix("s3:/").removeprefix("/").rstrip("/").partition("/")
    if not bucket or ".." in key.split("/"):
        raise ValueError("write s3://bucket/key")
    return f"{SCHEME}{bucket}/{key}".rstrip("/")


def at_home(path: Path) -> Path:
    """The path with its `~`, which a shell leaves in `--out=~/run`, replaced by the folder that it stands for."""
    try:
        return path.expanduser()
    except RuntimeError:  # of a user unknown here
        return path


def split_uri(uri: str) -> tuple[str, str]:
    """The bucket and key of a URI; the key is empty if the URI is a whole bucket."""
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    return bucket, key


def below(location: Location, name: str) -> Location:
    """The location of the entry `name` in the folder `location`."""
    return f"{location}/{name}" if is_uri(location) else Path(location) / name


def in_cache(kind: str, mark: str, uri: str) -> Path:
    """The local folder of a URI's files, separate for each `kind` of use and each `mark` of 16 hex digits."""
    return s3_cache() / kind / mark / uri.removeprefix(SCHEME)


def page_address(folder: Location, name: str) -> str:
    """Returns the address of a page in a folder, as a browser opens it."""
    place = with_uris(str(below(folder, name)))
    return place if is_uri(place) else Path(place).resolve().as_uri()


def add_mount(folder: str, scheme: str) -> None:
    """Tells this process, and those that it starts, that `folder` holds the files of `scheme`: /s3/ for s3://."""
    pair = f"{folder}={scheme}"
    pairs = os.environ.get(MOUNTS_VARIABLE, "").split()
    if pair not in pairs:
        os.environ[MOUNTS_VARIABLE] = " ".join([*pairs, pair])


def with_uris(text: str) -> str:
    """The text with paths in the cache, and below `add_mount`'s folders, replaced by the URIs that they stand for."""
    for pair in os.environ.get(MOUNTS_VARIABLE, "").split():
        folder, _, scheme = pair.partition("=")
        text = re.sub(r"(?<![\w./-])" + re.escape(folder) + r"(?=[\w.-])", scheme, str(text))
    text = re.sub(re.escape(str(registered_cache())) + r"/[0-9a-f]{16}/", MODELS, str(text))
    text = re.sub(re.escape(str(addressed_cache())) + r"/[0-9a-f]{16}/(\w+)/", r"\1://", text)
    return re.sub(re.escape(str(s3_cache())) + r"/\w+/[0-9a-f]{16}/", SCHEME, text)


def last_name(text: str | Path) -> str:
    """Returns what a reader calls the model or file at a place: the last part of its path, URI or name on the hub."""
    return PurePosixPath(with_uris(str(text))).name or str(text)
