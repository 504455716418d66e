"""TrainJobs against a Kubernetes API on loopback that checks what is posted and plays the life of a job."""

import logging
import os
import signal
import threading
import time

import pytest
from kubernetes_api import Scene, served

from posgap.foundation.errors import PosgapError, TerminationSignal
from posgap.kubeflow import following
from posgap.kubeflow.following import run_job
from posgap.kubeflow.train_jobs import Job, create

JOB = Job(
    name="posgap-distill-0123456789",
    runtime="posgap-deepspeed",
    arguments=["--examples=s3://b/e", "--out=s3://b/o"],
    nodes=2,
    seconds=30,
    resources={"gpu": 4, "memory": "128Gi"},
    environment={"MLFLOW_EXPERIMENT_NAME": "posgap"},
    queue="posgap-gpu",
)
STARTING = Scene(0, ("Pending", "Pending"))
RUNNING = Scene(0.2, ("Running", "Running"), printed=("step 1\n", "other\n"))
COMPLETE = Scene(0.5, ("Succeeded", "Succeeded"), "Complete", ("step 1\nstep 2\ndone\n", "other\n"))
GOES_WELL = [STARTING, RUNNING, COMPLETE]
LAUNCHER = (
    "W1121 14:25:28.322000 2604 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process closing signal\n"
    "Traceback (most recent call last):\n" + "  and so on\n" * 40 + "ChildFailedError\n"
)
CRASH = f"reading\nposgap: error: s3://b/e: no such object\n{LAUNCHER}"
FAILS = [
    STARTING,
    RUNNING,
    Scene(0.5, ("Failed", "Failed"), "Failed", ("step 1\nposgap: error: stopped by SIGTERM\n", CRASH)),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("posgap.kubeflow.following.AGAIN_SECONDS", 0.05)


@pytest.fixture
def connected(tmp_path):
    from kubeflow.trainer import KubernetesBackendConfig, TrainerClient

    def connect(cluster):
        file = cluster.kubeconfig(tmp_path)
        return TrainerClient(KubernetesBackendConfig(config_file=str(file), namespace="posgap"))

    return connect


def test_a_job_is_created_valid_followed_and_deleted(connected, capsys):
    with served(GOES_WELL) as cluster:
        run_job(connected(cluster), JOB)
    (manifest,) = cluster.created
    assert manifest["metadata"]["name"] == JOB.name
    assert manifest["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "posgap-gpu",
        "app.kubernetes.io/managed-by": "posgap",
    }
    assert manifest["spec"] == {
        "runtimeRef": {"name": "posgap-deepspeed", "kind": "ClusterTrainingRuntime"},
        "activeDeadlineSeconds": 30,
        "trainer": {
            "numNodes": 2,
            "args": list(JOB.arguments),
            "env": [{"name": "MLFLOW_EXPERIMENT_NAME", "value": "posgap"}],
            "resourcesPerNode": {kind: {"nvidia.com/gpu": 4, "memory": "128Gi"} for kind in ("limits", "requests")},
        },
    }
    assert cluster.deleted == [JOB.name]
    assert capsys.readouterr().err.splitlines() == ["node-0 | step 1", "node-0 | step 2", "node-0 | done"]


def test_a_worker_that_fails_fails_the_job_with_its_own_words(connected, caplog):
    with served(FAILS) as cluster, pytest.raises(PosgapError) as failed:
        run_job(connected(cluster), JOB)
    # Node 0 was only stopped by what happened to node 1.
    assert str(failed.value) == f"TrainJob {JOB.name} failed. node-1: s3://b/e: no such object"
    assert "node-1 | reading" in caplog.text and "ChildFailedError" not in caplog.text
    assert cluster.deleted == [JOB.name]


def test_an_exception_is_told_by_its_own_line(connected):
    said = f"Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n{LAUNCHER}"
    with served([STARTING, Scene(0.1, ("Failed", "Running"), "Failed", (said, ""))]) as cluster:
        with pytest.raises(PosgapError, match="failed. node-0: torch.OutOfMemoryError: CUDA out of memory$"):
            run_job(connected(cluster), JOB)


def test_without_a_word_from_a_worker_kubectl_is_named(connected):
    with served([STARTING, Scene(0.1, (), "Failed")]) as cluster, pytest.raises(PosgapError, match="kubectl describe"):
        run_job(connected(cluster), JOB)


def test_a_job_that_takes_too_long_is_deleted(connected):
    with served([STARTING]) as cluster, pytest.raises(PosgapError, match=r"not done after 1 s, and is deleted"):
        run_job(connected(cluster), Job(JOB.name, JOB.runtime, [], 1, seconds=1))
    assert cluster.deleted == [JOB.name]


def test_a_second_run_joins_the_job_that_is_under_way(connected, caplog):
    caplog.set_level(logging.INFO)
    with served(GOES_WELL) as cluster:
        client = connected(cluster)
        create(client, JOB)
        run_job(client, JOB)
    assert len(cluster.created) == 1 and cluster.deleted == [JOB.name]
    assert "is running already; joining it" in caplog.text


def test_a_failed_job_of_before_makes_room_for_a_new_one(connected):
    with served([Scene(0, (), "Failed")]) as cluster:
        client = connected(cluster)
        create(client, JOB)
        cluster.scenes[:] = GOES_WELL
        run_job(client, JOB)
    assert len(cluster.created) == 2 and cluster.deleted == [JOB.name] * 2


def test_a_joined_job_that_was_being_deleted_is_created_anew(connected):
    with served([STARTING]) as cluster:
        client = connected(cluster)
        create(client, JOB)

        def go_away():
            time.sleep(0.3)
            cluster.scenes[:] = GOES_WELL
            del cluster.jobs[JOB.name]

        threading.Thread(target=go_away).start()
        run_job(client, JOB)
    assert len(cluster.created) == 2


def test_a_job_that_somebody_deletes_fails_the_step(connected):
    with served([STARTING]) as cluster:
        threading.Timer(0.5, lambda: cluster.jobs.clear()).start()
        with pytest.raises(PosgapError, match="was deleted by somebody else"):
            run_job(connected(cluster), JOB)


def test_an_answer_that_fails_to_come_is_asked_for_again(connected):
    with served(GOES_WELL) as cluster:
        client = connected(cluster)
        create(client, JOB)
        answers = cluster.refuse["GET", f"/trainjobs/{JOB.name}"] = []
        threading.Timer(0.3, lambda: answers.extend([(503, "overloaded")] * 5)).start()
        run_job(client, JOB)
    assert cluster.deleted == [JOB.name] and not answers


@pytest.mark.parametrize(
    "end, answer, said",
    [
        ("/trainjobs", (403, "trainjobs is forbidden: User x cannot create"), "forbidden: User x"),
        ("/trainjobs", (422, "admission webhook denied the request"), "admission webhook denied"),
    ],
)
def test_a_refusal_is_told_in_the_server_s_words(connected, end, answer, said):
    with served(GOES_WELL) as cluster:
        cluster.refuse["POST", end] = [answer]
        with pytest.raises(PosgapError, match=said) as refused:
            run_job(connected(cluster), JOB)
    assert "\n" not in str(refused.value) and not cluster.deleted


def test_a_missing_runtime_is_named(connected):
    with served(GOES_WELL) as cluster, pytest.raises(PosgapError, match="cannot be created: .*no-such-runtime"):
        run_job(connected(cluster), Job(JOB.name, "no-such-runtime", [], 1, 30))


def test_a_wrong_token_is_not_waited_for(connected):
    with served(GOES_WELL) as cluster:
        client = connected(cluster)
        cluster.token = "another"
        started = time.monotonic()
        with pytest.raises(PosgapError, match="Unauthorized"):
            run_job(client, JOB)
    assert time.monotonic() - started < 10


def test_sigterm_deletes_the_job(connected):
    with served([STARTING, RUNNING]) as cluster:
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(TerminationSignal, match="stopped by SIGTERM, and the TrainJob deleted"):
            run_job(connected(cluster), JOB)
    assert cluster.deleted == [JOB.name]
