"""Reads a config's inputs, wherever they are: on this machine, in S3, at an address, on the hub or in the registry."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from posgap.foundation import files
from posgap.foundation.errors import BadModel, BadOption, NotFound, Unreadable
from posgap.foundation.fields import is_function
from posgap.foundation.files import parse_as
from posgap.foundation.locations import Location, as_location, is_address, is_hub_name, is_uri
from posgap.foundation.registry import Parameters, Registry
from posgap.storage.addresses import download_address
from posgap.storage.cache import MANIFEST, Source, take_snapshot


@dataclass(frozen=True)
class OnDisk(Source):
    """A file or folder of this machine."""

    location: Path

    def fetch(self) -> Path:
        return self.location


@dataclass(frozen=True)
class ByName(Source):
    """A source that has only a name: a model on the hub, or a place."""

    location: str

    def sizes(self) -> dict[str, int]:
        return {}

    def sha256s(self, names: Collection[str] | None = None) -> dict[str, str]:
        return {}

    def digest(self) -> str:
        return ""

    def cache_key(self) -> str:
        return self.location

    def local_file(self, name: str) -> None:
        return None

    def fetch(self) -> str:
        return self.location


@dataclass(frozen=True)
class AtAddress(Source):
    """A file at an address that is only read, as it was at its download."""

    location: str
    here: Path

    def fetch(self) -> Path:
        return self.here


@dataclass(frozen=True)
class Opener:
    """How another room reads a location that it `takes`, which `open` gets.

    Openers are entry points of the group `posgap.openers`, so this room does not depend on those rooms.
    """

    name: str
    help: str
    open: Callable[[Any], Source]
    takes: Callable[[Location], bool]
    parameters: ClassVar[type[Parameters]] = Parameters  # none


OPENERS: Registry[Opener] = Registry("opener", "posgap.openers")


def source(location: Location, may_be_any_name: bool = False) -> Source:
    """The source at a location; text that is neither a URI nor a path names a model on the hub.

    `PosgapError` if there is nothing, or something endless or readable only once (a device, a pipe, a whole disk), and
    if a text cannot name a model on the hub, unless it `may_be_any_name`.
    """
    if str(location).lower().endswith(".gguf") and not may_be_any_name:  # a server may call a model so
        raise BadModel(
            f"{location}: is a GGUF file, which posgap does not load: serve it (llama-server --model FILE) and give "
            "the server's address, like http://127.0.0.1:8080/v1"
        )
    if is_uri(location):
        return take_snapshot(location)
    if is_address(location):
        return AtAddress(location, download_address(location))
    for opener in OPENERS:
        if opener.takes(location):
            return opener.open(location)
    path = Path(location)
    if path.is_file() or (path.is_dir() and path.resolve() != Path("/")):
        return OnDisk(path)
    if path.exists():
        raise Unreadable(f"{location}: is neither a file nor a folder; write its content to a file first")
    if isinstance(location, str):
        if not (may_be_any_name or is_hub_name(location)):
            also = " (an application's function is not a model)" if is_function(location) else ""
            raise NotFound(f"{location}: no such folder, and no name of a model on the hub{also}")
        return ByName(location)
    raise NotFound(f"{location}: no such file or folder")


def fetch_place(place: str | Path) -> Path:
    """The file or folder of a path, S3 URI or address, on this machine. `PosgapError` if there is none."""
    try:
        return Path(source(as_location(place)).fetch())
    except ValueError as error:
        raise BadOption(f"{place}: {error}") from None


@with_config(ConfigDict(extra="allow"))
class Manifest(TypedDict, total=False):
    """The part of a folder's `manifest.json` that other stages use."""

    stage: str
    config: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    ancestors: list[str]
    model_made_by: str
    datasets: list[dict[str, str]]
    versions: dict[str, str]
    seconds: float
    mlflow_run_id: str
    mlflow_run_key: str


def manifest_of(source: Source) -> Manifest:
    """The manifest of a stage's folder; empty if no stage wrote it (a downloaded model)."""
    file = source.local_file(MANIFEST)
    return parse_as(Manifest, files.read_object(file), str(file)) if file else {}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of this machine, which need not exist."""
    return manifest_of(OnDisk(Path(folder)))
