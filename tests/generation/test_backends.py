"""The same sweep gives the same predictions through every backend; tests/generation/test_vllm.py has vLLM's."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from endpoint import Endpoint, served
from llamas import llama, predictions, sweep_options

from posgap.foundation.errors import PosgapError
from posgap.generation.backends import BACKENDS, open_generator
from posgap.measurement.config import SweepConfig
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.stages.sweep import sweep

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
    here = sweep(SweepConfig(out=tmp_path / "here", **sweep_options(tmp_path, tmp_path / "model"), stop="none"))
    with served(Endpoint(Served(tmp_path / "model", endpoint == "chat"))) as server:
        changes = sweep_options(tmp_path, "tiny", backend="openai", base_url=server.url, endpoint=endpoint, stop="none")
        there = sweep(SweepConfig(out=tmp_path / "there", **changes))
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
        with pytest.raises(PosgapError, match="vLLM cannot serve this model: no such number of GPUs"):
            open_generator(config, BACKENDS["vllm"].builder(config))
        assert called["tensor_parallel_size"] == expected
