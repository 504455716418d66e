"""Inspect asks, scores and counts as `posgap sweep` does, response by response. `make inspect` runs this."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from endpoint import Endpoint, retrieve, served
from examples import kv_example
from llamas import CHAT, random_model
from transformers import LlamaConfig, Qwen2Config

import posgap
from posgap.demo import tiny_model
from posgap.models.loading import save_model
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS

if not importlib.util.find_spec("inspect_ai"):
    pytest.skip("Inspect is not installed here: `make inspect` runs these in an environment of their own", True)

from inspect_ai import eval as inspect_eval
from inspect_ai.log import read_eval_log
from inspect_ai.model import get_model

from posgap.peers.inspect_tasks import POSITION_TASKS


class Named(Endpoint):
    """An endpoint whose answers say which model gave them, as OpenAI's own client demands."""

    def reply(self, body: dict, headers: dict) -> tuple[int, dict, str]:
        status, more, text = super().reply(body, headers)
        return status, more, json.dumps(json.loads(text) | {"model": body["model"]})


PLAIN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture
def kv_file(tmp_path) -> Path:
    write_examples(tmp_path / "kv.jsonl", [kv_example(number) for number in range(12)])
    return tmp_path / "kv.jsonl"


def by_inspect(model, tmp_path: Path, **options):
    (log,) = inspect_eval(POSITION_TASKS["kv"](**options), model=model, log_dir=str(tmp_path / "logs"), display="none")
    assert log.status == "success", log.error
    return log


def require_equal(log, swept) -> None:
    """Every response, every score and every figure."""
    (score,) = log.results.scores
    by_sample = {sample.id: next(iter(sample.scores.values())) for sample in log.samples}
    assert len(by_sample) == len(swept.predictions)
    for row in swept.predictions:
        theirs = by_sample[f"{row['id']} at {row['placement'][0]}"]
        assert (theirs.answer, theirs.as_float()) == (row["response"], float(row["correct"]))
    figures = {name: 100 * metric.value for name, metric in score.metrics.items()}
    assert [figures[name] for name in ("gap", "gap_low", "gap_high")] == pytest.approx(list(swept.gap))
    assert [figures[f"at_{name}"] for name in swept.figures.placement_names] == pytest.approx(swept.figures.accuracy)
    assert figures["accuracy"] == pytest.approx(swept.figures.mean)
    assert figures["unanswered"] == pytest.approx(swept.figures.outcomes.percent_unanswered)


@pytest.mark.parametrize(("family", "chat"), [(LlamaConfig, False), (Qwen2Config, False), (Qwen2Config, True)])
def test_inspect_answers_and_counts_as_a_sweep(family, chat, tmp_path, kv_file):
    tokenizer = tiny_model.tokenizer()
    if chat:
        tokenizer.chat_template = CHAT
    save_model(random_model(family).float(), tokenizer, tmp_path / "model")
    options = {"n_docs": 6, "max_new_tokens": 5, "metric": "contains_any"}
    swept = posgap.sweep(tmp_path / "model", kv_file, max_unanswered=100, **options)
    assert len({row["response"] for row in swept.predictions}) > 5 and swept.gap.value > 0
    # Without a chat template Inspect writes "user: " before a prompt; with one it lets the tokenizer begin it twice.
    asked = {"tokenizer_call_args": {"add_special_tokens": False}} if chat else {"chat_template": PLAIN}
    model = get_model(f"hf/{tmp_path / 'model'}", device="cpu", do_sample=False, memoize=False, **asked)
    require_equal(by_inspect(model, tmp_path, examples=str(kv_file), **options), swept)


def test_an_endpoint_is_asked_as_a_sweep_asks_it(tmp_path, kv_file, monkeypatch):
    def forgets_the_middle(text: str) -> str:
        lines = text.splitlines()
        right, place = retrieve(text), next(i for i, line in enumerate(lines) if retrieve(text) in line)
        return "" if place % 5 == 0 else f"<think>{right}</think>\n{right}" if place % 3 else "nothing"

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with served(Named(forgets_the_middle)) as endpoint:
        swept = posgap.sweep(
            endpoint.url, kv_file, name="served", n_docs=6, max_unanswered=100, positions=["1", "3", "6"]
        )
        asked = [body["messages"] for body in endpoint.bodies]
        model = get_model("openai/served", base_url=endpoint.url, responses_api=False, memoize=False)
        log = by_inspect(model, tmp_path, examples=str(kv_file), n_docs=6, positions=[1, 3, 6])
    theirs = [body["messages"] for body in endpoint.bodies[len(asked) :]]
    assert sorted(map(str, theirs)) == sorted(map(str, asked))
    limits = {body.get("max_tokens") or body["max_completion_tokens"] for body in endpoint.bodies}
    assert limits == {swept.figures.asked.max_new_tokens}
    assert swept.gap.value > 0 and swept.figures.outcomes.empty
    require_equal(log, swept)


def test_the_command_line_finds_the_tasks_by_their_entry_point(tmp_path):
    command = [Path(sys.executable).parent / "inspect", "eval", "posgap/multihop-coc", "--model", "openai/served"]
    options = ["-T", "examples=2", "-T", "n_docs=4", "-T", "positions=1+2,4+1", "--log-dir", "logs"]
    with served(Named(lambda text: "nobody knows")) as endpoint:
        there = ["--model-base-url", endpoint.url, "-M", "responses_api=false", "--display", "none"]
        environment = os.environ | {"OPENAI_API_KEY": "none"}
        # In the checkout the folder of its metadata would stand before the installed one.
        subprocess.run([*command, *options, *there], cwd=tmp_path, env=environment, check=True, capture_output=True)
    (log,) = [read_eval_log(file) for file in (tmp_path / "logs").iterdir()]
    assert [sample.id for sample in log.samples] == [
        f"{id} at {at}" for id in ("two-hop-00001", "two-hop-00002") for at in ("1+2", "4+1")
    ]
    assert log.results, log.error
    (score,) = log.results.scores
    assert {"gap", "connected", "reversed", "at_1+2", "at_4+1"} < set(score.metrics)
    assert set(POSITION_TASKS) == set(TASKS.names())
