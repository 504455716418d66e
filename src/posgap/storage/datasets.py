"""The data that a stage's result is based on: examples, by name and digest."""

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from posgap.foundation.files import Record, digest_path, parse_as
from posgap.storage.cache import MANIFEST
from posgap.storage.inputs import Source, manifest_of

EXAMPLES = "examples"  # the input that holds data
EVALUATION = "evaluation"  # what a sweep uses examples for
_ENDINGS = (".gz", ".jsonl", ".json")


class Dataset(Record):
    """Examples from `source`, a path or address. `digest` is their sha256, or its beginning; `context` says what they
    were used for."""

    name: str
    digest: str
    source: str
    context: str


def datasets_of(context: str, inputs: Mapping[str, Mapping[str, str]], sources: Mapping[str, Source]) -> list[Dataset]:
    """The data that a stage is based on: its examples, used for `context`; or, if it has none, the data of its inputs.

    Examples that a stage such as `validate` wrote count as the data that this stage read.
    """
    behind = {
        field: parse_as(list[Dataset], manifest_of(source).get("datasets", []), f"{source.location}/{MANIFEST}")
        for field, source in sources.items()
    }
    if EXAMPLES not in inputs or not context:
        return _each_once(chain.from_iterable(behind.values()))
    own = behind[EXAMPLES] or [_dataset_named_by_path(inputs[EXAMPLES]["path"], inputs[EXAMPLES]["sha256"], context)]
    return _each_once(dataset.model_copy(update={"context": context}) for dataset in own)


def dataset_at(path: Path, context: str) -> Dataset:
    """The examples in a file of this machine."""
    return _dataset_named_by_path(str(path), digest_path(path), context)


def _dataset_named_by_path(path: str, sha256: str, context: str) -> Dataset:
    name = path.rstrip("/").rpartition("/")[2]
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return Dataset(name=name, digest=sha256[:12], source=path, context=context)


def _each_once(datasets: Iterable[Dataset]) -> list[Dataset]:
    return list({(dataset.name, dataset.digest, dataset.context): dataset for dataset in datasets}.values())
