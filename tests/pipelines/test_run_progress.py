"""What `submit --wait` tells of a run's steps, from Argo's record of them."""

import base64
import gzip
import json
from datetime import UTC, datetime

import pytest
from kfp_server import Server, served
from toy_pipeline import GIVEN, fails, posgap

from posgap.kubeflow.workflow import failed_tasks, is_ended_by_hand, reason_of
from posgap.pipelines.compilation import load
from posgap.pipelines.nodes import Node, unplaceable
from posgap.pipelines.progress import Progress
from posgap.pipelines.resources import Resources

pytestmark = pytest.mark.usefixtures("no_kfp_settings")
UNSCHEDULABLE = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
BEGAN, ENDED = "2026-11-28T12:00:00Z", "2026-11-28T12:00:31Z"


def workflow(*nodes: dict, packed: bool = False) -> dict:
    """Nodes as KFP's workflows have them: a task is a DAG, whose pod is called `executor`."""
    by_id = {each["id"]: each for each in nodes}
    if packed:
        return {"status": {"compressedNodes": base64.b64encode(gzip.compress(json.dumps(by_id).encode())).decode()}}
    return {"status": {"nodes": by_id}}


def node(name: str, kind: str, phase: str, within: str = "", message: str = "", **more) -> dict:
    plain = {"displayName": name, "type": kind, "phase": phase, "boundaryID": within, "message": message}
    return {"id": f"{within}/{name}", "startedAt": BEGAN, "finishedAt": ENDED, **plain, **more}


def step(key: str, phase: str, message: str = "", name: str = "executor") -> list[dict]:
    return [node(key, "DAG", "Running"), node(name, "Pod", phase, f"/{key}", message)]


@pytest.fixture
def progress(toy_file) -> Progress:
    return Progress(load(toy_file), {"data": "s3://b/e"})


def test_steps_are_told_as_they_begin_and_end(progress):
    began, done = workflow(*step("train", "Running")), workflow(*step("train", "Succeeded"), packed=True)
    assert list(progress.news(workflow())) == []
    assert list(progress.news(began)) == ["train R1 begins"]
    assert list(progress.news(began)) == []
    assert list(progress.news(done)) == ["train R1 is done after 31 s"]
    skipped = node("executor", "Skipped", "Skipped", "/prepare")
    assert list(progress.news(workflow(node("prepare", "DAG", "Succeeded"), skipped))) == [
        "prepare is taken from the cache"
    ]


def test_a_step_that_a_queue_holds_back_waits_and_one_that_was_just_made_does_not(progress):
    """Seen on a cluster: Argo has no message on a pod that Kueue has not admitted, so nothing was told of one."""
    new = step("train", "Pending")
    new[1]["startedAt"] = datetime.now(UTC).isoformat()
    for _ in range(3):
        assert list(progress.news(workflow(*new))) == []
    held = workflow(*step("train", "Pending"))
    assert list(progress.news(held)) == []
    [said] = progress.news(held)
    assert said.startswith("train R1 waits: its pod has no node yet; is its queue full?")


def test_steps_are_found_where_argo_retries_every_template(progress):
    """As on a live cluster: KFP's Argo retries drivers, groups and steps, so each node is in one for its tries."""
    group = node("condition-2(0)", "DAG", "Running")["id"]

    def tried(name: str, kind: str, phase: str, within: str, message: str = "", number: int = 0) -> list[dict]:
        last = node(f"{name}({number})", kind, phase, within, message, startedAt=f"2026-11-28T12:00:0{number}Z")
        return [node(name, "Retry", phase, within), last]

    train = node("train(0)", "DAG", "", group)["id"]
    nodes = [*tried("condition-2", "DAG", "Running", ""), *tried("train", "DAG", "Running", group)]
    nodes += tried("train-driver", "Pod", "Succeeded", group)
    nodes += tried("prepare", "DAG", "Succeeded", group)
    nodes += [node("executor", "Skipped", "Skipped", f"{group}/prepare(0)")]
    running = workflow(*nodes, *tried("executor", "Pod", "Running", train))
    assert list(progress.news(running)) == ["prepare is taken from the cache", "train R1 begins"]
    failed = [
        *tried("executor", "Pod", "Failed", train, "no GPU"),
        *tried("search-driver", "Pod", "Error", group, "gone"),
    ]
    ended = workflow(*nodes, *failed, *tried("search-driver", "Pod", "Succeeded", group, number=1))
    assert progress.failures(ended) == {"train R1": "no GPU"} and failed_tasks(ended) == {"train": "no GPU"}
    again = tried("executor", "Pod", "Running", f"{group}/train(1)")
    second = tried("train", "DAG", "Running", group, number=1)
    assert list(progress.news(workflow(*nodes, *failed[:2], *second, *again))) == ["train R1 begins, try 2"]


def test_a_step_that_waits_says_why_and_what_it_asks_for(progress):
    """On the first live cluster a promotion waited for ever, and the command said RUNNING."""
    waits = workflow(*step("train", "Pending", UNSCHEDULABLE))
    assert list(progress.news(waits)) == []  # a node may be on its way
    (line,) = progress.news(waits)
    assert line.startswith("train R1 waits: 0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory; ")
    assert line.endswith("it asks for 4 CPUs, 32Gi, 2 GPUs on nodes with pool=gpu-train")
    assert list(progress.news(waits)) == []
    starting = workflow(*step("prepare", "Pending", "PodInitializing"))
    assert [*progress.news(starting), *progress.news(starting)] == []
    driver = workflow(node("search-driver", "Pod", "Pending", message=UNSCHEDULABLE))
    list(progress.news(driver))
    assert [each.split(":")[0] for each in progress.news(driver)] == ["search waits"]


def test_tries_are_counted_and_a_failure_is_in_posgap_s_words(progress):
    refused = "main: Error (exit code 1): posgap refused: m: no such folder"
    nodes = [*step("train", "Failed", "main: OOMKilled (exit code 137)", "executor(0)")]
    assert list(progress.news(workflow(*nodes))) == ["train R1 failed: main: OOMKilled (exit code 137)"]
    nodes.append(node("executor(1)", "Pod", "Running", "/train", startedAt=ENDED))
    assert list(progress.news(workflow(*nodes))) == ["train R1 begins, try 2"]
    nodes[-1] |= {"phase": "Failed", "message": refused}
    assert list(progress.news(workflow(*nodes))) == ["train R1 failed, try 2: m: no such folder"]
    assert progress.failures(workflow(*nodes)) == {"train R1": "m: no such folder"}
    assert failed_tasks(workflow(*nodes, packed=True)) == {"train": "m: no such folder"}
    nodes[-1] |= {"phase": "Succeeded"}
    assert failed_tasks(workflow(*nodes)) == {}
    of_driver = node("search-driver", "Pod", "Error", message="pod deleted")
    assert failed_tasks(workflow(of_driver)) == {"search": "pod deleted"}


def test_a_run_that_a_person_ended_is_told_from_one_with_a_time_limit():
    assert is_ended_by_hand({"spec": {"activeDeadlineSeconds": 0}}) and is_ended_by_hand({"spec": {"shutdown": "Stop"}})
    assert not is_ended_by_hand({"spec": {"activeDeadlineSeconds": 3600}}) and not is_ended_by_hand({})


def test_a_reason_is_argo_s_own_where_posgap_left_none():
    assert reason_of("main: Error (exit code 1)") == "main: Error (exit code 1)"
    assert reason_of("main: Error (exit code 1): Killed\n  by") == "Killed by"
    assert len(reason_of("x" * 900)) < 300


def test_the_command_tells_steps_and_ends_with_the_reason(capsys, toy_file):
    with served(Server()) as server:
        server.states = ["RUNNING", "RUNNING", "RUNNING", "FAILED"]
        waits = workflow(*step("train", "Pending", UNSCHEDULABLE))
        ended = workflow(*step("train", "Failed", "main: Error (exit code 1): posgap refused: no GPU"))
        server.workflows = [waits, waits, workflow(*step("train", "Running")), ended]
        code, _, err = posgap(capsys, "submit", "--host", server.url, "--file", toy_file, *GIVEN, "--wait")
    told = [line.removeprefix("posgap | ").split(":")[0] for line in err.splitlines() if "train R1" in line]
    assert code == 4
    assert told[:3] == ["train R1 waits", "train R1 begins", "train R1 failed"]
    assert "failed in train R1: no GPU: see " in err.splitlines()[-1]


def test_a_run_that_a_person_ended_is_told_so_though_kfp_says_that_it_failed(capsys, toy_file):
    with served(Server()) as server:
        server.states = ["RUNNING", "FAILED"]
        ended = workflow(*step("train", "Failed", "Step exceeded its deadline"))
        server.workflows = [ended, ended | {"spec": {"activeDeadlineSeconds": 0}}]
        complaint = fails(capsys, "submit", "--host", server.url, "--file", toy_file, *GIVEN, "--wait", code=5)
    assert " was canceled: " in complaint


def test_a_server_without_the_record_is_waited_for_all_the_same(capsys, toy_file):
    with served(Server()) as server:
        server.states = ["RUNNING", "FAILED"]
        complaint = fails(capsys, "submit", "--host", server.url, "--file", toy_file, *GIVEN, "--wait", code=4)
    assert " failed: see " in complaint


CPU = {"allocatable": {"cpu": "2", "memory": "16Gi"}}
GPU = {"allocatable": {"cpu": "8000m", "memory": "64Gi", "nvidia.com/gpu": "1"}}
TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
NODES = [
    Node.from_manifest({"metadata": {"name": "a", "labels": {"pool": "cpu"}}, "spec": {}, "status": CPU}),
    Node.from_manifest({"metadata": {"name": "b"}, "spec": {"taints": [TAINT]}, "status": GPU}),
]


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"cpu": "2", "memory": "16Gi"}, True),
        ({"cpu": "4", "memory": "1Gi"}, False),
        ({"cpu": "1", "memory": "40Gi"}, False),
        ({"cpu": "1", "memory": "1Gi", "pool": {"pool": "cpu"}}, True),
        ({"cpu": "1", "memory": "1Gi", "pool": {"pool": "promote"}}, False),
        ({"cpu": "4", "memory": "1Gi", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, True),
        ({"cpu": "1", "accelerators": 1, "tolerations": [{"operator": "Exists"}]}, True),
        ({"cpu": "1", "accelerators": 2, "tolerations": [{"operator": "Exists"}]}, False),
        ({"cpu": "?", "memory": "?"}, True),  # the run will say
        ({"pool": {"?": "?"}, "cpu": "99"}, True),
    ],
)
def test_a_step_that_no_node_can_hold_is_told(asked, fits):
    nothing = {"image": "i", "pool": {}, "affinity": False, "tolerations": [], "cpu": "", "memory": ""}
    nothing |= {"accelerators": 0, "accelerator": "nvidia.com/gpu", "volumes": [], "needs": {}}
    step = Resources(step="promote", retries=0, cached=False, **nothing | asked)
    assert (unplaceable([step], NODES) == []) is fits
