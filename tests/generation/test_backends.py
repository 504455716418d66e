"""The same sweep gives the same predictions through every backend; tests/generation/test_vllm.py has vLLM's."""

import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from endpoint import Endpoint, served
from llamas import llama, predictions, sweep_options

from posgap.foundation.errors import PosgapError
from posgap.generation import backends
from posgap.generation.backends import open_generator
from posgap.generation.generator import Sampling
from posgap.mitigations.in_force import apply_mitigation, load_model, scale_model
from posgap.models import OWN_TABLES_KEY
from posgap.models.loading import load_tokenizer, save_model
from posgap.options.mitigate import MitigateConfig
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.scaling.vllm_plugin import FactorSetter
from posgap.tasks.prompts import Prompt
from posgap.verbs.sweep import sweep_model

TEMPLATE = "{% for m in messages %}0{{ m['content'] }}{% endfor %}1"


class Served:
    """A server's model: greedy, a token at a time, without a cache; its own tokenizer and chat template."""

    def __init__(self, folder: Path, chat: bool):
        self.model, self.tokenizer, self.chat = load_model(str(folder), "float32"), load_tokenizer(str(folder)), chat

    @torch.inference_mode()
    def __call__(self, text: str) -> tuple[str, str]:
        turns = [{"role": "user", "content": text}]
        prompt = (
            self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
            if self.chat
            else self.tokenizer(text)["input_ids"]
        )
        ids = list(prompt)
        while len(ids) < len(prompt) + 6 and ids[-1] != self.tokenizer.eos_token_id:
            ids.append(int(self.model(torch.tensor([ids])).logits[0, -1].argmax()))
        text = self.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        return text, "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_endpoint_gives_the_predictions_of_the_model_it_serves(endpoint, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE if endpoint == "chat" else None)
    save_model(llama(), tokenizer, tmp_path / "model")
    here = sweep_model(SweepConfig(out=tmp_path / "here", **sweep_options(tmp_path, tmp_path / "model"), stop="none"))
    with served(Endpoint(Served(tmp_path / "model", endpoint == "chat"))) as server:
        changes = sweep_options(tmp_path, "tiny", backend="openai", base_url=server.url, endpoint=endpoint, stop="none")
        config = SweepConfig(out=tmp_path / "there", **changes)
        with suppress(PosgapError):  # by the first answers of a random model the others are not sent
            sweep_model(config)
        there = sweep_model(config)
    assert predictions(here) == predictions(there)
    assert server.seen.total() == 48


def test_vllm_shares_a_model_among_gpus_and_quantises_it_as_asked(model_folder, monkeypatch):
    """vLLM runs in an environment of its own: here stands what it is called with."""
    called = {}

    def serves(**given):
        called.update(given)
        raise ValueError("no such number of GPUs")

    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=serves))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    for more, expected in (({}, 1), ({"tensor_parallel_size": 4}, 4)):
        config = SweepConfig(examples="e", model=str(model_folder), out="o", backend="vllm", dtype="float32", **more)
        refusal = "no such number of GPUs; --backend transformers"
        with pytest.raises(PosgapError, match=refusal):
            open_generator(config.access(), config.builder())
        assert called["tensor_parallel_size"] == expected and "worker_extension_cls" not in called
    searching = ScaleSearchConfig(examples="e", model=str(model_folder), out="o", backend="vllm", dtype="float32")
    with pytest.raises(PosgapError, match=refusal):
        open_generator(searching.access(), searching.builder())
    assert called["worker_extension_cls"] == f"{FactorSetter.__module__}.{FactorSetter.__qualname__}"
    assert called["hf_overrides"] == {OWN_TABLES_KEY: True}


@pytest.fixture
def gpu_with_vllm(monkeypatch):
    """A machine with a GPU and vLLM, which serves Llama."""
    registry = SimpleNamespace(get_supported_archs=lambda: {"LlamaForCausalLM"})
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry, __spec__=object()))
    monkeypatch.setattr(backends, "device_class", lambda: "cuda")
    monkeypatch.setattr(backends, "MIN_PARAMETERS", 1)
    backends._tell.cache_clear()


def settle(model, kind=SweepConfig, **more) -> str:
    return kind(examples="e", model=str(model), out="o", dtype="float32", **more).resolve_auto().backend


def test_auto_takes_vllm_on_a_gpu_alone(model_folder, gpu_with_vllm, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        assert settle(model_folder) == settle(model_folder, TeacherConfig) == "vllm"
    assert caplog.messages == ["backend vllm: it is installed here, and there is a GPU"]
    assert settle(model_folder, backend="transformers") == "transformers"
    # A search chooses later, once it knows whether answers are forced.
    searching = ScaleSearchConfig(examples="e", model=str(model_folder), out="o").resolve_auto()
    assert searching.backend == "auto" and searching.resolve_backend().backend == "vllm"
    monkeypatch.setattr(backends, "device_class", lambda: "cpu")
    assert settle(model_folder) == "transformers"


def test_auto_says_why_it_leaves_vllm(model_folder, gpu_with_vllm, monkeypatch, caplog):
    def said(**more) -> str:
        caplog.clear()
        assert settle(model_folder, **more) == "transformers"
        return caplog.messages[-1]

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(backends, "MIN_PARAMETERS", 50_000_000)
    assert "less than 50 million parameters" in said()
    monkeypatch.setattr(backends, "MIN_PARAMETERS", 1)
    sys.modules["vllm"].ModelRegistry.get_supported_archs = set
    assert "vLLM has no LlamaForCausalLM of its own" in said()
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'posgap[vllm]'" in said()


def test_auto_takes_vllm_for_the_mitigations_that_its_plugin_applies(tmp_path, tokenizer, gpu_with_vllm):
    scaled = scale_model(llama(), [1.0] * llama().config.num_hidden_layers)
    save_model(scaled, tokenizer, tmp_path / "scaled")
    assert settle(tmp_path / "scaled") == "vllm"
    by_head = llama()
    apply_mitigation(by_head, "ms-poe", {})
    save_model(by_head, tokenizer, tmp_path / "ms-poe")
    assert settle(tmp_path / "ms-poe") == "transformers"


def test_mitigate_takes_vllm_where_only_prompts_are_changed(model_folder, gpu_with_vllm, caplog):
    assert settle(model_folder, MitigateConfig, methods="reordering,reversed") == "vllm"
    with caplog.at_level(logging.INFO):
        assert settle(model_folder, MitigateConfig, methods="reordering,lpes") == "transformers"
    assert "a model in memory is changed by lpes" in caplog.messages[-1]


def test_a_sweep_records_the_backend_that_auto_took(tmp_path, model_folder):
    out = sweep_model(SweepConfig(out=tmp_path / "out", **sweep_options(tmp_path, model_folder)))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["config"]["backend"] == "auto"
    assert manifest["settled"]["backend"] == "transformers"
    assert json.loads((out / "sweep.json").read_text())["settings"]["backend"] == "transformers"


def test_a_launcher_s_processes_are_refused(model_folder, monkeypatch):
    config = SweepConfig(examples="e.jsonl", model=str(model_folder), out="out")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PosgapError, match="`shard`"):
        open_generator(config.access(), config.builder())


def test_a_prompt_that_vllm_has_no_memory_for_is_a_line(model_folder, tokenizer, monkeypatch):
    class TooLong(Exception):
        pass

    class Engine:
        llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))

        def __init__(self, **given):
            assert given["max_model_len"] == -1  # as many tokens as memory holds

        def generate(self, *given, **more):
            raise TooLong("the maximum length is 512 tokens.\nPlease ...")

    modules = {
        "vllm": SimpleNamespace(LLM=Engine, SamplingParams=lambda **given: given),
        "vllm.platforms": SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: False)),
        "vllm.exceptions": SimpleNamespace(VLLMClientError=TooLong),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    config = SweepConfig(examples="e", model=str(model_folder), out="o", backend="vllm", dtype="float32")
    generator = open_generator(config.access(), config.builder())
    with pytest.raises(PosgapError, match="^backend vllm: .* 512 tokens.*--backend transformers"):
        list(generator.generate([[Prompt("", [3, 4])]], Sampling(4)))
