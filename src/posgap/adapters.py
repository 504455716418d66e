"""Adapters that peft wrote (LoRA and its kin) as models: merged into their base once, in the cache.

Wherever a stage takes a model, a folder with an `adapter_config.json` stands for the merged model, whose digest covers
adapter and base; so whatever reads, digests, serves or promotes a model needs to know of no adapters.
"""

import functools
import logging
import shutil
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posgap.errors import PosgapError, first_line
from posgap.files import digest_of, read_object, write_json
from posgap.locations import Location, is_registered, is_uri, merged_cache, with_uris
from posgap.models import ADAPTER
from posgap.models.loading import commit_on_hub, load_model, load_tokenizer, save_model
from posgap.models.rounding import LEAST_KEPT, rounded
from posgap.storage.cache import MANIFEST, Snapshot, look, made_once
from posgap.storage.inputs import OnDisk, Source
from posgap.storage.lineage import training_examples, write_training_examples
from posgap.storage.manifests import read_record

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
WEIGHTS = "adapter_model.safetensors"
RECORD = "merged_adapter.json"  # in the merged folder: what it was made of


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder, on this machine or in S3, which is read as the model that it makes of its base."""

    folder: OnDisk | Snapshot

    @property
    def location(self) -> Location:
        return self.folder.location

    @property
    def is_incomplete(self) -> bool:
        return self.folder.is_incomplete

    def version(self) -> dict[str, str]:
        return self.folder.version()

    def sizes(self) -> dict[str, int]:
        return self._merged.sizes()

    def sha256s(self, names: Collection[str] | None = None) -> dict[str, str]:
        return self._merged.sha256s(names)

    def digest(self) -> str:
        return self._merged.digest()

    cache_key = digest

    def read(self, name: str) -> Path | None:
        return self._merged.read(name)

    def fetch(self) -> Path:
        """The folder of the merged model in the cache; it is merged once for each content of adapter and base."""
        return self._merged.location

    @functools.cached_property
    def _merged(self) -> OnDisk:
        adapter = self.folder.fetch()
        base, identity = _base(adapter)
        about = {"adapter": self.folder.digest(), "base": identity}
        mark = digest_of(["merged and rounded", about])[:16]

        def merge(place: Path) -> Path:
            figures = _merge(base, adapter, merged := place / "model")
            write_json(merged / RECORD, about | figures)
            if made := read_record(OnDisk(adapter).read(MANIFEST)):
                # How the adapter came to be; the files that it lists are not those of this folder.
                own = {"files", "identity"}
                write_json(merged / MANIFEST, {name: value for name, value in made.items() if name not in own})
            write_training_examples(merged, training_examples(base).union(training_examples(adapter)))
            return merged

        return OnDisk(made_once(merged_cache() / mark / adapter.resolve().name, mark, merge))


def source_at(folder: OnDisk | Snapshot) -> Source:
    """What a folder with an `adapter_config.json` names."""
    return Adapter(folder)


def _base(adapter: Path) -> tuple[str, str]:
    """The base that an adapter names, and what tells its content from another's: the digest of a folder, the commit of
    a model on the hub, which the adapter's `revision` can pin."""
    about = read_object(adapter / ADAPTER)
    name, revision = about.get("base_model_name_or_path"), about.get("revision")
    if not isinstance(name, str) or not name:
        raise PosgapError(f"{adapter / ADAPTER}: names no base model; write its folder or its name on the hub there")
    if not (adapter / WEIGHTS).is_file():
        raise PosgapError(f"{adapter}: an adapter without {WEIGHTS}; save it again with safe_serialization")
    if is_uri(name) or Path(name).is_dir():
        base = look(name) if is_uri(name) else OnDisk(Path(name))
        return str(base.fetch()), base.digest()
    pinned = f"{name}@{revision}" if revision else name
    try:
        commit = commit_on_hub(pinned)
    except PosgapError as error:
        raise PosgapError(f"{adapter}: its base model: {error}") from None
    return f"{name}@{commit}", f"{name}@{commit}"


def named(base: str) -> tuple[str, str | None]:
    """How an adapter's config names its base, so that it is found again: its place or its name on the hub, and there
    its commit too. `base` is as a stage has it, whose inputs have been fetched.

    Raises `PosgapError` for a model of MLflow's registry and for an adapter, of which only the cache has a folder.
    """
    place = with_uris(base)
    if is_uri(place):
        return place, None
    if is_registered(place) or Path(base).resolve().is_relative_to(merged_cache().resolve()):
        what = f"{place} is in the registry" if is_registered(place) else "the model is an adapter itself"
        raise PosgapError(f"lora_export: {what}, which no adapter can name as its base; give --lora-export merged")
    if Path(base).is_dir():
        return str(Path(base).resolve()), None
    return base.partition("@")[0], commit_on_hub(base)


def merged_in_float32(base: str, adapter: Path) -> "PreTrainedModel":
    """The base with the adapter's changes added to its weights.

    `PosgapError` where the adapter does not fit the base, or is of a kind that cannot be merged.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise PosgapError(f"{adapter}: is an adapter; pip install 'posgap[train]' to merge it") from None
    model = load_model(base, "float32")
    with _one_line(adapter, base):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted: Any = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        if not hasattr(adapted.base_model, "merge_and_unload"):
            raise PosgapError(
                f"{adapter}: peft cannot merge adapters of type {adapted.peft_config['default'].peft_type}"
            )
        _require_its_weights(adapter, adapted)
        apart = _logits(adapted)
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
        # Rounding is far below it; an adapter on embeddings that are the output head too is far above.
        if (_logits(merged) - apart).abs().max() > apart.std() / 2:
            raise PosgapError(f"{adapter}: merged into {base} it computes something else, as with tied embeddings")
    return merged


def _merge(base: str, adapter: Path, out: Path) -> dict[str, Any]:
    """Writes the base with the adapter's changes added to its weights, in the base's own precision, rounded as the
    export of a training is. Returns how, and how much of the changes is kept."""
    merged, model = merged_in_float32(base, adapter), load_model(base, "stored")
    try:
        stored = rounded(model, merged.state_dict(), model.dtype)
    except PosgapError as error:
        raise PosgapError(f"{adapter}: merged into {base}: {error}") from None
    say = log.info if stored.kept.update >= LEAST_KEPT else log.warning
    say("%s: merged into %s: %s of its changes", adapter, base, stored)
    tokenizer = base
    if (adapter / "tokenizer_config.json").is_file():
        # The adapter's own, in a folder that is none of an adapter.
        tokenizer = str(shutil.copytree(adapter, out.with_name("own"), ignore=shutil.ignore_patterns("adapter_*")))
        model.config.save_pretrained(tokenizer)
    save_model(model, load_tokenizer(tokenizer), out, dict(stored.state))
    return {"rounding": stored.rounding, "kept_update": stored.kept.update}


@torch.inference_mode()
def _logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(8)[None]).logits.float()


def _require_its_weights(adapter: Path, adapted: Any) -> None:
    """`PosgapError` unless the adapter's file has each of its weights and nothing else; peft goes on without."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    with safe_open(adapter / WEIGHTS, framework="pt") as stored:
        differing = sorted(set(stored.keys()) ^ set(get_peft_model_state_dict(adapted)))
    if differing:
        raise PosgapError(f"{adapter}: does not fit its base: {differing[0]} and {len(differing) - 1} more weights")


@contextmanager
def _one_line(adapter: Path, base: str) -> Iterator[None]:
    """What peft raises, in many kinds, as a line."""
    try:
        yield
    except (PosgapError, MemoryError):
        raise
    except Exception as error:
        reason = first_line(error)
        raise PosgapError(f"{adapter}: cannot be merged into {base}: {reason}") from None
