"""Training whose checkpoints are in S3 goes on elsewhere, and ends as if nothing had been."""

import logging
import signal
import subprocess
import time

import pytest
import torch
from botocore.exceptions import ClientError
from examples import kv_example
from rollout_networks import TINY, trials
from s3 import Killed, elsewhere, keys
from training_processes import PARAMETERS, TORCHRUN, command, environment, history, parameters
from warm import posgap_on_path  # noqa: F401  a fixture

from posgap.data.reading import write_examples
from posgap.distillation.checkpoints import FILES
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_jsonl
from posgap.options.distill import DistillConfig
from posgap.rollout.trials import run_trials
from posgap.storage.cache import fetch_location
from posgap.tasks.content import content_key
from posgap.verbs.distill import distill

FIRST, SECOND = "step-2", "step-4"


@pytest.fixture
def config(tmp_path, model_folder, bucket, monkeypatch) -> DistillConfig:
    """Eight steps over seven examples, with a checkpoint in S3 after every other one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    examples = [kv_example(i) for i in range(7)]
    write_examples(tmp_path / "e.jsonl", examples)
    write_jsonl(
        tmp_path / "responses.jsonl",
        (
            {"id": e.id, "content": content_key(e), "placement": [1], "n_docs": 5, "response": e.value, "correct": True}
            | {"token_ids": [25 + int(e.value, 16), 2]}
            for e in examples
        ),
    )
    given = {"examples": tmp_path / "e.jsonl", "responses": tmp_path / "responses.jsonl", "model": str(model_folder)}
    given |= {"out": tmp_path / "out", "work": f"{bucket}/work", "save_steps": 2}
    return DistillConfig(**given, k=3, epochs=4, batch_size=16, learning_rate=1e-3, dtype="float32")


def keep_work(config) -> set[str]:
    """What is in S3, without the names that differ by run."""
    return {key.split("/", 2)[2] for key in keys(config.work)}


def refused(*_) -> ClientError:
    return ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")


@pytest.mark.full
def test_on_another_machine_training_goes_on_and_ends_the_same(config, tmp_path, monkeypatch, s3_calls, caplog):
    whole = distill(config.model_copy(update={"out": tmp_path / "whole", "work": None}))
    s3_calls.fail = lambda op, key: Killed() if op == "PutObject" and key.endswith(f"{SECOND}/{FILES}") else None
    with pytest.raises(Killed):
        distill(config)
    s3_calls.fail = lambda op, key: None
    # All of the second is there but the last word.
    assert keep_work(config) >= {f"{FIRST}/{FILES}", f"{SECOND}/{PARAMETERS}", f"{SECOND}/random-0.pt"}
    elsewhere(tmp_path, monkeypatch)
    with caplog.at_level(logging.INFO, logger="posgap"):
        distill(config)
    assert "resuming from the checkpoint of step 2" in caplog.text
    assert history(config.out) == history(whole)
    assert torch.equal(parameters(config.out), parameters(whole))
    assert {name.partition("-")[0] for name in keep_work(config)} == {"states"}  # checkpoints are removed


@pytest.mark.parametrize("dies_at", [PARAMETERS, "random-0.pt", "history.jsonl"])
def test_whatever_of_an_upload_is_missing_the_checkpoint_does_not_count(
    config, tmp_path, monkeypatch, s3_calls, dies_at
):
    s3_calls.fail = lambda op, key: Killed() if op == "PutObject" and key.endswith(f"{SECOND}/{dies_at}") else None
    with pytest.raises(Killed):
        distill(config)
    assert f"{SECOND}/{FILES}" not in keep_work(config) and f"{FIRST}/{FILES}" in keep_work(config)


def test_what_cannot_be_uploaded_does_not_stop_the_training(config, s3_calls, caplog):
    s3_calls.fail = lambda op, key: refused() if op == "PutObject" and "/step-" in key else None
    with caplog.at_level(logging.WARNING, logger="posgap.distillation"):
        distill(config)
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said[-4:] == [f"checkpoint step-{step} is on disk only" for step in (2, 4, 6, 8)]
    assert "access denied" in caplog.text and (config.out / "model.safetensors").is_file()


@pytest.mark.full
def test_checkpoints_stay_until_the_model_is_in_s3(config, bucket, s3_calls):
    config = config.model_copy(update={"out": f"{bucket}/candidate"})
    s3_calls.fail = lambda op, key: refused() if op == "PutObject" and key == "candidate/model.safetensors" else None
    with pytest.raises(PosgapError, match="candidate/model.safetensors: "):
        distill(config)
    assert any(name.endswith(FILES) for name in keep_work(config))


def test_an_experiment_s_trials_are_kept_too(bucket, tmp_path, monkeypatch, s3_calls):
    whole = run_trials(trials()[:2], TINY, tmp_path / "whole")
    s3_calls.fail = lambda op, key: Killed() if op == "PutObject" and key.endswith(".json") else None
    with pytest.raises(Killed):
        run_trials(trials()[:2], TINY, f"{bucket}/work")
    s3_calls.fail = lambda op, key: None
    elsewhere(tmp_path, monkeypatch)
    assert run_trials(trials()[:2], TINY, f"{bucket}/work") == whole
    assert [key.partition(".")[2] for key in keys(bucket)] == ["json", "json"]


# Each process with a disk of its own, as on two nodes.
APART = [*TORCHRUN, "sh", "-c", 'LOCAL_RANK=0 POSGAP_CACHE="$POSGAP_CACHE/node-$RANK" exec "$@"', "sh"]


def start(config: DistillConfig) -> subprocess.Popen:
    words = [*command(config, APART), f"--work={config.work}"]
    return subprocess.Popen(
        words, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> str:
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said[-3000:]
    return said


@pytest.mark.nightly
@pytest.mark.full
def test_two_nodes_without_a_shared_disk_go_on_from_s3(config, bucket, tmp_path, monkeypatch):
    config = config.model_copy(update={"deepspeed": "zero2", "epochs": 40, "save_steps": 4})
    whole = config.model_copy(update={"out": f"{bucket}/whole", "work": f"{bucket}/other"})
    finish(start(whole))
    broken = config.model_copy(update={"out": f"{bucket}/broken"})
    process, deadline = start(broken), time.monotonic() + 300
    while not any(name.endswith(FILES) for name in keep_work(broken)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    (newest,) = {name.partition("/")[0] for name in keep_work(broken) if name.endswith(FILES)}
    there = [name.removeprefix(f"{newest}/") for name in keep_work(broken) if name.startswith(f"{newest}/")]
    assert {name for name in there if name.startswith("random")} == {"random-0.pt", "random-1.pt"}
    assert {name.partition("-model")[0] for name in there if name.endswith(".safetensors")} == {
        "shard-00001", "shard-00002"
    }  # fmt: skip
    elsewhere(tmp_path, monkeypatch)
    said = finish(start(broken))
    assert f"resuming from the checkpoint of step {newest.removeprefix('step-')} in {broken.work}" in said
    whole, broken = fetch_location(whole.out), fetch_location(broken.out)
    assert len(history(whole)) == 80
    assert history(broken) == history(whole) and torch.equal(parameters(broken), parameters(whole))
