"""Stages that read from S3 and write there, through the command line and as functions."""

import json
import logging
import shutil
from pathlib import Path

import boto3
import pytest
from copy_stage import CopyConfig
from examples import kv_example
from refusals import refuses
from s3 import Killed, elsewhere, keys, put

from posgap.cli.main import main
from posgap.data.reading import read_examples, write_examples
from posgap.foundation import files
from posgap.foundation.errors import BadOutput, NotFound, Rejection, Unreadable
from posgap.foundation.locations import s3_cache
from posgap.kubeflow.arguments import to_config
from posgap.measurement.sweeps import read_sweep
from posgap.options.compare import CompareConfig
from posgap.options.demo import DemoConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import fetch_location, take_snapshot
from posgap.storage.folders import publish
from posgap.storage.inputs import source
from posgap.verbs.frame import stage
from posgap.verbs.sweep import sweep_model

N, DOCS = 6, 4


@pytest.fixture(autouse=True)
def no_tracking(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


def run(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def manifest(uri) -> dict:
    return json.loads(take_snapshot(uri).local_file("manifest.json").read_text())


@pytest.fixture
def given(bucket, tmp_path, model_folder) -> str:
    """A bucket with examples, and the untrained model."""
    write_examples(tmp_path / "train.jsonl.gz", [kv_example(i) for i in range(N)])
    put(f"{bucket}/data/train.jsonl.gz", (tmp_path / "train.jsonl.gz").read_bytes())
    for file in model_folder.iterdir():
        put(f"{bucket}/models/base/{file.name}", file.read_bytes())
    return bucket


def test_examples_are_validated_and_swept_from_s3_to_s3(given, tmp_path, monkeypatch, model_folder, capsys):
    shared = ["--model", f"{given}/models/base", "--n-docs", DOCS, "--max-new-tokens", 2]
    assert run("validate", *shared, "--examples", f"{given}/data/train.jsonl.gz", "--out", f"{given}/run/train") == 0
    swept = ["sweep", *shared, "--examples", f"{given}/run/train", "--out", f"{given}/run/base"]
    assert run(*swept) == 0
    assert keys(f"{given}/run/base") == [
        f"run/base/{name}"
        for name in (
            *("manifest.json", "model_card.md", "predictions.jsonl", "sweep.html", "sweep.json", "sweep.png"),
            "training_examples.json",
        )
    ]
    assert f"{s3_cache()}" not in capsys.readouterr().err
    elsewhere(tmp_path, monkeypatch)
    result = read_sweep(fetch_location(f"{given}/run/base"))
    assert result.model == f"{given}/models/base" and result.model_digest == files.digest_path(model_folder)
    examples = read_examples(fetch_location(f"{given}/run/train"))
    assert [example.id for example in examples] == [f"kv-{i}" for i in range(N)]
    known = manifest(f"{given}/run/base")
    assert known["config"]["examples"] == f"{given}/run/train" and known["config"]["out"] == f"{given}/run/base"
    assert known["inputs"]["examples"] == {
        "path": f"{given}/run/train",
        "sha256": source(f"{given}/run/train").digest(),
        **take_snapshot(f"{given}/run/train").version(),
        "mlflow_run_key": manifest(f"{given}/run/train")["mlflow_run_key"],
    }
    # What validation was made from is what the sweep was made from.
    raw = files.digest_path(tmp_path / "train.jsonl.gz")
    assert {raw, files.digest_path(model_folder), known["inputs"]["examples"]["sha256"]} == set(known["ancestors"])
    # The same, from files of this machine to a folder of this machine.
    local = sweep_model(
        SweepConfig(
            examples=tmp_path / "train.jsonl.gz", model=str(model_folder), out=tmp_path / "out", n_docs=DOCS,
            max_new_tokens=2,
        )
    )  # fmt: skip
    assert read_sweep(local).accuracy == result.accuracy


@pytest.mark.full
def test_what_is_complete_in_s3_is_reused_without_work_or_downloads(
    given, tmp_path, monkeypatch, s3_calls, caplog, model_folder
):
    words = ["validate", "--model", f"{given}/models/base", "--n-docs", DOCS]
    words += ["--examples", f"{given}/data/train.jsonl.gz", "--out", f"{given}/run/train"]
    assert run(*words) == 0
    first = manifest(f"{given}/run/train")
    s3_calls.clear()
    with caplog.at_level(logging.INFO, logger="posgap"):
        assert run(*words) == 0
    assert f"validate: {given}/run/train is complete, reused" in caplog.text
    assert not s3_calls.count().keys() & {"GetObject", "PutObject", "DeleteObject"}
    elsewhere(tmp_path, monkeypatch)
    publish(Path(shutil.copytree(model_folder, tmp_path / "model")), f"{given}/models/ours")
    elsewhere(tmp_path, monkeypatch)
    s3_calls.clear()
    words[2] = f"{given}/models/ours"  # the same model, uploaded with its sha256s
    assert run(*words) == 0
    assert set(s3_calls.keys("GetObject")) == {"data/train.jsonl.gz", "run/train/manifest.json"}
    assert manifest(f"{given}/run/train") == first
    assert run(*words, "--force") == 0
    assert manifest(f"{given}/run/train")["identity"] == first["identity"]
    assert manifest(f"{given}/run/train") != first


CALLS = []


@stage
def shout(config, out, run):
    CALLS.append(config)
    text = config.source.read_text()
    (out / "a.txt").write_text(text.upper())
    (out / "b.txt").write_text(text)
    if text == "refuse":
        raise Rejection(f"{config.source}: refused; see {config.out}.rejected/a.txt")


@pytest.fixture
def shouting(bucket):
    CALLS.clear()
    put(f"{bucket}/text", b"hello")
    return CopyConfig(source=f"{bucket}/text", out=f"{bucket}/out")


def test_an_upload_that_fails_is_done_again_without_the_work(shouting, bucket, s3_calls):
    s3_calls.fail = lambda op, key: Killed() if (op, key) == ("PutObject", "out/b.txt") else None
    with pytest.raises(Killed):
        shout(shouting)
    assert "out/manifest.json" not in keys(bucket)
    s3_calls.fail = lambda op, key: None
    assert shout(shouting) == f"{bucket}/out"
    assert len(CALLS) == 1 and (fetch_location(f"{bucket}/out") / "a.txt").read_text() == "HELLO"
    shout(shouting)
    assert len(CALLS) == 1


@pytest.mark.parametrize("call", range(1, 8))
def test_whenever_the_upload_is_killed_no_half_of_it_is_taken_for_complete(
    call, shouting, bucket, s3_calls, tmp_path, monkeypatch
):
    put(f"{bucket}/out/a.txt", b"of an older run")
    put(f"{bucket}/out/manifest.json", b'{"identity": "older", "stage": "shout", "files": {"a.txt": {}}}')
    writes = []

    def die(op, key):
        if op in ("PutObject", "DeleteObject"):
            writes.append(key)
        return Killed() if len(writes) >= call and op in ("PutObject", "DeleteObject") else None

    s3_calls.fail = die
    try:
        shout(shouting)
        died = False
    except Killed:
        died = True
    assert died == (call <= 6)
    s3_calls.fail = lambda op, key: None
    elsewhere(tmp_path, monkeypatch)
    there = take_snapshot(f"{bucket}/out")
    complete = not there.is_incomplete and manifest(f"{bucket}/out")["identity"] != "older"
    assert complete == (not died)
    shout(shouting)
    assert len(CALLS) == 1 + died and keys(f"{bucket}/out") == ["out/a.txt", "out/b.txt", "out/manifest.json"]
    assert (fetch_location(f"{bucket}/out") / "a.txt").read_text() == "HELLO"


def test_a_refusal_keeps_its_report_in_s3_and_names_it_there(shouting, bucket, capsys, monkeypatch):
    put(f"{bucket}/text", b"refuse")
    monkeypatch.setattr("posgap.cli.main.stage_at", lambda _: lambda config: shout(shouting))
    code = run("validate", "--examples", "x", "--model", "y", "--out", "z")
    assert code == 2 and f"{bucket}/text: refused; see {bucket}/out.rejected/a.txt" in capsys.readouterr().err
    assert keys(f"{bucket}/out.rejected") == [f"out.rejected/{name}" for name in ("a.txt", "b.txt", "rejected.json")]
    with pytest.raises(Unreadable):
        fetch_location(f"{bucket}/out")


def test_it_is_known_before_the_work_that_the_output_cannot_be_written(shouting):
    with refuses(NotFound, at="s3://no-such-bucket/out"):
        shout(shouting.model_copy(update={"out": "s3://no-such-bucket/out"}))
    with refuses(NotFound, "source: ", "/none: "):
        shout(shouting.model_copy(update={"source": f"{shouting.source}/none"}))
    put(f"{shouting.out}/someone.else", b"precious")
    with refuses(BadOutput, "(someone.else)"):
        shout(shouting)
    with refuses(BadOutput, "`source`"):
        shout(shouting.model_copy(update={"out": shouting.source}))
    with refuses(BadOutput, "`source` ("):
        shout(shouting.model_copy(update={"out": f"{shouting.source}/out"}))
    put(f"{shouting.out}-object", b"precious")
    with refuses(BadOutput, at="out-object"):
        shout(shouting.model_copy(update={"out": f"{shouting.out}-object"}))
    with pytest.raises(ValueError, match="names only a bucket"):
        CopyConfig(source="x", out=shouting.out.removesuffix("/out"))
    assert not CALLS


def test_what_of_a_folder_in_s3_is_missing_or_of_another_size_is_made_again(shouting, bucket, caplog):
    shout(shouting)
    with caplog.at_level(logging.INFO, logger="posgap"):
        put(f"{bucket}/out/a.txt", b"longer than it was")
        shout(shouting)
        boto3.client("s3").delete_object(Bucket=bucket.removeprefix("s3://"), Key="out/b.txt")
        shout(shouting)
        put(f"{bucket}/out/notes.txt", b"mine")
        shout(shouting)
    assert len(CALLS) == 3
    for reason in ("a.txt has 18 bytes, not 5", "b.txt is missing"):
        assert f"shout: {bucket}/out is made again: {reason}" in caplog.text
    with refuses(BadOutput, "(notes.txt)"):
        shout(shouting.model_copy(update={"force": True}))
    assert "out/notes.txt" in keys(f"{bucket}/out")


def test_verify_reads_manifests_in_s3(shouting, bucket, tmp_path, capsys, monkeypatch, s3_calls):
    shout(shouting)
    elsewhere(tmp_path, monkeypatch)
    assert run("verify", f"{bucket}/out") == 0
    assert set(s3_calls.keys("GetObject")) >= {"out/manifest.json"} and "out/a.txt" not in s3_calls.keys("GetObject")
    put(f"{bucket}/out/a.txt", b"HALLO")
    put(f"{bucket}/text", b"changed")
    capsys.readouterr()
    assert run("verify", f"{bucket}/out") == 1
    content, changed = capsys.readouterr().out.splitlines()
    assert (
        content.startswith(f"{bucket}/out/a.txt: has other content")
        and "`source`: " in changed
        and "other content now" in changed
    )


def test_a_file_in_s3_is_replaced_where_it_is_asked_for_only(bucket, capsys):
    words = ["data", "make", "kv", "--n-docs", 8, "--out", f"{bucket}/kv.jsonl.gz", "--n-examples"]
    assert run(*words, 5) == 0 and run(*words, 5) == 0 and run(*words, 6) == 2
    assert f"{bucket}/kv.jsonl.gz: was not written by this command" in capsys.readouterr().err
    assert run(*words, 6, "--force") == 0
    put(f"{bucket}/folder/x", b"")
    words[6] = f"{bucket}/folder"
    assert run(*words, 5) == 2 and f"{bucket}/folder: is a folder; name a file" in capsys.readouterr().err


def test_data_verbs_read_and_write_s3(bucket, tmp_path, capsys):
    assert run("data", "make", "kv", "--n-examples", 5, "--n-docs", 8, "--out", f"{bucket}/raw.jsonl.gz") == 0
    imported = f"{bucket}/data/train-2026-11-20.jsonl.gz"
    assert run("data", "import", "--input", f"{bucket}/raw.jsonl.gz", "--out", imported) == 0
    assert f"imported 5 examples from {bucket}/raw.jsonl.gz to {imported}" in capsys.readouterr().err
    assert len(read_examples(fetch_location(imported))) == 5
    assert run("data", "version", f"{bucket}/data/train-") == 0
    assert capsys.readouterr().out.strip() == imported


def test_several_inputs_and_the_demo(bucket):
    config = CompareConfig(sweeps=f"{bucket}/a,{bucket}/b", out="x")
    assert config.sweeps == [f"{bucket}/a", f"{bucket}/b"]
    for name in ("out", "data"):
        with pytest.raises(ValueError, match="must be on this machine"):
            DemoConfig(**{name: f"{bucket}/x"})


def test_a_component_s_import_that_nobody_has_downloaded_is_read_from_s3(tmp_path, bucket):
    from kfp import dsl

    given = {"examples": dsl.Dataset(uri=f"{bucket}/x"), "model": dsl.Model(uri=str(tmp_path))}
    config = to_config(SweepConfig, given | {"out": dsl.Artifact(uri=f"{bucket}/out"), "curve": dsl.HTML(uri="c")})
    assert config.examples == f"{bucket}/x" and config.model == str(tmp_path)
    # What it makes the launcher uploads.
    assert config.out == Path("/s3") / bucket.removeprefix("s3://") / "out"
