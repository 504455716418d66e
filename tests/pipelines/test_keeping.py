"""A KFP step that is tried again on another node goes on from its unfinished work, which S3 keeps."""

import logging
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from endpoint import Endpoint, served
from examples import kv_example
from pods import defaults
from s3 import keys, put

from posgap.components.table import distill as distill_component
from posgap.components.table import sweep as sweep_component
from posgap.data.reading import write_examples
from posgap.foundation.errors import TerminationSignal
from posgap.foundation.files import work_folder
from posgap.kubeflow import keeping, steps
from posgap.kubeflow.keeping import keep_work
from posgap.kubeflow.steps import STEPS
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.unfinished import Unfinished
from posgap.pipelines.compilation import load
from posgap.pipelines.resources import resources
from posgap.pipelines.steps import tree
from posgap.tracking.version_record import swept_champions

N, DOCS = 6, 4


def output(bucket, tmp_path, node) -> SimpleNamespace:
    """The step's output as KFP hands it to a try on a node: always the same address, on a disk of the node's own."""
    folder = tmp_path / node / "salt"
    folder.mkdir(parents=True)
    return SimpleNamespace(uri=f"{bucket}/kfp/run/step/salt/out", path=str(folder / "out"), metadata={})


def work_of(out) -> Path:
    return work_folder(Path(out.path))


def unfinished(bucket) -> list[str]:
    return [key.rpartition("/")[2] for key in keys(f"{bucket}/kfp/run/step/salt/out.work")]


def test_what_a_try_leaves_the_next_one_finds_and_success_removes(bucket, tmp_path):
    first, second = (output(bucket, tmp_path, node) for node in ("one", "two"))
    with pytest.raises(TerminationSignal), keep_work(first):
        work_of(first).mkdir(parents=True)
        (work_of(first) / "answers.jsonl").write_text("1\n")
        Path(first.path).with_name("beside").write_text("no work")
        signal.raise_signal(signal.SIGTERM)
    assert unfinished(bucket) == ["answers.jsonl"]
    with keep_work(second) as place:
        assert (work_of(second) / "answers.jsonl").read_text() == "1\n"
        assert place == f"{bucket}/kfp/run/step/salt/out.work"
    assert unfinished(bucket) == []


def test_work_that_lies_elsewhere_is_kept_too(bucket, tmp_path, monkeypatch):
    """A champion's sweep is made in the cache, which a pod takes along."""
    for at, node in enumerate(("one", "two")):
        monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / node / "cache"))
        answers = work_folder(swept_champions() / "version" / "sweep") / "answers.jsonl"
        with pytest.raises(TerminationSignal), keep_work(output(bucket, tmp_path, node), below=swept_champions()):
            assert answers.exists() == bool(at)
            answers.parent.mkdir(parents=True, exist_ok=True)
            answers.write_text("1\n")
            raise TerminationSignal("stopped")
    assert unfinished(bucket) == ["answers.jsonl"]


def test_a_node_that_dies_without_a_word_loses_at_most_the_interval(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "SECONDS", 0.02)
    out = output(bucket, tmp_path, "one")
    with keep_work(out):
        work_of(out).mkdir(parents=True)
        for text in ("1\n", "1\n2\n"):
            (work_of(out) / "answers.jsonl").write_text(text)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and _sent(bucket) != text:
                time.sleep(0.02)
            assert _sent(bucket) == text


def _sent(bucket) -> str:
    """What S3 has of the answers now."""
    (key,) = keys(f"{bucket}/kfp/run/step/salt/out.work") or [""]
    return key and boto3.client("s3").get_object(Bucket=bucket[5:], Key=key)["Body"].read().decode()


@pytest.mark.parametrize("operation", ["ListObjectsV2", "PutObject"])
def test_where_s3_refuses_the_step_does_its_work_all_the_same(bucket, tmp_path, s3_calls, caplog, operation):
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)
    s3_calls.fail = lambda called, key: refused if called == operation else None
    out = output(bucket, tmp_path, "one")
    with caplog.at_level(logging.WARNING, logger="posgap"), pytest.raises(ZeroDivisionError), keep_work(out):
        work_of(out).mkdir(parents=True)
        (work_of(out) / "answers.jsonl").write_text("1\n")
        raise ZeroDivisionError
    assert f"{out.uri}.work: unfinished work is not kept there: " in caplog.text


def test_a_node_that_still_writes_is_no_obstacle_to_the_next_try(bucket, tmp_path, s3_calls, caplog):
    out = output(bucket, tmp_path, "two")
    key = f"{out.uri}.work/.posgap-out/work/answers.jsonl"
    put(key, b"1\n")
    s3_calls.fail = lambda called, name: put(key, b"1\n2\n") if called == "GetObject" else None
    with caplog.at_level(logging.WARNING, logger="posgap"), keep_work(out):
        assert not work_of(out).exists() or not list(work_of(out).iterdir())
    assert "has changed since it was listed" in caplog.text


def test_a_pipeline_root_on_a_disk_keeps_nothing(tmp_path):
    with keep_work(SimpleNamespace(uri=str(tmp_path / "out"), path=str(tmp_path / "out"))) as place:
        assert place == ""


def test_a_sweep_s_retry_on_another_node_asks_only_what_is_left(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(N)])
    add, answered = Unfinished.add, []

    def stopped_at_the_fifth(self, *answer):
        add(self, *answer)
        answered.append(answer)
        if len(answered) == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Unfinished, "add", stopped_at_the_fifth)
    with served(Endpoint()) as endpoint:

        def step(node):
            out = output(bucket, tmp_path, node)
            pages = {n: SimpleNamespace(path=str(tmp_path / node / n), log_metric=print) for n in ("curve", "metrics")}
            given = {"backend": "openai", "base_url": endpoint.url, "n_docs": DOCS, "concurrency": 1}
            examples = SimpleNamespace(path=str(tmp_path / "e.jsonl"), uri="")
            model = SimpleNamespace(path="served", uri="")
            required = {"examples": examples, "model": model, "out": out, **pages}
            sweep_component.python_func(**required, **given, **defaults(sweep_component, {*required, *given}))
            return read_sweep(Path(out.path))

        with pytest.raises(TerminationSignal):
            step("one")
        assert len(unfinished(bucket)) >= 1
        asked = endpoint.seen.total()
        assert step("two").n_examples == N
    assert endpoint.seen.total() - asked == N * DOCS - 5
    assert unfinished(bucket) == []


@pytest.mark.parametrize(("settings", "work"), [({}, ".work"), ({"work": "s3://lab/work"}, "s3://lab/work")])
def test_training_has_its_checkpoints_below_the_pipeline_root(bucket, tmp_path, monkeypatch, settings, work):
    asked, out = [], output(bucket, tmp_path, "one")
    monkeypatch.setattr(steps, "on_all_gpus", lambda stage, config: asked.append(config))
    monkeypatch.setitem(steps.STEPS, "distill", replace(steps.STEPS["distill"], show=lambda: None))
    inputs = {n: SimpleNamespace(path=str(tmp_path / n), uri="") for n in ("examples", "responses", "model")}
    given = {"out": out, "metrics": None, "settings": settings, "method": "r1"}
    distill_component.python_func(**inputs, **given, **defaults(distill_component, {*inputs, *given}))
    assert str(asked[0].work).endswith(work)


@pytest.mark.full
def test_every_long_step_keeps_its_work():
    steps = [step for name in ("mitigation", "watch") for step in tree(load(None, name), {}).steps()]
    long = {step.name: " ".join(step.container["command"]) for step in steps if resources(step).on_accelerator}
    verbs = {name: re.search(r'run_step\("(\w+)"', program)[1] for name, program in long.items()}
    assert len(verbs) == 9 and all(STEPS[verb].keeps_work for verb in verbs.values())
