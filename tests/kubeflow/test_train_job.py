"""train_job: the model that `distill` makes, made by a job of a cluster."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from examples import kv_example
from kubernetes_api import RUNTIME, Scene, served
from safetensors.torch import load_file

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError, faults
from posgap.foundation.files import read_jsonl, write_json, write_jsonl
from posgap.foundation.locations import MOUNTS_VARIABLE
from posgap.kubeflow import following
from posgap.kubeflow.train_jobs import Job
from posgap.options.distill import DistillConfig
from posgap.options.train_job import TrainJobConfig
from posgap.storage.cache import fetch_location
from posgap.storage.folders import publish
from posgap.storage.inputs import read_manifest
from posgap.storage.objects import find
from posgap.tasks.content import content_key
from posgap.verbs import train_job as stage
from posgap.verbs.distill import distill
from posgap.verbs.train_job import train_job

RUNNING = Scene(0, ("Running", "Running"))
COMPLETE = Scene(1, ("Succeeded", "Succeeded"), "Complete", ("loss 1\n", ""))
FAILED = Scene(1, ("Running", "Failed"), "Failed", ("", "posgap: error: s3://b/e: no such object\n"))


@pytest.fixture
def config(tmp_path, model_folder, bucket) -> TrainJobConfig:
    examples = [kv_example(i) for i in range(6)]
    write_examples(tmp_path / "e.jsonl.gz", examples)
    write_jsonl(
        tmp_path / "responses.jsonl",
        (
            {"id": e.id, "content": content_key(e), "placement": [1], "n_docs": 5, "response": e.value, "correct": True}
            | {"token_ids": [25 + int(e.value, 16), 2]}
            for e in examples
        ),
    )
    parameters = {
        "examples": tmp_path / "e.jsonl.gz",
        "responses": tmp_path / "responses.jsonl",
        "model": str(model_folder),
    }
    parameters |= {"out": tmp_path / "out", "work": f"{bucket}/work", "nodes": 2, "gpus_per_node": 4, "deepspeed": ""}
    options = {"k": 2, "epochs": 2, "batch_size": 9, "learning_rate": 1e-3, "dtype": "float32"}
    return TrainJobConfig(**parameters, distill=options)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("posgap.kubeflow.following.AGAIN_SECONDS", 0.05)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from kubeflow.trainer import KubernetesBackendConfig, TrainerClient

    with served([RUNNING, COMPLETE]) as cluster:
        file = cluster.kubeconfig(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(file))
        backend = KubernetesBackendConfig(config_file=str(file), namespace="posgap")
        monkeypatch.setattr(stage, "connect", lambda: TrainerClient(backend))
        yield cluster


def arguments(cluster) -> dict[str, str]:
    (manifest,) = cluster.created
    return dict(each.removeprefix("--").split("=", 1) for each in manifest["spec"]["trainer"]["args"])


def as_pods_do(cluster, folder: Path, identity: str) -> None:
    """Puts a model where the job was told to, as soon as there is one."""

    def work():
        while not cluster.created:
            time.sleep(0.02)
        folder.mkdir()
        (folder / "weights").write_text("trained")
        write_json(folder / "manifest.json", {"identity": identity, "stage": "distill", "files": {"weights": {}}})
        publish(folder, arguments(cluster)["out"])

    threading.Thread(target=work).start()


@pytest.mark.full
def test_the_pods_get_everything_in_s3_and_the_model_comes_back(config, cluster, tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("POSGAP_PARENT_RUN_ID", "the-parent")
    as_pods_do(cluster, tmp_path / "pod", "who-knows")
    assert train_job(config) == config.out
    options = arguments(cluster)
    name = cluster.created[0]["metadata"]["name"]
    place = f"{bucket}/work/{name}"
    assert options["examples"] == f"{place}/examples/e.jsonl.gz" and options["model"].startswith(f"{place}/model/")
    assert options["work"] == f"{bucket}/work" and options["learning-rate"] == "0.001" and options["k"] == "2"
    # What the pods are told is what `posgap distill`, the runtime's command, takes.
    (job,) = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun", "--no-python", "posgap", "distill"]
    assert DistillConfig(**{each.replace("-", "_"): value for each, value in options.items()}).batch_size == 9
    trainer = cluster.created[0]["spec"]["trainer"]
    assert trainer["numNodes"] == 2 and trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 4}
    passed = {each["name"]: each["value"] for each in trainer["env"]}
    assert passed["POSGAP_PARENT_RUN_ID"] == "the-parent" and passed["AWS_ENDPOINT_URL"]
    assert not [each for each in passed if "SECRET" in each or "KEY" in each]
    assert (config.out / "weights").read_text() == "trained" and not (config.out / "weights").is_symlink()
    assert (tmp_path / "e.jsonl.gz").exists() and cluster.deleted == [name]
    assert not find(place)


def test_what_is_in_s3_stays_where_it_is(config, cluster, tmp_path, bucket):
    (tmp_path / "copy").mkdir()
    for file in Path(config.model).iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    publish(tmp_path / "copy", f"{bucket}/models/tiny")
    machines = {"cpus_per_node": 8, "memory_per_node": "256Gi"}
    there = config.model_copy(update={"model": f"{bucket}/models/tiny", "out": f"{bucket}/trained"} | machines)
    as_pods_do(cluster, tmp_path / "pod", "who-knows")
    assert train_job(there) == f"{bucket}/trained"
    assert arguments(cluster)["model"] == f"{bucket}/models/tiny"
    assert arguments(cluster)["out"] == f"{bucket}/trained"
    asked = cluster.created[0]["spec"]["trainer"]["resourcesPerNode"]["limits"]
    assert asked == {"nvidia.com/gpu": 4, "cpu": 8, "memory": "256Gi"}
    assert (fetch_location(f"{bucket}/trained") / "weights").read_text() == "trained"


def test_a_step_in_kfp_names_what_was_brought_to_its_pod_and_uploads_nothing(
    config, cluster, tmp_path, bucket, monkeypatch
):
    """The pods of the job would wait for a second copy of the model, though it lies in S3 already."""
    here = tmp_path / "s3" / bucket.removeprefix("s3://")
    shutil.copytree(config.model, here / "models/tiny")
    shutil.copyfile(config.examples, here / "e.jsonl.gz")
    monkeypatch.setenv(MOUNTS_VARIABLE, f"{tmp_path}/s3/=s3://")
    monkeypatch.setenv("MLFLOW_RUN_ID", "run-of-the-step")  # of KFP's MLflow plugin
    brought = {"model": str(here / "models/tiny"), "examples": here / "e.jsonl.gz", "out": here / "kfp/out"}
    as_pods_do(cluster, tmp_path / "pod", "who-knows")
    train_job(config.model_copy(update=brought))
    options = arguments(cluster)
    assert options["model"] == f"{bucket}/models/tiny" and options["examples"] == f"{bucket}/e.jsonl.gz"
    assert options["responses"].startswith(f"{bucket}/work/") and (here / "kfp/out/weights").is_file()
    passed = {each["name"]: each["value"] for each in cluster.created[0]["spec"]["trainer"]["env"]}
    assert passed["POSGAP_PARENT_RUN_ID"] == "run-of-the-step" and "MLFLOW_RUN_ID" not in passed


def test_what_distill_made_is_not_made_again(config, cluster):
    distill(config.as_distill())
    before = load_file(config.out / "model.safetensors")
    train_job(config.model_copy(update={"nodes": 8, "timeout": 100}))
    assert not cluster.created and load_file(config.out / "model.safetensors").keys() == before.keys()


def test_the_name_tells_what_the_job_makes(config, cluster, tmp_path):
    names = []
    for changed in (
        {},
        {"nodes": 4, "queue": "another", "out": tmp_path / "other"},
        {"distill": config.distill | {"epochs": 3}},
    ):
        as_pods_do(cluster, tmp_path / f"pod-{len(names)}", "")
        train_job(config.model_copy(update={"force": True} | changed))
        names.append(cluster.created.pop()["metadata"]["name"])
    assert names[0] == names[1] != names[2] and names[0].startswith("posgap-distill-")


def posgap(config: TrainJobConfig, **environment: str) -> subprocess.Popen:
    given = (config.model_dump(mode="json") | {"distill": json.dumps(config.distill)}).items()
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given if value not in ("", None, [])]
    command = [sys.executable, "-c", "from posgap.cli.main import main; main()", "train-job", *words]
    quiet = os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", **environment}
    return subprocess.Popen(command, env=quiet, stderr=subprocess.PIPE, text=True)


@pytest.mark.nightly
def test_sigterm_deletes_the_job_and_its_worker_s_error_ends_the_verb(config, cluster):
    cluster.scenes[:] = [RUNNING]
    process = posgap(config)
    while not cluster.jobs:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "stopped by SIGTERM, and the TrainJob deleted" in said.splitlines()[-1]
    (name,) = cluster.deleted

    cluster.scenes[:] = [RUNNING, FAILED]
    process = posgap(config)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "Traceback" not in said
    assert said.splitlines()[-1] == f"posgap: error: TrainJob {name} failed. node-1: s3://b/e: no such object"
    assert cluster.deleted == [name, name] and not config.out.exists()


@pytest.mark.full
def test_no_cluster_is_one_line(config, tmp_path):
    process = posgap(config, KUBECONFIG=str(tmp_path / "none"))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "no Kubernetes cluster to run on" in said.splitlines()[-1]


def test_work_must_be_where_all_machines_find_it(config, tmp_path):
    process = posgap(config.model_copy(update={"work": tmp_path}))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "--work: must be in S3" in said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epochs": 0}, "distill: epochs: Input should be greater than or equal to 1, got 0"),
        ({"epoch": 3}, "distill: epoch: Extra inputs are not permitted, got 3"),
        ({"model": "m"}, "distill: model: is an option of `train-job` itself"),
        ("[1]", "distill: Input should be a valid dictionary"),
        ("{", "distill: must be JSON"),
    ],
)
def test_what_distill_does_not_take_is_refused_in_one_line(config, options, complaint):
    (fault,) = faults(lambda: TrainJobConfig(**dict(config) | {"distill": options}))
    assert fault.startswith(complaint) and "\n" not in fault


@pytest.mark.nightly
@pytest.mark.full
def test_the_sdk_s_local_backend_runs_it_in_processes(config, monkeypatch, tmp_path):
    """The same job, the same command of two processes as on the cluster, and S3 between them and the step."""
    from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient
    from kubeflow.trainer.options import Name

    client = TrainerClient(LocalProcessBackendConfig())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]

    def pods(parameters):  # the backend writes this function into a file of its own
        import subprocess
        import sys

        sys.exit(subprocess.run(parameters["command"]).returncode)

    def create(client: TrainerClient, job: Job) -> None:
        python = [sys.executable, "-c", "from posgap.cli.main import main; main()"]
        command = [*torchrun, *python, "distill", *job.arguments]
        runtime = client.get_runtime("torch-distributed")
        runtime.trainer.framework = "python"  # else the job's own venv must have torch for torchrun
        environment = {**os.environ, **job.environment, "MLFLOW_TRACKING_URI": ""}
        environment["POSGAP_CACHE"] = str(tmp_path / "another machine's")
        trainer = CustomTrainer(func=pods, func_args={"command": command}, env=environment)
        client.train(runtime=runtime, trainer=trainer, options=[Name(job.name)])

    monkeypatch.setattr(stage, "connect", lambda: client)
    monkeypatch.setattr(stage, "run_job", lambda client, job: following.run_job(client, job, create))
    train_job(config)
    assert read_manifest(config.out)["stage"] == "distill" and not client.list_jobs()
    single = distill(config.as_distill().model_copy(update={"out": tmp_path / "1"}))
    losses = [[row["loss"] for _, row in read_jsonl(folder / "history.jsonl")] for folder in (config.out, single)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and len(losses[0]) == 4
    with pytest.raises(PosgapError, match="^TrainJob wrong .* train: .*'--nonsense"):
        following.run_job(client, Job("wrong", "", ["--nonsense=1"], 1, 100), create)
