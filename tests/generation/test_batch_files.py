"""The requests of a sweep as a provider's batch files, and what came back, beside a direct sweep of the same model."""

import json
import random
from pathlib import Path

import pytest
from endpoint import Endpoint, served
from examples import kv_example

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.generation import batches
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.verbs.sweep import sweep_model as sweep

DOCS, N = 4, 8
USAGE = {"prompt_tokens": 50, "completion_tokens": 4}


def answer(text):
    """Reads the first and the last record alone; one that thinks aloud, and one that is cut."""
    records, _, key = text.rpartition("Key:")
    rows = records[records.index("{") + 1 :].rstrip("} \n").split(",\n ")
    own = [each for each in (rows[0], rows[-1]) if each.startswith(key.split("\n")[0].strip())]
    said = own[0].split('"')[3] if own else "<think>hm</think> nothing\nKey: 1"
    return said, "length" if "nothing" in said else "stop"


def completion(text):
    said, reason = answer(text)
    return {
        "id": "c",
        "model": "m-1",
        "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": reason}],
        "usage": USAGE,
    }


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs a command there, and returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path / "e.jsonl", [kv_example(number) for number in range(N)])

    def command(*words):
        with pytest.raises(SystemExit) as ended:
            main(["sweep", "m", "--examples", "e.jsonl", "--n-docs", str(DOCS), "--out", "out", *map(str, words)])
        said = capfd.readouterr()
        return ended.value.code, said.out + said.err

    return command


@pytest.fixture(scope="module")
def direct(tmp_path_factory):
    """The sweep of the same model, asked directly."""
    folder = tmp_path_factory.mktemp("direct")
    write_examples(folder / "e.jsonl", [kv_example(number) for number in range(N)])
    endpoint = Endpoint(misbehave=lambda text, times: (200, {}, json.dumps(completion(text))))
    with served(endpoint):
        shared = {"examples": folder / "e.jsonl", "model": "m", "n_docs": DOCS, "out": folder / "out"}
        return sweep(SweepConfig(base_url=endpoint.url, **shared))


def text_of(request):
    body = request.get("body") or request.get("params") or request
    return body["messages"][-1]["content"]


def asked(folder):
    found = []
    for file in sorted(Path(folder).iterdir()):
        lines = file.read_text().splitlines()
        found += json.loads(file.read_text())["requests"] if file.suffix == ".json" else map(json.loads, lines)
    return found


def openai(request, status=200):
    body = completion(text_of(request)) if status == 200 else {"error": {"message": "no", "code": "bad"}}
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": "batch_req_1", "custom_id": request["custom_id"], "response": response, "error": None}


def anthropic(request):
    said, reason = answer(text_of(request))
    content = [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": said}]
    usage = {"input_tokens": 50, "output_tokens": 4}
    ends = {"stop": "end_turn", "length": "max_tokens"}[reason]
    message = {"type": "message", "model": "m-1", "content": content, "stop_reason": ends, "usage": usage}
    return {"custom_id": request["custom_id"], "result": {"type": "succeeded", "message": message}}


def plain(request):
    said, reason = answer(text_of(request))
    return {"id": request["id"], "text": said, "finish_reason": reason, "usage": USAGE, "model": "m-1"}


def write(name, rows):
    Path(name).write_text("\n".join(map(json.dumps, rows)) + "\n")


def compared(folder):
    figures, rows = read_sweep(folder).model_dump(mode="json"), read_predictions(folder)
    figures.pop("pace")
    figures["spent"].pop("seconds")
    for where in ("base_url", "concurrency"):
        figures["settings"].pop(where)
    return figures, [{name: value for name, value in row.items() if name != "thoughts"} for row in rows]


@pytest.mark.parametrize(
    ("form", "provider"),
    [
        ("openai", openai),
        pytest.param("anthropic", anthropic, marks=pytest.mark.full),  # the same way, and a second more each
        pytest.param("jsonl", plain, marks=pytest.mark.full),
    ],
)
def test_a_batch_gives_the_figures_of_a_direct_sweep(run, direct, form, provider):
    code, said = run("--requests", "asked", "--batch-format", form)
    assert code == 0, said
    requests = asked("asked")
    assert code == 0 and len(requests) == N * DOCS and f"{N * DOCS} requests:" in said and not Path("out").exists()
    rows = [provider(request) for request in requests]
    random.Random(0).shuffle(rows)
    write("one.jsonl", rows[:20])
    code, said = run("--answers", "one.jsonl")
    assert code == 2 and "12 of 32 answers are missing" in said
    assert run("--requests", "left", "--batch-format", form)[0] == 0 and len(asked("left")) == 12
    write("two.jsonl", rows[20:])
    assert run("--answers", "two.jsonl")[0] == 0
    assert compared(Path("out")) == compared(direct)
    assert "is complete, reused" in run("--answers", "one.jsonl,two.jsonl")[1]


def test_lm_evaluation_harness_gets_a_task_and_its_samples_are_answers(run, direct):
    code, said = run("--requests", "asked", "--batch-format", "lm-eval", "--max-new-tokens", 9)
    task = json.loads(Path("asked/posgap_position.yaml").read_text())
    (file,) = task["dataset_kwargs"]["data_files"]["test"]
    docs = [json.loads(line) for line in Path(file).read_text().splitlines()]
    wanted = {"until": [], "max_gen_toks": 9, "do_sample": False, "temperature": 0.0}
    assert code == 0 and Path(file).is_absolute() and task["generation_kwargs"] == wanted and "description" not in task
    assert len(docs) == N * DOCS and f"{N * DOCS} requests:" in said
    # A line as `lm_eval run --log_samples` of 0.4.13 writes it, without its digests.
    rows = [
        {"doc_id": at, "doc": doc, "target": "", "resps": [[answer(doc["prompt"])[0]]]} for at, doc in enumerate(docs)
    ]
    write("samples.jsonl", rows)
    assert run("--answers", "samples.jsonl", "--max-new-tokens", 9)[0] == 0
    assert read_sweep(Path("out")).accuracy == read_sweep(direct).accuracy
    assert run("--answers", "samples.jsonl")[0] == 2  # other requests, so other ids


def test_lm_evaluation_harness_is_given_a_system_message_and_bare_prompts(run):
    assert run("--requests", "asked", "--batch-format", "lm-eval", "--system", "Be brief.")[0] == 0
    doc = json.loads(Path("asked/requests-001.jsonl").read_text().splitlines()[0])
    assert json.loads(Path("asked/posgap_position.yaml").read_text())["description"] == "{{system}}"
    assert doc["system"] == "Be brief." and doc["prompt"].startswith("Extract")
    assert run("--requests", "bare", "--batch-format", "lm-eval", "--endpoint", "completions")[0] == 0
    bare = json.loads(Path("bare/requests-001.jsonl").read_text().splitlines()[0])
    assert bare["system"] == "" and bare["prompt"] == doc["prompt"]


def test_requests_are_in_the_provider_s_own_form(run):
    run("--requests", "o", "--system", "Be brief.", "--max-new-tokens", 7, "--stop", "X")
    run("--requests", "a", "--system", "Be brief.", "--max-new-tokens", 7, "--batch-format", "anthropic")
    line, (other, *_) = asked("o")[0], asked("a")
    assert (line["method"], line["url"]) == ("POST", "/v1/chat/completions") and len(line["custom_id"]) <= 64
    body = line["body"]
    assert (body["model"], body["max_completion_tokens"], body["temperature"], body["seed"]) == ("m", 7, 0, 0)
    assert [each["role"] for each in body["messages"]] == ["system", "user"] and "stop" not in body
    assert other["params"].keys() == {"model", "messages", "max_tokens", "temperature", "system"}
    assert [each["role"] for each in other["params"]["messages"]] == ["user"]
    code, said = run("--requests", "c", "--endpoint", "completions", "--batch-format", "anthropic")
    assert code == 2 and "has only chats" in said
    run("--requests", "c2", "--endpoint", "completions")
    assert asked("c2")[0]["url"] == "/v1/completions" and "prompt" in asked("c2")[0]["body"]


def test_files_are_cut_at_the_provider_s_limits(run, monkeypatch):
    monkeypatch.setitem(batches.FORMATS, "openai", batches.BatchFormat(10, 10**6))
    run("--requests", "by-number")
    assert [len(Path(file).read_text().splitlines()) for file in sorted(Path("by-number").iterdir())] == [10, 10, 10, 2]
    monkeypatch.setitem(batches.FORMATS, "openai", batches.BatchFormat(10**6, 2000))
    run("--requests", "by-size")
    sizes = [file.stat().st_size for file in Path("by-size").iterdir()]
    assert len(sizes) > 5 and max(sizes) <= 2000 and len(asked("by-size")) == N * DOCS


def test_failed_and_refused_answers_are_missing_and_asked_for_again(run):
    run("--requests", "asked")
    rows = [openai(request) for request in asked("asked")]
    rows[0] = openai(asked("asked")[0], 500)
    rows[1] = rows[1] | {"response": None, "error": {"code": "batch_expired", "message": "too late"}}
    rows[3]["response"]["body"] = completion(text_of(asked("asked")[3])) | {"choices": []}
    refused = {"error": {"message": "flagged", "code": "content_policy_violation"}}
    rows[2]["response"] = {"status_code": 400, "body": refused}
    write("back.jsonl", rows)
    code, said = run("--answers", "back.jsonl")
    assert code == 2 and "4 of 32 prompts were not answered (refused 1, failed 3)" in said
    run("--requests", "again")
    assert [each["custom_id"] for each in asked("again")] == [rows[at]["custom_id"] for at in (0, 1, 3)]
    write("later.jsonl", map(openai, asked("again")))
    code, said = run("--answers", "later.jsonl", "--max-unanswered", 20)
    assert code == 0 and (read_sweep(Path("out")).outcomes.failed, read_sweep(Path("out")).outcomes.refused) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("errored", {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}), ("expired", None)],
)
def test_anthropic_s_failures_are_failed_prompts(run, kind, error):
    run("--requests", "asked", "--batch-format", "anthropic")
    rows = [anthropic(request) for request in asked("asked")]
    rows[5]["result"] = {"type": kind} | ({"error": error} if error else {})
    write("back.jsonl", rows)
    assert run("--answers", "back.jsonl", "--max-unanswered", 20)[0] == 0
    (row,) = [row for row in read_predictions(Path("out")) if "outcome" in row]
    assert row["outcome"] == "failed" and row["reason"] == ("400 Bad Request: no" if error else "expired")


def test_unknown_and_double_ids_are_refused(run):
    run("--requests", "asked")
    rows = [openai(request) for request in asked("asked")]
    write("back.jsonl", rows)
    code, said = run("--answers", "back.jsonl", "--max-new-tokens", 9)
    assert code == 2 and "belongs to no request of this sweep (32 of 32 ids do not)" in said
    write("twice.jsonl", rows[:1])
    code, said = run("--answers", "back.jsonl,twice.jsonl")
    assert code == 2 and "twice.jsonl:1: the id posgap-" in said and "is already at back.jsonl:1" in said
    write("no.jsonl", [{"text": "a"}])
    assert "has no `custom_id`" in run("--answers", "no.jsonl")[1]
    write("no.jsonl", [{"id": rows[0]["custom_id"], "said": "a"}])
    assert "is not an answer of OpenAI" in run("--answers", "no.jsonl")[1]
    rows[3]["response"]["body"]["model"] = "m-2"
    write("back.jsonl", rows)
    assert "the answers come from several models (m-1, m-2)" in run("--answers", "back.jsonl")[1]
    assert run("--answers", "back.jsonl", "--identity", "any")[0] == 0
    assert read_sweep(Path("out")).served.models == ("m-1", "m-2")


def test_what_cannot_be_a_batch_is_refused(run, tmp_path):
    Path("full").mkdir()
    Path("full", "a").touch()
    assert "already exists" in run("--requests", "full")[1]
    assert "backend transformers" in run("--requests", "new", "--backend", "transformers")[1]
    assert "no such file" in run("--answers", "nothing.jsonl")[1]
    assert "give only one" in run("--answers", "full/a", "--requests", "new")[1]
    assert "backend python" in run("--model", "python:os:getcwd", "--requests", "new")[1]


def test_a_mitigation_s_prompts_and_equal_prompts_are_asked_once(run):
    run("--requests", "asked", "--mitigation", "permutation", "--mitigation-settings", '{"orders": 3}')
    requests = asked("asked")
    assert len({each["custom_id"] for each in requests}) == len(requests) <= 3 * N * DOCS
    write("back.jsonl", map(openai, requests))
    words = ["--mitigation", "permutation", "--mitigation-settings", '{"orders": 3}']
    assert run("--answers", "back.jsonl", *words)[0] == 0
    assert read_sweep(Path("out")).spent.prompts == 3 * N * DOCS
