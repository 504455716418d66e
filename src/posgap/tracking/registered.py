"""Models in MLflow's registry: wherever a model is named, `models:/name@champion` and `models:/name/3` name one too."""

import functools
from dataclasses import dataclass
from pathlib import Path

from posgap.foundation.errors import Contradiction
from posgap.foundation.files import digest_of, digest_path
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.locations import is_registered, registered_cache
from posgap.storage.cache import Source, make_once
from posgap.storage.inputs import Opener
from posgap.tracking import registry


@dataclass(frozen=True)
class RegisteredVersion(Source):
    """A version in MLflow's registry. An alias is looked up once, so that all that is asked is of one version."""

    location: str

    @functools.cached_property
    def _version(self) -> ModelVersion:
        return registry.version_of(self.location)

    @property
    def dtype(self) -> str:
        """The precision of the version's sweep; "auto" if none is recorded."""
        return self._version.tags.get(registry.DTYPE) or "auto"

    @property
    def device(self) -> str:
        """Returns the class of device of the version's sweep; empty if none is recorded."""
        return self._version.tags.get(registry.DEVICE, "")

    def version(self) -> dict[str, str]:
        return {"registered_version": str(self._version.version)}

    def digest(self) -> str:
        return self._version.tags.get(registry.DIGEST) or digest_path(self.fetch())

    def fetch(self) -> Path:
        """The model's folder in the cache, into which it is downloaded once.

        `PosgapError` if posgap did not register it, or the files are not those that were promoted.
        """
        version = self._version
        mark = digest_of(["registered", *registry.identity(version)])[:16]
        folder = registered_cache() / mark / version.name / str(version.version)

        def bring(place: Path) -> Path:
            uri = f"models:/{version.name}/{version.version}"
            brought = registry.bring_model(uri, place)
            if digest_path(brought) != version.tags.get(registry.DIGEST, digest_path(brought)):
                raise Contradiction("has other files than were promoted; promote the model again", at=uri)
            return brought

        return make_once(folder, mark, bring)


OPENER = Opener(
    "registry",
    "a version in MLflow's registry, models:/name@champion or models:/name/3",
    RegisteredVersion,
    is_registered,
)
