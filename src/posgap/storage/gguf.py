"""GGUF files as models: dequantised once, in the cache.

Wherever a stage takes a model, a `.gguf` file stands for the folder that it is dequantised to, and has the digest of
that folder. So nothing that reads, digests, serves or promotes a model needs to know about GGUF.
"""

import functools
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from posgap.foundation.extras import needed
from posgap.foundation.files import digest_of
from posgap.foundation.locations import Location, gguf_cache
from posgap.storage.cache import Source, made_once
from posgap.storage.inputs import Opener

ENDING = ".gguf"


@dataclass(frozen=True)
class GGUF(Source):
    """A file of this machine, of S3 or of an address, which is read as the folder that it is dequantised to."""

    location: Location
    file: Source

    @property
    def is_incomplete(self) -> bool:
        return self.file.is_incomplete

    def version(self) -> dict[str, str]:
        return self.file.version()

    def cache_key(self) -> str:
        return self.file.cache_key()

    def fetch(self) -> Path:
        """The folder in the cache. It is made once for each content, and anew by another version of what reads it."""
        return self._folder

    @functools.cached_property
    def _folder(self) -> Path:
        needed("gguf")
        readers = {package: importlib.metadata.version(package) for package in ("gguf", "transformers")}
        mark = digest_of(["dequantised", self.file.digest(), readers])[:16]
        name = Path(str(self.location)).name

        def dequantise(place: Path) -> Path:
            from posgap.models.gguf import convert  # late: it needs torch

            convert(Path(self.file.fetch()), place / "model", str(self.location))
            return place / "model"

        return made_once(gguf_cache() / mark / name, mark, dequantise)


OPENER = Opener(
    "gguf",
    "a file of llama.cpp, read as the folder that it is dequantised to",
    lambda file: GGUF(file.location, file),
    ending=ENDING,
)
