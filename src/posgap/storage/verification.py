"""Verifies that outputs, and what they were made from, still match their manifests."""

import logging
from collections.abc import Mapping
from typing import Any

from posgap.foundation import files
from posgap.foundation.errors import NotFound, PosgapError
from posgap.foundation.locations import as_location
from posgap.storage.cache import MANIFEST
from posgap.storage.inputs import Source, source
from posgap.storage.manifests import file_records, read_record

log = logging.getLogger(__name__)


class Verification:
    """The findings so far. Shared inputs of several outputs are hashed once."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.out_of_reach: dict[str, str] = {}
        self.checked: set[str] = set()
        self.count = self.bytes = 0
        self._hashed: dict[str, Mapping[str, str]] = {}

    def verify(self, folder: Source) -> None:
        """Hashes every file of an output and compares it with the manifest. It does the same for the inputs that the
        manifest names, if they are at hand, and for their own inputs. Raises `PosgapError` if no stage wrote the
        folder."""
        manifest = read_record(folder.local_file(MANIFEST))
        if not file_records(manifest):
            raise NotFound(f"{folder.location}: has no {MANIFEST}; name a folder that a stage wrote")
        self._verify_manifest(folder, manifest)

    def _verify_manifest(self, output: Source, manifest: Mapping[str, Any]) -> None:
        """Compares an output with its manifest, and then its inputs."""
        place = str(output.location)
        if place in self.checked:
            return
        self.checked.add(place)
        log.info("verifying %s", place)
        sizes = output.sizes()
        recorded_files = file_records(manifest)
        hashed: Mapping[str, str]
        for name in sorted(recorded_files.keys() - sizes.keys()):
            self.faults.append(f"{place}/{name}: is missing")
        if not manifest.get("identity"):  # a `RunFolder`: files of the stages below it are in manifests of their own
            hashed = output.sha256s(recorded_files.keys())
            self.count += len(hashed)
        else:
            for name in sorted(filter(files.is_content, sizes.keys() - recorded_files.keys())):
                self.faults.append(f"{place}/{name}: is not in the manifest")
            hashed = self._hash(output)
        for name in sorted(recorded_files.keys() & sizes.keys()):
            if sizes[name] != recorded_files[name].get("size"):
                self.faults.append(f"{place}/{name}: has {sizes[name]} bytes, not {recorded_files[name].get('size')}")
            elif hashed[name] != recorded_files[name].get("sha256"):
                self.faults.append(f"{place}/{name}: has other content, of sha256 {hashed[name]}")
        inputs = manifest.get("inputs")
        for field, was in (inputs if isinstance(inputs, dict) else {}).items():
            self._verify_input(place, field, was)

    def _verify_input(self, output: str, field: str, was: Mapping[str, str]) -> None:
        """Compares an input with its recorded digest, and then with its own manifest if it is an output."""
        path = was.get("path", "")
        sha256 = was.get("sha256", "")
        if not sha256:
            self.out_of_reach.setdefault(path, "known by its name alone")
            return
        try:
            there = source(as_location(path))
        except PosgapError as error:
            self.out_of_reach.setdefault(path, f"not at hand ({str(error).removeprefix(f'{path}: ')})")
            return
        hashed = self._hash(there)
        if (hashed.get("") or files.digest_of_folder(hashed)) != sha256:
            self.faults.append(f"{output}: `{field}`: {path} has other content now than when this was made")
        manifest = read_record(there.local_file(MANIFEST))
        if file_records(manifest):
            self._verify_manifest(there, manifest)

    def _hash(self, there: Source) -> Mapping[str, str]:
        """The sha256s of a folder's files by name; a single file has an empty name."""
        place = str(there.location)
        if place not in self._hashed:
            self._hashed[place] = there.sha256s()
            self.count = self.count + len(self._hashed[place])
            self.bytes = self.bytes + sum(there.sizes().values())
        return self._hashed[place]
