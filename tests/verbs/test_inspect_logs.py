"""Logs of Inspect as sweeps: one that Inspect 0.3.285 wrote of SmolLM2, as `inspect log dump` prints it without its
events. `make frameworks` reads the files themselves."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.tasks.examples import EXAMPLE
from posgap.verbs.inspect_logs import plan_samples, sweep_of_log

RECORDED = Path(__file__).with_name("inspect-log.json.gz")


class Row(dict):
    """A part of a log, whose fields are attributes, as those of Inspect's classes."""

    __getattr__ = dict.get


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The log's file, whose content a test may change before it is read."""
    content = json.loads(gzip.decompress(RECORDED.read_bytes()), object_hook=Row)
    reads = SimpleNamespace(read_eval_log=lambda file, header_only=False: content)
    monkeypatch.setitem(sys.modules, "inspect_ai", SimpleNamespace(log=reads))
    monkeypatch.setitem(sys.modules, "inspect_ai.log", reads)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.eval").touch()
    return content


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return ended.value.code


def test_a_log_is_the_sweep_of_its_answers(log):
    place = sweep_of_log(Path("a.eval"))
    sweep = read_sweep(place)
    said = {(row["id"], *row["placement"]): row for row in read_predictions(place)}
    assert sweep.n_docs == 5 and sweep.model == "hf/smollm2" and len(said) == len(log.samples)
    for sample in log.samples:
        row = said[sample.metadata["example"]["id"], int(sample.metadata["position"])]
        score = sample.scores["position_score"]
        assert (row["response"], row["correct"]) == (score["answer"], bool(score["value"]))
        assert row.get("cut", False) == (sample.output.choices[0]["stop_reason"] == "max_tokens")
    assert sweep.accuracy == [log.results.scores[0].metrics[str(at)]["value"] for at in range(1, 6)]
    assert sweep.gap == log.results.scores[0].metrics["gap"]["value"]


def test_the_samples_are_those_that_inspect_asked(log):
    options = log.eval.metadata["posgap"]
    examples = {sample.metadata.example["id"]: sample.metadata.example for sample in log.samples}
    write_examples(Path("e.jsonl"), map(EXAMPLE.validate_python, examples.values()))
    _, sampling, samples = plan_samples(options, "e.jsonl")
    assert sampling.limit == options["max_new_tokens"]
    recorded = {sample.id: sample for sample in log.samples}
    assert len(samples) == len(recorded)
    for sample in samples:
        asked = recorded[sample["id"]]  # by a digest of what is asked
        assert (sample["target"], sample["metadata"]["position"]) == (asked.target, asked.metadata.position)
    _, _, made = plan_samples({"task": "kv", "n_docs": 4, "baselines": "closed-book"}, n_examples=3)
    assert [sum(each["metadata"]["is_baseline"] is so for each in made) for so in (True, False)] == [3, 12]


def test_view_and_compare_take_logs(log):
    Path("other.eval").touch()
    assert run("view", ".") == 0
    assert Path("index.html").exists()
    assert sorted(map(str, Path(".").glob("*.posgap/sweep/sweep.json"))) == [
        f"{name}.posgap/sweep/sweep.json" for name in ("a", "other")
    ]
    assert run("compare", "a.eval", "other.eval", "--out", "c") == 0
    assert json.loads(Path("c/comparison.json").read_text())["differences"][0]["mean"] == 0


def test_a_log_that_was_written_again_is_read_again(log):
    first = read_sweep(sweep_of_log(Path("a.eval"))).mean
    for sample in log.samples:
        sample.output.choices[0].message["content"] = sample.target[0]
    assert first < read_sweep(sweep_of_log(Path("a.eval"))).mean == 100


@pytest.mark.parametrize("how", ["an error of the sample", "an output without choices"])
def test_failed_samples_are_failed_prompts(log, how):
    for sample in log.samples[:2]:
        if how == "an error of the sample":
            sample["error"] = Row(message="the model went away")
        else:
            sample.output["choices"] = []
    with pytest.raises(PosgapError, match="failed 2"):
        sweep_of_log(Path("a.eval"))


@pytest.mark.parametrize("fault", ["other task", "no options", "no samples", "lacks samples", "option", "example"])
def test_what_is_no_sweep_is_refused(log, fault):
    match fault:
        case "other task":
            log.eval.metadata.clear()
        case "no options":
            log.eval.metadata["posgap"] = "kv"
        case "example":
            log.samples[3].metadata["example"] = {"id": 3}
        case "no samples":
            log["samples"] = []
        case "lacks samples":
            log.samples.pop()
        case "option":
            log.eval.metadata["posgap"]["lengths"] = ["1k"]
    words = {"other task": "posgap/position", "no options": "posgap/position", "option": "lengths"}
    words["example"] = f"sample {log.samples[3].id if fault == 'example' else ''}: "
    with pytest.raises(PosgapError, match=words.get(fault, " 30 samples")):
        sweep_of_log(Path("a.eval"))


def test_a_log_that_cannot_be_read_is_left_out_of_the_view(log, caplog):
    def read(file, header_only=False):
        if file.endswith("cut.eval"):
            raise ValueError("EOCD not found")
        return log

    sys.modules["inspect_ai.log"].read_eval_log = read
    Path("cut.eval").touch()
    assert run("view", ".") == 0
    assert "left out: cut.eval: Inspect cannot read this log: EOCD not found" in caplog.text
    assert [str(path) for path in Path(".").glob("*.posgap/sweep/sweep.json")] == ["a.posgap/sweep/sweep.json"]
