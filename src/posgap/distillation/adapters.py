"""Adapters that peft wrote (LoRA and its kin) as models: merged into their base once, in the cache.

Wherever a stage takes a model, a folder with an `adapter_config.json` stands for the merged model, whose digest covers
adapter and base; so whatever reads, digests, serves or promotes a model needs to know of no adapters.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of, read_object, write_json
from posgap.foundation.locations import Location, is_registered, is_uri, merged_cache, with_uris
from posgap.models import ADAPTER, ADAPTER_WEIGHTS
from posgap.storage.cache import MANIFEST, Snapshot, Source, make_once, take_snapshot
from posgap.storage.inputs import OnDisk, Opener
from posgap.storage.lineage import training_examples, write_training_examples
from posgap.storage.manifests import read_record

RECORD = "merged_adapter.json"  # in the merged folder: what it was made of


@dataclass(frozen=True)
class Adapter(Source):
    """An adapter's folder, on this machine or in S3, which is read as the model that it makes of its base."""

    location: Location
    folder: OnDisk | Snapshot

    @property
    def is_incomplete(self) -> bool:
        return self.folder.is_incomplete

    def version(self) -> dict[str, str]:
        return self.folder.version()

    def fetch(self) -> Path:
        """The folder of the merged model in the cache; it is merged once for each content of adapter and base."""
        return self._merged_folder.location

    @functools.cached_property
    def _merged_folder(self) -> OnDisk:
        adapter = self.folder.fetch()
        base, identity = _base(adapter)
        about = {"adapter": self.folder.digest(), "base": identity}
        mark = digest_of(["merged and rounded", about])[:16]

        def merge(place: Path) -> Path:
            from posgap.distillation.adapter_merging import merge_adapter  # late: it needs torch

            figures = merge_adapter(base, adapter, merged := place / "model")
            write_json(merged / RECORD, about | figures)
            if made := read_record(OnDisk(adapter).local_file(MANIFEST)):
                # How the adapter came to be; the files that it lists are not those of this folder.
                own = {"files", "identity"}
                write_json(merged / MANIFEST, {name: value for name, value in made.items() if name not in own})
            write_training_examples(merged, training_examples(base).union(training_examples(adapter)))
            return merged

        return OnDisk(make_once(merged_cache() / mark / adapter.resolve().name, mark, merge))


OPENER = Opener(
    "adapter",
    "a folder of peft's, read as the model that it makes of its base",
    lambda folder: Adapter(folder.location, folder),
    file=ADAPTER,
)


def _base(adapter: Path) -> tuple[str, str]:
    """The base that an adapter names, and what tells its content from another's: the digest of a folder, the commit of
    a model on the hub, which the adapter's `revision` can pin."""
    about = read_object(adapter / ADAPTER)
    from posgap.models.loading import commit_on_hub  # late: it needs transformers

    name, revision = about.get("base_model_name_or_path"), about.get("revision")
    if not isinstance(name, str) or not name:
        raise PosgapError(f"{adapter / ADAPTER}: names no base model; write its folder or its name on the hub there")
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise PosgapError(f"{adapter}: an adapter without {ADAPTER_WEIGHTS}; save it again with safe_serialization")
    if is_uri(name) or Path(name).is_dir():
        base = take_snapshot(name) if is_uri(name) else OnDisk(Path(name))
        return str(base.fetch()), base.digest()
    pinned = f"{name}@{revision}" if revision else name
    try:
        commit = commit_on_hub(pinned)
    except PosgapError as error:
        raise PosgapError(f"{adapter}: its base model: {error}") from None
    return f"{name}@{commit}", f"{name}@{commit}"


def resolve_base(base: str) -> tuple[str, str | None]:
    """How an adapter's config names its base, so that it is found again: its place or its name on the hub, and there
    its commit too. `base` is as a stage has it, whose inputs have been fetched.

    Raises `PosgapError` for a model of MLflow's registry and for an adapter, of which only the cache has a folder.
    """
    from posgap.models.loading import commit_on_hub  # late: it needs transformers

    place = with_uris(base)
    if is_uri(place):
        return place, None
    if is_registered(place) or Path(base).resolve().is_relative_to(merged_cache().resolve()):
        what = f"{place} is in the registry" if is_registered(place) else "the model is an adapter itself"
        raise PosgapError(f"lora_export: {what}, which no adapter can name as its base; give --lora-export merged")
    if Path(base).is_dir():
        return str(Path(base).resolve()), None
    return base.partition("@")[0], commit_on_hub(base)
