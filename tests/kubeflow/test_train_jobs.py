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
from posgap.kubeflow.reasons import best_reason
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
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(following, "QUEUE_SECONDS", 0.1)


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
    assert str(failed.value).endswith(" node-1: s3://b/e: no such object")
    assert "node-1 | reading" in caplog.text and "ChildFailedError" not in caplog.text
    assert cluster.deleted == [JOB.name]


def test_an_exception_is_told_by_its_own_line(connected):
    said = f"Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n{LAUNCHER}"
    with served([STARTING, Scene(0.1, ("Failed", "Running"), "Failed", (said, ""))]) as cluster:
        with pytest.raises(PosgapError, match=" node-0: torch.OutOfMemoryError: CUDA out of memory$"):
            run_job(connected(cluster), JOB)


def why(connected, scene: Scene) -> PosgapError:
    with served([STARTING, scene]) as cluster, pytest.raises(PosgapError) as failed:
        run_job(connected(cluster), JOB)
    assert cluster.deleted == [JOB.name] and "kubectl" not in str(failed.value)  # the job is gone
    return failed.value


def test_without_a_worker_events_say_why(connected):
    """On the first live cluster this was "see kubectl describe" of a job that was gone."""
    error = why(connected, Scene(0.1, (), "Failed"))
    assert "QuotaExceeded: no GPUs are left" in str(error) and "OfBefore" not in str(error) and error.may_pass


CLOSED = "RuntimeError: [gloo] Connection closed by peer [10.0.0.7]:29500"
INTERNAL = f"posgap: error: internal error: {CLOSED}; the traceback is in /tmp/x.log\n"
REPORT = f"""{LAUNCHER.splitlines()[0]}
============================================================
posgap FAILED
Root Cause (first observed failure):
[0]:
  rank      : %d (local_rank: 1)
  exitcode  : %d (pid: 77)
  traceback : Signal
============================================================
"""
PLAIN = {"exitCode": 1, "reason": "Error"}


@pytest.mark.parametrize(
    ("printed", "ended", "blamed", "may_pass"),
    [
        pytest.param(
            ("step 1\n" + INTERNAL + REPORT % (0, 1), "step 1\n"),
            (PLAIN, {"exitCode": 137, "reason": "OOMKilled"}),
            ("node-1: OOMKilled ", "137", "64Gi"),
            True,
            id="the pod without memory, and not the peer whose connection closed",
        ),
        pytest.param(
            (INTERNAL + REPORT % (0, 1), "step 1\n" + REPORT % (3, -9)),
            (PLAIN, PLAIN),
            ("node-1: rank 3 ", "SIGKILL"),
            True,
            id="the rank that was killed",
        ),
        pytest.param(
            (INTERNAL, "posgap: error: s3://b/e: no such object\n"),
            (
                PLAIN | {"message": f"posgap failed: internal error: {CLOSED}"},
                PLAIN | {"message": "posgap refused: s3://b/e: no such object"},
            ),
            ("node-1: s3://b/e: no such object",),
            False,
            id="the termination message of the one that was refused",
        ),
        pytest.param(
            ("posgap: error: stopped by SIGTERM\n", ""),
            ({"exitCode": 143, "reason": "Error"}, PLAIN | {"message": "posgap failed: S3 cannot be reached"}),
            ("node-1: S3 cannot be reached",),
            True,
            id="what may pass",
        ),
    ],
)
def test_the_worker_at_fault_is_blamed(connected, printed, ended, blamed, may_pass):
    error = why(connected, Scene(0.1, ("Failed", "Failed"), "Failed", printed, ended))
    assert all(part in str(error) for part in (JOB.name, *blamed)) and "node-0" not in str(error)
    assert error.may_pass is may_pass


def test_a_worker_whose_pod_is_gone_is_named(connected):
    error = why(connected, Scene(0.1, ("Failed",), "Failed", (INTERNAL,), (PLAIN,)))
    assert " node-1: " in str(error) and "node-0" not in str(error) and error.may_pass


WAITS = "couldn't assign flavors to pod set node: insufficient quota for nvidia.com/gpu, request > maximum"


def test_a_job_that_is_never_admitted_says_why_while_it_waits_and_when_it_ends(connected, caplog):
    caplog.set_level(logging.INFO)
    with served([Scene(0, queue=WAITS)]) as cluster, pytest.raises(PosgapError, match="maximum$"):
        run_job(connected(cluster), Job(JOB.name, JOB.runtime, [], 1, seconds=1))
    assert [each for each in caplog.messages if "waits" in each] == [f"TrainJob {JOB.name} waits: {WAITS}"]


@pytest.mark.parametrize("pods", [(), ("Pending", "Pending")])
def test_an_admitted_job_that_gets_no_worker_says_why(connected, caplog, pods):
    """On a live cluster no pod could be made, and for a day nothing was said."""
    caplog.set_level(logging.INFO)
    warning = "QuotaExceeded: no GPUs are left"
    with served([Scene(0, pods)]) as cluster, pytest.raises(PosgapError, match=f"{warning}$"):
        run_job(connected(cluster), Job(JOB.name, JOB.runtime, [], 2, seconds=1))
    assert [each for each in caplog.messages if "waits" in each] == [f"TrainJob {JOB.name} waits: {warning}"]


def test_a_job_that_runs_for_too_long_says_so(connected, caplog):
    with (
        served([Scene(0, ("Running", "Running"))]) as cluster,
        pytest.raises(PosgapError, match=" 1 s, .* It was running"),
    ):
        run_job(connected(cluster), Job(JOB.name, JOB.runtime, [], 2, seconds=1))
    assert cluster.deleted == [JOB.name] and "waits" not in caplog.text


def test_an_account_that_may_not_read_workloads_is_told_once(connected, caplog):
    with served([Scene(0, queue=WAITS)]) as cluster, pytest.raises(PosgapError):
        cluster.refuse["GET", "/workloads"] = [(403, "forbidden")] * 9
        run_job(connected(cluster), Job(JOB.name, JOB.runtime, [], 1, seconds=1))
    assert len([each for each in caplog.messages if "workloads" in each]) == 1


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


def test_a_job_that_is_being_deleted_is_made_anew_when_its_pods_are_gone(connected):
    with served([STARTING]) as cluster:
        client = connected(cluster)
        create(client, JOB)
        cluster.being_deleted.add(JOB.name)
        cluster.lingering[JOB.name] = 3

        def go_away():
            time.sleep(0.3)
            cluster.scenes[:] = GOES_WELL
            cluster.being_deleted.clear()
            del cluster.jobs[JOB.name]

        threading.Thread(target=go_away).start()
        run_job(client, JOB)
    assert len(cluster.created) == 2 and cluster.lingering[JOB.name] < 0


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_job_that_somebody_deletes_fails_the_step(connected, is_joined):
    """One that was joined came back."""
    with served([STARTING]) as cluster:
        client = connected(cluster)
        if is_joined:
            create(client, JOB)
        threading.Timer(0.5, lambda: cluster.jobs.clear()).start()
        with pytest.raises(PosgapError, match="deleted by"):
            run_job(client, JOB)
    assert len(cluster.created) == 1


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


@pytest.mark.parametrize("answers", [[], [(403, 'trainingruntimes "no-such-runtime" is forbidden: User x cannot get')]])
def test_a_missing_runtime_is_named(connected, answers):
    """An account that may read one runtime alone is refused any other, there or not."""
    with served(GOES_WELL) as cluster, pytest.raises(PosgapError, match="no-such-runtime") as failed:
        cluster.refuse["GET", "/trainingruntimes/no-such-runtime"] = answers
        run_job(connected(cluster), Job(JOB.name, "no-such-runtime", [], 1, 30))
    assert "forbidden" not in str(failed.value)


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
        with pytest.raises(TerminationSignal, match="SIGTERM.*TrainJob"):
            run_job(connected(cluster), JOB)
    assert cluster.deleted == [JOB.name]


def test_a_reason_that_is_a_warning_and_a_condition_is_told_once():
    conditions = {"Failed": "no pod could be made", "Suspended": "it was"}
    reason = best_reason([], [], conditions, ["FailedCreate: no pod could be made"])
    assert str(reason).count("no pod could be made") == 1 and "it was" not in str(reason)
    assert "Failed: no pod could be made" in str(best_reason([], [], conditions, []))
