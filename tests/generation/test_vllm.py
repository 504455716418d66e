"""vLLM against transformers: log-probabilities of scaled models, sweeps, searches, and what `doctor --model` says.

vLLM wants an older transformers than the other tests run with. tests/helpers/vllm_environment.py says how to name or
make an environment for it.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from command_line import run
from llamas import predictions, sweep_options
from scaled_llama import SIZES
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm_environment import QUIET, found_or_made, in_vllm, vllm_server

from posgap.cli.main import main
from posgap.foundation.files import read_json
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import scale_model
from posgap.models.loading import save_model
from posgap.options.distill import DistillConfig
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.responses import read_responses
from posgap.verbs.distill import distill
from posgap.verbs.scale_search import scale_search
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher

FACTORS = [1.0, 1.3, 1.7]
NEOX = pytest.mark.xfail(
    reason="vLLM 0.32 with transformers 5.19 gives other logits, of an unscaled model too", strict=True
)
# vLLM's attention on CPUs wants heads of 32 or more.
SHAPE = SIZES | {
    "vocab_size": 41,
    "hidden_size": 64,
    "head_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
FRAMED = (
    "{{ flag if flag is defined else '2' }}{% for m in messages %}{{ '3' if m['role'] == 'system' else '0' }}"
    "{{ m['content'] }}{% endfor %}1"
)
PROBE = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, prompts, out = sys.argv[1:]
    prompts = [{"prompt_token_ids": p} for p in json.load(open(prompts))]
    llm = LLM(folder, dtype="float32", enforce_eager=True, enable_prefix_caching=True, block_size=32, max_model_len=256)
    greedy = SamplingParams(max_tokens=1, temperature=0, logprobs=20)
    for _ in range(2):  # the second time out of the prefix cache
        answers = llm.generate(prompts, greedy)
    first = [answer.outputs[0].logprobs[0] for answer in answers]
    json.dump([{int(token): found.logprob for token, found in row.items()} for row in first], open(out, "w"))
"""


@pytest.fixture(scope="module")
def vllm_python(tmp_path_factory) -> str:
    return found_or_made(tmp_path_factory.mktemp("vllm"))


def model(family: str, **more):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**SHAPE | {"max_position_embeddings": 512, "initializer_range": 0.2} | more)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "rope"),
    # The last is served by transformers' model, since vLLM has none of its own.
    [("llama", LLAMA3), ("qwen2", None), ("qwen3", None), pytest.param("gpt_neox", None, marks=NEOX)],
)
def test_vllm_gives_the_log_probabilities_of_transformers(vllm_python, tmp_path, tokenizer, family, rope):
    scaled = scale_model(model(family, **({"rope_parameters": rope} if rope else {})), FACTORS)
    save_model(scaled, tokenizer, tmp_path / "scaled")
    rng = torch.Generator().manual_seed(1)
    shared = torch.randint(3, 41, (96,), generator=rng).tolist()
    prompts = [shared + torch.randint(3, 41, (length,), generator=rng).tolist() for length in (5, 40, 80)]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    (tmp_path / "probe.py").write_text(PROBE)
    in_vllm(vllm_python, tmp_path / "probe.py", tmp_path / "scaled", tmp_path / "prompts.json", tmp_path / "out.json")
    with torch.inference_mode():
        expected = [scaled(input_ids=torch.tensor([p])).logits[0, -1].log_softmax(-1) for p in prompts]
    for row, log_probabilities in zip(json.loads((tmp_path / "out.json").read_text()), expected):
        for token, value in row.items():
            assert value == pytest.approx(float(log_probabilities[int(token)]), abs=1e-4)
    said = in_vllm(vllm_python, Path(vllm_python).with_name("posgap"), "doctor", "--model", tmp_path / "scaled")
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("layer")] == [
        "1.0000",
        "1.3000",
        "1.7000",
    ]


@pytest.mark.full
def test_a_sweep_of_a_scaled_model_gives_the_same_predictions_through_every_backend(
    vllm_python, tmp_path, tokenizer, monkeypatch, registers
):
    """transformers, vLLM in the sweep's process, and a vLLM server, in a chat with a system message and an argument of
    its template, and completing bare prompts, both with stop strings."""
    scaled = scale_model(model("llama"), FACTORS)
    asked = {
        "chat": {"system": '"00": "1"', "template_args": {"flag": "7"}, "stop": ["9", "a"]},
        "completions": {"stop": ["9", "a"]},
    }
    for name, template in {"chat": FRAMED, "completions": None}.items():
        monkeypatch.setattr(tokenizer, "chat_template", template)
        save_model(scaled, tokenizer, tmp_path / name)
    here = {
        name: sweep_model(
            SweepConfig(out=tmp_path / f"{name}-here", **sweep_options(tmp_path, tmp_path / name), **more)
        )
        for name, more in asked.items()
    }
    whole = sweep_options(tmp_path, tmp_path / "completions")
    assert predictions(here["completions"]) != predictions(sweep_model(SweepConfig(out=tmp_path / "whole", **whole)))
    # Out of the registry, as which nothing but its name tells where it lies.
    options = sweep_options(
        tmp_path, f"models:/tiny/{registers(tmp_path / 'chat')}", out=tmp_path / "in-vllm", backend="vllm"
    )
    options |= {name: json.dumps(value) if name != "system" else value for name, value in asked["chat"].items()}
    in_vllm(
        Path(vllm_python).with_name("posgap"), "sweep", *(f"--{k.replace('_', '-')}={v}" for k, v in options.items())
    )
    assert predictions(tmp_path / "in-vllm") == predictions(here["chat"])
    assert read_sweep(tmp_path / "in-vllm").scaling == read_sweep(here["chat"]).scaling == {"factors": FACTORS}
    with vllm_server(vllm_python, tmp_path / "chat", tmp_path / "server.log") as url:
        for endpoint, folder in here.items():
            changes = sweep_options(tmp_path, "tiny", backend="openai", base_url=url, endpoint=endpoint)
            there = sweep_model(SweepConfig(out=tmp_path / f"{endpoint}-there", **changes | asked[endpoint]))
            assert predictions(there) == predictions(folder)


@pytest.mark.full
def test_responses_by_vllm_train_as_those_by_transformers_do(vllm_python, tmp_path, tokenizer):
    """The teacher by vLLM; its states by whoever trains."""
    save_model(model("llama"), tokenizer, tmp_path / "model")
    options = sweep_options(tmp_path, tmp_path / "model", advantageous="1,8", keep_incorrect=True)
    options.pop("max_unanswered")
    here = teacher(TeacherConfig(out=tmp_path / "here", **options))
    there = tmp_path / "there"
    switches = ["--keep-incorrect", "--backend", "vllm", "--out", there]
    asked = (f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "keep_incorrect")
    in_vllm(vllm_python, Path(vllm_python).with_name("posgap"), "teacher", *asked, *switches)
    assert (there / "responses.jsonl").read_bytes() == (here / "responses.jsonl").read_bytes()
    assert len({response.response for response in read_responses(here)}) > 6  # of 12
    learnt = {"examples": options["examples"], "model": options["model"], "epochs": 1, "k": 1}
    models = [
        distill(DistillConfig(responses=taught, out=tmp_path / f"of-{taught.name}", **learnt))
        for taught in (here, there)
    ]
    assert len({(out / "model.safetensors").read_bytes() for out in models}) == 1
    assert len({(out / "history.jsonl").read_bytes() for out in models}) == 1


@pytest.mark.full
def test_a_search_by_generation_finds_in_vllm_what_it_finds_in_transformers(vllm_python, tmp_path, tokenizer):
    """Each candidate's scores, in compiled code that was made before its factors."""
    save_model(model("llama"), tokenizer, tmp_path / "model")
    options = sweep_options(tmp_path, tmp_path / "model", metric="f1", population=4, generations=2)
    options.pop("max_unanswered")
    here = read_json(scale_search(ScaleSearchConfig(out=tmp_path / "here", **options)) / "scaling.json")
    asked = (f"--{name.replace('_', '-')}={value}" for name, value in options.items())
    in_vllm(
        Path(vllm_python).with_name("posgap"),
        *("scale", "search", *asked, "--backend", "vllm", "--out", tmp_path / "there"),
    )
    there = read_json(tmp_path / "there" / "scaling.json")
    assert here.pop("settings")["backend"] == "transformers" and there.pop("settings")["backend"] == "vllm"
    assert here == there and here["fitness"] > here["unscaled_fitness"] > 0


@pytest.mark.full
@pytest.mark.parametrize("compiled", [False, True])
def test_transformers_model_within_vllm_is_scaled_compiled_or_not(vllm_python, tmp_path, tokenizer, compiled):
    """Asked for by `model_impl`, where vLLM has a model of its own too."""
    scaled = scale_model(model("llama"), FACTORS)
    save_model(scaled, tokenizer, tmp_path / "scaled")
    prompt = [7, 9, 11, 13, 5, 8, 21, 30]
    out = tmp_path / "out.json"
    code = f"""
import json
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder = {str(tmp_path / "scaled")!r}
    llm = LLM(folder, model_impl="transformers", dtype="float32", max_model_len=64, enforce_eager={not compiled})
    asked = SamplingParams(max_tokens=1, temperature=0, logprobs=20)
    (answer,) = llm.generate([{{"prompt_token_ids": {prompt}}}], asked)
    row = answer.outputs[0].logprobs[0]
    json.dump({{int(token): found.logprob for token, found in row.items()}}, open({str(out)!r}, "w"))
"""
    (tmp_path / "ask.py").write_text(code)
    in_vllm(vllm_python, tmp_path / "ask.py")
    with torch.inference_mode():
        expected = scaled(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    for token, value in json.loads(out.read_text()).items():
        assert value == pytest.approx(float(expected[int(token)]), abs=1e-4)


@pytest.mark.full
def test_what_vllm_cannot_scale_it_does_not_serve(vllm_python, tmp_path, tokenizer):
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    save_model(scale_model(model("olmo2", rope_parameters=dynamic), FACTORS), tokenizer, tmp_path / "scaled")
    command = [Path(vllm_python).with_name("posgap"), "doctor", "--model", tmp_path / "scaled"]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True)
    (complaint,) = [line for line in done.stderr.splitlines() if line.startswith("posgap: error")]
    assert done.returncode == 2 and "its RoPE depends on the longest prompt of a batch" in complaint
    assert "Traceback" not in done.stderr.rpartition("posgap: error")[2]


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}])
def test_serve_check_reads_the_factors_off_the_loaded_model(capsys, tmp_path, tokenizer, rope, monkeypatch):
    save_model(
        scale_model(model("llama", **({"rope_parameters": rope} if rope else {})), FACTORS), tokenizer, tmp_path / "m"
    )
    words = ["doctor", "--model", tmp_path / "m", "--backend", "transformers"]
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert not stopped.value.code
    head, *layers = capsys.readouterr().out.splitlines()[-4:]
    assert head.endswith("posgap_rope_factors [1.0, 1.3, 1.7]")
    assert [line.split()[-1] for line in layers] == ["1.0000", "1.3000", "1.7000"]
    # A loader that forgets the factors is found out.
    monkeypatch.setattr("posgap.mitigations.in_force.apply_configured", lambda model: model)
    code, complaint = run(capsys, *words)
    assert code == 2 and "transformers ignores the factors in its config" in complaint
