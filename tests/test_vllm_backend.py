"""The vLLM backend gives the transformers backend's answers. Runs where vLLM is installed."""

import pytest
from conftest import kv_example

from posgap.config import SweepConfig
from posgap.generation.backends import open_builder, open_generator
from posgap.generation.generator import Sampling
from posgap.tasks.placements import swept_placements

pytest.importorskip("vllm", reason="vLLM is not installed here")


def test_both_backends_give_the_same_greedy_answers(tmp_path, model_folder):
    found = {}
    for backend in ("transformers", "vllm"):
        config = SweepConfig(
            examples=tmp_path, model=str(model_folder), out=tmp_path, backend=backend, dtype="float32", max_new_tokens=3
        )
        build = open_builder(config)
        groups = [[build.prompt(kv_example(i), p) for p in swept_placements(6, 1)] for i in range(3)]
        found[backend] = dict(open_generator(config, build).generate(groups, Sampling(3)))
    assert found["vllm"] == found["transformers"]
