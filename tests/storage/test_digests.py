"""A stage reads no model twice to know what it is."""

from collections import Counter

import pytest
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.foundation import files
from posgap.foundation.bounds import open_plain
from posgap.options.distill import DistillConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.content import content_key
from posgap.verbs.distill import distill
from posgap.verbs.sweep import sweep_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def hashed(monkeypatch) -> Counter:
    """How often each file was read for its sha256, by its path."""
    names: Counter = Counter()

    def counted(path):
        names.update([str(path)])
        return open_plain(path)

    monkeypatch.setattr(files, "open_plain", counted)
    return names


def test_a_stage_hashes_its_model_once(tmp_path, model_folder, hashed):
    examples = [kv_example(i) for i in range(4)]
    write_examples(tmp_path / "e.jsonl", examples)
    answer = {"placement": [1], "n_docs": 5, "response": "0", "token_ids": [25, 2], "correct": True}
    files.write_jsonl(tmp_path / "r.jsonl", [{"id": e.id, "content": content_key(e), **answer} for e in examples])
    shared = {"examples": tmp_path / "e.jsonl", "model": str(model_folder)}
    whole = files.digest_path(model_folder)
    for stage, config in (
        (distill, DistillConfig(out=tmp_path / "d", responses=tmp_path / "r.jsonl", epochs=1, k=1, **shared)),
        (sweep_model, SweepConfig(out=tmp_path / "s", n_docs=4, max_new_tokens=2, **shared)),
    ):
        hashed.clear()
        out = stage(config)
        assert hashed[str(model_folder / WEIGHTS)] == 1, stage.__name__
        assert read_manifest(out)["inputs"]["model"]["sha256"] == whole
    assert files.read_json(tmp_path / "s" / "sweep.json")["model_digest"] == whole
