"""TrainJobs of posgap under Trainer, JobSet and Kueue, as a step of a run makes and follows them: `make cluster`."""

import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import cluster
import pytest
from api_server import pod
from container_engine import run
from examples import kv_example
from kubeflow_steps import forwarded
from test_kubernetes_network import RUN
from training_operators import workers

from posgap.components.making import CPU, image
from posgap.data.reading import write_examples
from posgap.foundation.files import write_jsonl
from posgap.kubeflow.train_jobs import QUEUE_LABEL
from posgap.storage.folders import upload_path
from posgap.storage.objects import find
from posgap.tasks.content import content_key

pytestmark = pytest.mark.full
PLACE = f"s3://posgap/{secrets.token_hex(4)}"  # new in a node that is kept

# Kills the last of a worker's ranks; the pod's first process is torchrun.
KILL = """
import pathlib, os, signal
programs = {int(each.parent.name): each.read_bytes() for each in pathlib.Path("/proc").glob("[0-9]*/cmdline")}
os.kill(max(each for each in programs if each > 1 and b"\\0distill\\0" in programs[each]), signal.SIGKILL)
"""


class Step:
    """A step's pod that runs `posgap train-job` with 64 examples on two nodes, where no option says otherwise."""

    def __init__(self, node, name: str, distill: dict, **options: object):
        self.node, self.name = node, name
        given = {
            "examples": f"{PLACE}/e.jsonl.gz", "responses": f"{PLACE}/responses.jsonl", "model": f"{PLACE}/model",
            "work": f"{PLACE}/work", "out": f"{PLACE}/{name}", "nodes": 2, "deepspeed": "",
            "distill": json.dumps({"dtype": "float32", "learning_rate": 1e-3} | distill),
        }  # fmt: skip
        words = [f"--{option.replace('_', '-')}={value}" for option, value in (given | options).items()]
        step = pod(
            name,
            RUN,
            image=image(CPU),
            command=["posgap", "train-job", *words],
            envFrom=[{"configMapRef": {"name": "posgap-env"}}, {"secretRef": {"name": "posgap-s3"}}],
            env=[{"name": "HOME", "value": "/tmp"}],
            resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
        )
        step["spec"]["serviceAccountName"] = "posgap-pipeline"
        self.kubectl("delete", "pod", name, "--ignore-not-found")
        node.create(step)

    def kubectl(self, *words: str) -> str:
        return self.node.kubectl("-n", "posgap", *words)

    def log(self) -> str:
        return self.node.call("-n", "posgap", "logs", self.name).stdout

    def wait_for(self, words: str) -> None:
        self.node.wait_for(lambda: words in self.log() or self._state("terminated"))
        assert words in self.log(), self.log()

    def kill(self) -> None:
        """Ends it so that it can do nothing about it."""
        where = "--output=jsonpath={.status.containerStatuses[0].containerID}"
        container = self.kubectl("get", "pod", self.name, where).removeprefix("containerd://")
        ctr = ("ctr", f"--address={cluster.SOCKET}", "--namespace=k8s.io", "tasks", "kill", "--signal=KILL")
        run(*self.node.within, *ctr, container)
        self.node.wait_for(lambda: self._state("terminated"), 60)

    def end(self) -> tuple[int, str]:
        """Its exit code, and the last line that it printed; its job must go, too."""
        self.node.wait_for(lambda: self._state("terminated"))
        log, code = self.log(), json.loads(self._state("terminated"))["exitCode"]
        print(log)
        self.node.wait_for(lambda: not self.kubectl("get", "trainjobs", "--output=name"), 60)
        self.kubectl("delete", "pod", self.name)
        return code, log.splitlines()[-1]

    def _state(self, kind: str) -> str:
        return self.kubectl("get", "pod", self.name, f"--output=jsonpath={{.status.containerStatuses[0].state.{kind}}}")


@pytest.fixture(scope="module")
def stocked(node, tmp_path_factory, model_folder):
    """A node whose S3 server has what training reads."""
    folder, examples = tmp_path_factory.mktemp("data"), [kv_example(number) for number in range(64)]
    write_examples(folder / "e.jsonl.gz", examples)
    rows = [
        {"id": each.id, "content": content_key(each), "placement": [1], "n_docs": 5, "correct": True}
        | {"response": each.value, "token_ids": [25 + int(each.value, 16), 2]}
        for each in examples
    ]
    write_jsonl(folder / "responses.jsonl", rows)
    with forwarded(node, "s3", "posgap", 8333) as address, pytest.MonkeyPatch.context() as patch:
        given = node.secret("posgap-s3") | {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": address}
        for name, value in given.items():
            patch.setenv(name, value)
        upload_path(model_folder, f"{PLACE}/model")
        for file in folder.iterdir():
            upload_path(file, f"{PLACE}/{file.name}")
        yield node


def made(name: str) -> set[str]:
    return {each.name for each in find(f"{PLACE}/{name}")}


@contextmanager
def in_the_queue(node, gpus: Sequence[int]) -> Iterator[list[str]]:
    """Pods of steps that hold so many GPUs each, or wait for them; yields their names."""
    pods = []
    for number, each in enumerate(gpus):
        amounts = {"memory": "64Mi", "nvidia.com/gpu": str(each)}
        program = {"image": image(CPU), "command": ["sleep", "infinity"]}
        resources = {"requests": amounts, "limits": amounts}
        pods.append(pod(f"gpus-{number}", RUN | {QUEUE_LABEL: "posgap-gpu"}, **program, resources=resources))
    names = [each["metadata"]["name"] for each in pods]
    try:
        for each in pods:
            node.create(each)
        yield names
    finally:
        node.kubectl("-n", "posgap", "delete", "pod", *names, "--ignore-not-found", "--grace-period=1")


@contextmanager
def without_answers_of_s3(node) -> Iterator[None]:
    """What pods send to the overlay's S3 server is lost."""
    # In a table before kube-router's, which puts its own rules first.
    iptables, rule = ["iptables", "--table", "mangle"], ["FORWARD", "--protocol", "tcp", "--dport", "8333"]
    run(*node.within, *iptables, "--insert", *rule, "--jump", "DROP")
    try:
        yield
    finally:
        run(*node.within, *iptables, "--delete", *rule, "--jump", "DROP")


@pytest.mark.parametrize("deepspeed", ["", "zero3"])
def test_two_nodes_train_a_model_to_its_end(stocked, deepspeed):
    name = f"trains{deepspeed}"
    step = Step(stocked, name, {"epochs": 2}, deepspeed=deepspeed)
    step.wait_for("created, with 2 nodes")
    step.wait_for("node-0 | ")
    assert step.end()[0] == 0 and {"model.safetensors", "manifest.json"} <= made(name)


def test_training_resumes_after_its_step_is_stopped_and_a_worker_deleted(stocked):
    options = {"epochs": 10, "save_steps": 5}
    step = Step(stocked, "resumes", options)
    stocked.wait_for(lambda: any(name.endswith("/files.json") for name in made("work")))
    step.kubectl("delete", "pod", step.name)
    step = Step(stocked, "resumes", options)
    step.wait_for("resuming from the checkpoint of step")
    step.kubectl("delete", "pod", "--selector=batch.kubernetes.io/job-completion-index=1")
    code, last = step.end()
    assert code == 2 and "no worker's pod is left" in last
    step = Step(stocked, "resumes", options)
    step.wait_for("resuming from the checkpoint of step")
    assert step.end()[0] == 0 and "model.safetensors" in made("resumes")


def test_a_stopped_training_has_minutes_for_its_last_checkpoint(stocked):
    """torchrun kills its ranks 30 s after SIGTERM unless told otherwise."""
    options = {"epochs": 100, "save_steps": 10_000, "seed": 5}
    step = Step(stocked, "slow", options)
    step.wait_for("distillation steps")
    with without_answers_of_s3(stocked):
        step.kubectl("delete", "pod", step.name)
        time.sleep(45)
        assert len(workers(stocked)) == 2
    stocked.wait_for(lambda: not workers(stocked), 120)
    step = Step(stocked, "slow", options)
    step.wait_for("resuming from the checkpoint of step")
    step.kubectl("delete", "pod", step.name)


def test_a_killed_step_s_job_goes_on_and_is_joined(stocked):
    options = {"epochs": 100, "seed": 6}
    step = Step(stocked, "joins", options)
    step.wait_for("node-0 | ")
    before = workers(stocked)
    step.kill()
    step = Step(stocked, "joins", options)
    step.wait_for("is running already; joining it")
    step.wait_for("node-0 | ")
    assert workers(stocked) == before
    step.kubectl("delete", "trainjob", "--all")
    code, last = step.end()
    assert code == 2 and "was deleted by somebody else; the same command goes on" in last


def test_a_killed_process_is_named_and_not_its_peer(stocked):
    step = Step(stocked, "killed", {"epochs": 100, "seed": 7})
    step.wait_for("distillation steps")
    [worker] = [each for each in workers(stocked) if "-node-0-1-" in each]
    step.kubectl("exec", worker, "--", "python", "-c", KILL)
    _, last = step.end()
    assert re.search(r"node-1: rank \d was killed by signal 9 \(SIGKILL", last)


def test_what_waits_for_gpus_does_not_keep_a_training_from_the_free_one(stocked):
    """The namespace's quota counts waiting pods, too, and once refused the next one."""
    with in_the_queue(stocked, [1, 1, 2, 2]) as names:
        waits = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=SchedulingGated"
        for name, is_in in zip(names, ["--for=condition=Ready"] * 2 + [waits] * 2, strict=True):
            stocked.kubectl("-n", "posgap", "wait", "pod", name, is_in, "--timeout=2m")
        step = Step(stocked, "free", {"epochs": 2, "seed": 8}, nodes=1)
        assert step.end()[0] == 0 and "model.safetensors" in made("free")


def test_a_job_that_the_queue_never_admits(stocked):
    step = Step(stocked, "waits", {"seed": 1}, gpus_per_node=2, timeout=60)
    step.wait_for("waits: couldn't assign flavors to pod set node")
    code, last = step.end()
    assert code == 2 and "was not done after 60 s, and is deleted." in last and "nvidia.com/gpu" in last


def test_a_job_that_somebody_deletes(stocked):
    step = Step(stocked, "deleted", {"epochs": 100, "seed": 2})
    step.wait_for("node-0 | ")
    step.kubectl("delete", "trainjob", "--all")
    code, last = step.end()
    assert code == 2 and "was deleted by somebody else; the same command goes on" in last


def test_a_worker_without_enough_memory(stocked):
    step = Step(stocked, "oom", {"seed": 3}, memory_per_node="200Mi")
    code, last = step.end()
    assert code == 2 and "OOMKilled" in last


def test_a_runtime_that_does_not_exist(stocked):
    code, last = Step(stocked, "runtime", {"seed": 4}, runtime="none").end()
    assert code == 2 and "there is no runtime none" in last
