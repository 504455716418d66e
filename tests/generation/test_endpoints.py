"""Sweeps of endpoints: what is recorded of them, what they cost, and when they are asked again."""

import json
import logging

import pytest
import yaml
from endpoint import Endpoint, retrieve, served
from examples import kv_example

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import BadOutput, PosgapError
from posgap.generation import openai
from posgap.generation.served import EndpointChanged, EndpointIdentity
from posgap.measurement.spending import TokenTotals, estimated_tokens
from posgap.measurement.sweeps import read_sweep
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model

N, DOCS = 4, 3
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": 15}}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.002)


@pytest.fixture
def options(tmp_path, monkeypatch) -> dict:
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(N)])
    shared = {"examples": tmp_path / "e.jsonl", "model": "served", "backend": "openai", "n_docs": DOCS}
    return {**shared, "out": tmp_path / "out", "concurrency": 1}


def saying(**fields):
    """An endpoint that answers rightly, and says this of itself; what it says can be changed."""
    says = dict(fields)

    def answer(text, times):
        choice = {"message": {"content": retrieve(text) if "Key:" in text else ""}, "finish_reason": "stop"}
        return 200, {}, json.dumps({"choices": [choice], "usage": USAGE, **says})

    return Endpoint(misbehave=answer), says


def test_a_sweep_records_what_the_endpoint_says_and_what_it_took(options, tmp_path, caplog):
    endpoint, _ = saying(model="served-<b>0613", system_fingerprint="fp1")
    with served(endpoint):
        out = sweep_model(SweepConfig(base_url=endpoint.url, header={"X-Key": "hunter2222"}, **options))
        recorded = read_sweep(out)
        assert recorded.served == EndpointIdentity(models=("served-<b>0613",), fingerprints=("fp1",))
        spent = recorded.spent
        assert spent == TokenTotals(
            prompts=12, prompt_tokens=1200, completion_tokens=240, thinking_tokens=180, seconds=spent.seconds
        )
        assert spent.seconds > 0 and recorded.asked.decoding == "greedy"
        pace = recorded.pace
        assert (pace.answers, pace.at_once, pace.refusals, pace.repeated) == (12, 1, 0, 0)
        assert pace.per_second > 0 and 0 < pace.median_wait <= pace.p95_wait
        endpoint.seen.clear()
        sweep_model(SweepConfig(base_url=endpoint.url, **options | {"concurrency": 3, "timeout": 7.0}))
        assert endpoint.seen == {"Hello": 1}, "what changes no answer pays for no other sweep"
    page = (out / "sweep.html").read_text()
    assert "<dd>served-&lt;b&gt;0613</dd>" in page and "1,200 tokens of 12 prompts" in page
    for file in out.rglob("*"):
        assert b"hunter2222" not in (file.read_bytes() if file.is_file() else b""), file


def test_a_finished_sweep_is_not_replaced_by_another_question(options):
    endpoint, _ = saying()
    with served(endpoint):
        out = sweep_model(SweepConfig(base_url=endpoint.url, **options))
        before, other = (out / "manifest.json").read_bytes(), SweepConfig(base_url=endpoint.url, limit=2, **options)
        endpoint.seen.clear()
        with pytest.raises(BadOutput, match=f"^{out}: .* limit 0, .* 2; --force .*--out "):
            sweep_model(other)
        assert not endpoint.seen and (out / "manifest.json").read_bytes() == before
        write_examples(options["examples"], [kv_example(i) for i in range(2)])
        with pytest.raises(BadOutput, match=" examples "):
            sweep_model(SweepConfig(base_url=endpoint.url, **options))
        assert read_sweep(sweep_model(other.model_copy(update={"force": True}))).n_examples == 2


def test_a_complete_sweep_is_reused_only_of_an_endpoint_that_is_still_the_same(options, caplog):
    endpoint, says = saying(model="served-0613", system_fingerprint="fp1")
    with served(endpoint):
        config = SweepConfig(base_url=endpoint.url, **options)
        sweep_model(config)
        says["system_fingerprint"] = "fp2"
        with pytest.raises(PosgapError, match="fp1 to fp2.*--identity model .*--force"):
            sweep_model(config)
        asked = endpoint.seen.total()
        sweep_model(config.model_copy(update={"identity": "model"}))
        assert endpoint.seen.total() == asked + 1
        assert read_sweep(sweep_model(config.model_copy(update={"force": True}))).served.fingerprints == ("fp2",)
        endpoint.misbehave = lambda text, times: (400, {}, "no greetings")
        sweep_model(config)
        assert "no greetings, " in caplog.text
        caplog.clear()
    sweep_model(config)
    assert f" {options['out']}" in caplog.text


def test_a_sweep_that_goes_on_asks_for_the_endpoint_that_it_was(options, tmp_path):
    endpoint, says = saying(model="served-0613", system_fingerprint="fp1")
    answer = endpoint.misbehave
    endpoint.misbehave = lambda text, times: answer(text, times) if endpoint.seen.total() < 5 else (503, {}, "")
    with served(endpoint):
        config = SweepConfig(base_url=endpoint.url, **options)
        with pytest.raises(PosgapError, match="503"):
            sweep_model(config)
        says["system_fingerprint"], endpoint.misbehave = "fp2", answer
        endpoint.seen.clear()
        with pytest.raises(EndpointChanged, match="fp1 to fp2.*--identity model "):
            sweep_model(config)
        result = read_sweep(sweep_model(config.model_copy(update={"identity": "model"})))
        assert result.served.fingerprints == ("fp1", "fp2") and result.spent.prompts == N * DOCS
        assert endpoint.seen.total() == N * DOCS - 4 + 1


def test_a_sweep_in_which_too_many_prompts_fail_does_not_wait_for_the_others(options, tmp_path):
    write_examples(tmp_path / "many.jsonl", [kv_example(i) for i in range(40)])
    failing = Endpoint(misbehave=lambda text, times: (500, {}, "broken") if len(endpoint.seen) % 2 else None)
    with served(failing) as endpoint:
        config = SweepConfig(base_url=endpoint.url, **options | {"examples": tmp_path / "many.jsonl"})
        with pytest.raises(PosgapError, match=r"served: 25 of 120 prompts "):
            sweep_model(config)
        assert len(endpoint.seen) < 60
        endpoint.misbehave, asked = (lambda text, times: None), endpoint.seen.total()
        assert read_sweep(sweep_model(config)).mean == 100
        assert endpoint.seen.total() - asked < 100  # what was answered is not asked again


def test_what_was_left_out_is_recorded_and_greedy_is_then_not_what_was_asked(options):
    refusal = 400, {}, '{"error": {"message": "temperature is not supported", "param": "temperature"}}'
    with served(Endpoint()) as endpoint:
        endpoint.misbehave = lambda text, times: refusal if "temperature" in endpoint.bodies[-1] else None
        result = read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, body={"top_k": 1}, **options)))
    assert result.served.left_out == ("temperature",) and result.spent is None
    assert (result.asked.decoding, result.asked.body) == ("endpoint's own", {"top_k": 1})


def test_parts_are_merged_with_what_they_took_and_only_of_the_same_endpoint(options, tmp_path):
    endpoint, says = saying(model="served-0613", system_fingerprint="fp1")
    with served(endpoint):
        parts = [tmp_path / f"part{number}" for number in (1, 2, 3)]
        config = SweepConfig(base_url=endpoint.url, **options)
        for number, out in enumerate(parts, start=1):
            says["system_fingerprint"] = "fp1" if number < 3 else "fp2"
            sweep_model(config.model_copy(update={"out": out, "shard": f"{number}/3", "concurrency": number}))
    with pytest.raises(PosgapError, match="fingerprint"):
        merge(MergeConfig(sweeps=parts, out=tmp_path / "whole"))
    second = json.loads((parts[2] / "sweep.json").read_text())
    second["served"]["fingerprints"] = ["fp1"]
    (parts[2] / "sweep.json").write_text(json.dumps(second))
    whole = read_sweep(merge(MergeConfig(sweeps=parts, out=tmp_path / "whole")))
    assert whole.served.fingerprints == ("fp1",)
    assert (whole.spent.prompts, whole.spent.prompt_tokens) == (12, 1200)


def test_an_estimate_sends_nothing_and_makes_nothing(options, tmp_path, capsys):
    sweep_model(SweepConfig(base_url="http://127.0.0.1:9/v1", estimate=True, **options))
    line = capsys.readouterr().out
    assert line.startswith("12 prompts of about ") and line.endswith(f"answers of at most {12 * 100:,} tokens\n")
    assert not list(tmp_path.glob(".posgap-*")) and not (tmp_path / "out").exists()


def test_tokens_are_estimated_within_a_tenth_of_what_today_s_tokenizers_count():
    # Counted once by OpenAI's cl100k and o200k (bpe-openai 0.1.4).
    for text, tokens in TEXTS.items():
        assert abs(estimated_tokens(text) - tokens) <= 0.1 * tokens, text


TEXTS = {
    '{"2a8d601d-1d69-4e64-9f90-8ad825a74195": "bb3ba2a5-7de8-434b-a86e-a88bb9fa7289", '
    '"f4eb1c53-af0a-4dc4-a3a5-c2d50851a178": "d733b0d2-6af3-44e1-8592-e5637fdb76fb"}': 104,
    "Document [1](Title: Nobel Prize in Physics) The first Nobel Prize in Physics was awarded in 1901 to Wilhelm "
    "Conrad Röntgen, of Germany, who received 150,782 SEK, which is equal to 7,731,004 SEK in December 2007.": 60,
    "Write a high-quality answer for the given question using only the provided search results (some of which might be "
    "irrelevant).": 23,
}


SECRETS = {name: f"canary-{name}-4711" for name in ("QUERY", "BODY", "HEADER")}
# What a machine has in its environment, whatever is run on it.
OTHERS = ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "POSGAP_SIGNING_KEY")


@pytest.mark.full
@pytest.mark.parametrize("verb", ["sweep", "check"])
@pytest.mark.parametrize("given", ["as they are", "as variables", "in a file"])
def test_no_secret_of_an_endpoint_is_written_down(verb, given, tmp_path, monkeypatch, capsys):
    """A key in each address, one in the body, one in a header and those of the environment: in no file, log line, page,
    report or row of MLflow's database."""
    for name, value in (SECRETS | {name: f"canary-{name}-4711" for name in OTHERS}).items():
        monkeypatch.setenv(name, value)
    say = (lambda name: f"${name}") if given == "as variables" else SECRETS.get
    database = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    examples = tmp_path / "e.jsonl"
    write_examples(examples, [kv_example(i) for i in range(2)])
    faults = iter([(503, {}, "busy")] * 2)
    asked = []

    class Busy(Endpoint):
        def reply(self, body, headers):
            asked.append((body, headers))
            return next(faults, None) or super().reply(body, headers)

    with served(Busy(retrieve)) as endpoint:
        options = {
            "task": "kv",
            "n_docs": 3,
            "positions": [1, 3],
            "examples": str(examples),
            "model": "m",
            "backend": "openai",
            "base_url": f"{endpoint.url}?api-key={say('QUERY')}&api-version=2024-02-01",
            "header": {"X-Key": say("HEADER")},
            "body": {"user": {"password": say("BODY")}},
            "out": str(tmp_path / "out"),
        }
        if verb == "check":
            del options["backend"]
        words = [verb]
        if given == "in a file":
            # The file is a person's own; posgap writes no other.
            config = tmp_path.with_suffix(".yaml")
            config.write_text(yaml.safe_dump({verb: options}))
            words += ["--config", str(config)]
        else:
            for name, value in options.items():
                typed = {"positions": "1,3", "header": f"X-Key={say('HEADER')}", "body": json.dumps(options["body"])}
                words += [f"--{name.replace('_', '-')}", str(typed.get(name, value))]
        with pytest.raises(SystemExit) as ended:
            main(words)
    shown = capsys.readouterr()
    assert ended.value.code == (0 if verb == "sweep" else 7), shown.err  # two examples are too few to judge by
    assert {body["user"]["password"] for body, _ in asked} == {SECRETS["BODY"]}
    assert {headers["X-Key"] for _, headers in asked} == {SECRETS["HEADER"]}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert database in files and list(tmp_path.rglob("sweep.html"))
    for text in (shown.out, shown.err, *(file.read_bytes().decode("utf-8", "replace") for file in files)):
        assert "canary" not in text


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("I do not know.", ' 16 .*"I do not know."'),
        ("", " 16 responses are empty"),
        (("so, well", "length"), "16 of 16 .* 100 tokens .*--max-new-tokens 200"),
    ],
)
def test_no_more_than_a_handful_is_sent_where_nothing_can_come_of_it(options, caplog, said, why):
    write_examples(options["examples"], [kv_example(i) for i in range(20)])
    with served(Endpoint(lambda text: said)) as endpoint, caplog.at_level(logging.INFO):
        config = SweepConfig(base_url=endpoint.url, **options)
        with pytest.raises(PosgapError, match=f"served: .*{why}.* 44 prompts "):
            sweep_model(config)
        assert "60 prompts, in all about " in caplog.text and " tokens and answers of at most " in caplog.text
        asked = len(endpoint.seen)
        assert asked <= 16 + 1  # and a word, of which it was to say the tokens
        if said == "I do not know.":
            assert read_sweep(sweep_model(config)).mean == 0 and len(endpoint.seen) == asked + 44


def test_where_some_answer_is_right_all_is_sent(options):
    write_examples(options["examples"], [kv_example(i) for i in range(20)])
    first = kv_example(0).answers[0]
    with served(Endpoint(lambda text: first)) as endpoint:
        assert read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options))).mean > 0
