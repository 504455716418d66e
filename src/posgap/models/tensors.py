"""Reads the tensors of a model's folder: the files from which they load, and a digest that tells models apart."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from posgap.foundation.errors import BadModel
from posgap.foundation.files import digest_of, read_object

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
EXPLICIT = "transformers_weights"  # of config.json: the file of weights, or its index
_HEADER_BYTES = 100_000_000  # that safetensors allows
_BLOCK = 1 << 24


class StoredTensor(NamedTuple):
    """A tensor in a safetensors file: its name, dtype and shape, and the place of its bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a folder that load: `model.safetensors`, or those that the index names.

    Raises `BadModel` if others lie beside them, since vLLM reads all files, or if the index names others than load.
    """
    there = {file.name for file in folder.glob("*.safetensors")}
    loaded = _named(folder, there)
    beside = sorted(there - loaded)
    if beside:
        loads = ", ".join(sorted(loaded)) or "none"
        raise BadModel(
            f"{folder / beside[0]}: lies beside the weights that load ({loads}), and other programs would read it; "
            "move it away"
        )
    return [folder / name for name in sorted(loaded & there)]


def _named(folder: Path, there: set[str]) -> set[str]:
    """The names of the files that load."""
    config = folder / "config.json"
    explicit = read_object(config).get(EXPLICIT) if config.is_file() else None
    index = folder / (str(explicit) if str(explicit).endswith(".index.json") else INDEX)
    weight_map = read_object(index).get("weight_map") if index.is_file() else None
    shards = {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else set[str]()
    if explicit and explicit != index.name:
        return {str(explicit)}
    if WEIGHTS in there and not explicit:
        if shards - {WEIGHTS}:
            raise BadModel(
                f"{index}: names {min(shards - {WEIGHTS})}, and {WEIGHTS} lies beside it, which loads; remove either"
            )
        return {WEIGHTS}
    return shards


def stored_tensors(file: Path) -> list[StoredTensor]:
    """Returns the tensors that the header of a safetensors file names; `BadModel` if it is damaged."""
    try:
        with open(file, "rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > _HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(opened.read(size), object_pairs_hook=_once)
        tensors = []
        for name, told in header.items():
            if name != "__metadata__":
                begin, end = told["data_offsets"]
                tensors.append(
                    StoredTensor(name, told["dtype"], tuple(told["shape"]), 8 + size + begin, 8 + size + end)
                )
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"{file}: cannot be read as safetensors: {error}; get the file again") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def digest_of_tensors(folder: Path) -> str:
    """sha256 of the names, dtypes, shapes and bytes of the tensors that load from a folder, in whichever files and
    order they are; empty if it has none. Raises `BadModel` as `weight_files` does, or if a name is there twice."""
    digests = {tensor.name: [tensor.dtype, list(tensor.shape), sha] for tensor, sha in _hashed(folder)}
    return digest_of(sorted(digests.items())) if digests else ""


def _hashed(folder: Path) -> Iterator[tuple[StoredTensor, str]]:
    names = set[str]()
    for file in weight_files(folder):
        tensors = stored_tensors(file)
        with open(file, "rb") as opened:
            for tensor in tensors:
                if tensor.name in names:
                    raise BadModel(f"{file}: has {tensor.name}, which another shard has too; save the model again")
                names.add(tensor.name)
                yield tensor, _digest_of_bytes(opened, tensor)


def _digest_of_bytes(opened: Any, tensor: StoredTensor) -> str:
    sha = hashlib.sha256()
    left = tensor.end - tensor.begin
    opened.seek(tensor.begin)
    while left > 0:
        block = opened.read(min(left, _BLOCK))
        if not block:
            raise BadModel(f"{opened.name}: ends within {tensor.name}; get the file again")
        sha.update(block)
        left -= len(block)
    return sha.hexdigest()
