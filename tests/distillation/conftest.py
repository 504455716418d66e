"""Fixtures of tests/distillation."""

import pytest
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.foundation.files import write_jsonl
from posgap.options.distill import DistillConfig
from posgap.tasks.content import content_key


@pytest.fixture
def config(tmp_path, model_folder):
    examples = [kv_example(i) for i in range(6)]
    write_examples(tmp_path / "e.jsonl", examples)
    responses = (
        {"id": e.id, "content": content_key(e)}
        | {"placement": [1], "n_docs": 5, "response": "0", "token_ids": [25, 2], "correct": True}
        for e in examples
    )
    write_jsonl(tmp_path / "responses.jsonl", responses)
    return DistillConfig(
        examples=tmp_path / "e.jsonl", responses=tmp_path / "responses.jsonl", model=str(model_folder),
        out=tmp_path / "out", k=3, batch_size=12, learning_rate=1e-3,
    )  # fmt: skip
