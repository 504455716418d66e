"""The dtype in which models generate where nobody says it: by processor and size, never by a measured speed."""

import json
import logging

import pytest
import torch
from examples import kv_example
from transformers import LlamaConfig

from posgap.data.reading import write_examples
from posgap.generation import backends
from posgap.generation.backends import BACKENDS
from posgap.models import precision
from posgap.models.loading import resolve_dtype
from posgap.models.precision import bfloat16_of_cpu, generating_dtype, n_parameters
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SweepConfig
from posgap.verbs import doctor
from posgap.verbs.sweep import sweep_model

SMALL = LlamaConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
# 2 * 40,000 * 640 of embeddings and head alone.
LARGE = LlamaConfig(
    vocab_size=40_000, hidden_size=640, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
)


@pytest.fixture(params=["amx_bf16", "avx512_bf16"])
def has_bfloat16(request, monkeypatch, tmp_path):
    backends._tell.cache_clear()
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: fpu sse2 {request.param} ibs\nbugs : none\n")
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return request.param


@pytest.fixture(params=["flags : fpu sse2 avx512_bf16x amx_int8", "Features : fp asimd bf16", None])
def has_none(request, monkeypatch, tmp_path):
    if request.param:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{request.param}\n")
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def config(tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(2)])
    return SweepConfig(
        model=str(model_folder), examples=tmp_path / "e.jsonl", out=tmp_path / "out", n_docs=3, max_new_tokens=2
    )


def test_a_large_model_generates_in_bfloat16_where_the_processor_has_it(has_bfloat16):
    assert bfloat16_of_cpu() == has_bfloat16
    assert generating_dtype("auto", LARGE) == "bfloat16"
    assert generating_dtype("auto", SMALL) == "float32"


def test_without_it_every_model_generates_in_float32(has_none):
    assert not bfloat16_of_cpu()
    assert generating_dtype("auto", LARGE) == generating_dtype("auto", SMALL) == "float32"


def test_a_given_dtype_wins(has_bfloat16):
    assert generating_dtype("float32", LARGE) == "float32"
    assert generating_dtype("bfloat16", SMALL) == "bfloat16"


def test_a_gpu_decides_as_before(has_none, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert generating_dtype("auto", SMALL) == "bfloat16"


def test_what_forces_tokens_stays_in_float32_on_a_processor(has_bfloat16):
    assert resolve_dtype("auto") == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_making_them(tied):
    config = LlamaConfig(
        **SMALL.to_dict() | {"tie_word_embeddings": tied}  # the head is the embedding, or has parameters of its own
    )
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config)
    assert n_parameters(config) == sum(each.numel() for each in model.parameters())


def test_the_threshold_is_inclusive(has_bfloat16, monkeypatch):
    monkeypatch.setattr(precision, "MIN_PARAMETERS", n_parameters(SMALL))
    assert generating_dtype("auto", SMALL) == "bfloat16"
    monkeypatch.setattr(precision, "MIN_PARAMETERS", n_parameters(SMALL) + 1)
    assert generating_dtype("auto", SMALL) == "float32"


def test_a_sweep_says_and_records_what_it_chose(config, tmp_path, monkeypatch, caplog, has_bfloat16):
    monkeypatch.setattr(precision, "MIN_PARAMETERS", 1)
    with caplog.at_level(logging.INFO):
        sweep_model(config)
    assert sum("--dtype float32 for single precision" in line for line in caplog.messages) == 1
    swept = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert swept["asked"]["dtype"] == swept["settings"]["dtype"] == "bfloat16"
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["config"]["dtype"] == "auto"
    assert manifest["settled"] == {"backend": "transformers", "dtype": "bfloat16"}
    for page in ("model_card.md", "sweep.html"):
        assert "answered in bfloat16" in (tmp_path / "out" / page).read_text()


def test_it_is_said_once(config, monkeypatch, caplog, has_bfloat16):
    """A first look asks for it twice."""
    monkeypatch.setattr(precision, "MIN_PARAMETERS", 1)
    with caplog.at_level(logging.INFO):
        assert config.resolve_auto() == config.resolve_auto() != config
    assert len(caplog.messages) == 1


def test_a_sweep_in_float32_says_nothing(config, tmp_path, caplog, has_bfloat16):
    with caplog.at_level(logging.INFO):
        sweep_model(config)
    assert not any("bfloat16" in line for line in caplog.messages)
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["asked"]["dtype"] == "float32"
    assert "answered in float32" in (tmp_path / "out" / "model_card.md").read_text()


def test_only_what_generates_by_a_backend_chooses(config, has_bfloat16, monkeypatch):
    monkeypatch.setattr(precision, "MIN_PARAMETERS", 1)
    given = {name: getattr(config, name) for name in ("model", "examples", "out")}
    assert SweepConfig(**given).resolve_auto().dtype == "bfloat16"
    assert SweepConfig(**given | {"dtype": "float32"}).resolve_auto().dtype == "float32"
    assert ScaleSearchConfig(**given).resolve_auto().dtype == "float32"
    assert BACKENDS["openai"].dtype(SweepConfig(**given | {"backend": "openai"}).access()) == "auto"


def test_doctor_says_it(has_bfloat16):
    found = doctor._bfloat16()
    assert found.state == "yes" and has_bfloat16 in found.seen and "50 million" in found.seen


def test_doctor_says_that_there_is_none(has_none):
    assert doctor._bfloat16().state == "no"
