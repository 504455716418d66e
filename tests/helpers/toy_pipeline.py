"""A small pipeline with everything the real one may have: pools, secrets, loops, branches, an exit handler."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kfp import dsl, kubernetes
from kfp.dsl import pipeline_task

from posgap import __version__
from posgap.cli.main import main
from posgap.pipelines.compilation import compiled_text

TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
# For each request of a step KFP asks what called it by reading the source of all that is on the stack: a fifth of a
# second below pytest.
pipeline_task.inspect = SimpleNamespace(stack=lambda: [(), ("", "", 0, sys._getframe(2).f_code.co_name)])
ROOT_OF_TOYS = "s3://toys/kfp"
GIVEN = ("--param", "data=s3://bucket/examples.jsonl.gz")


def step(name: str, image: str = f"ghcr.io/posgap/posgap-cpu:{__version__}"):
    def work(n: int) -> int:
        return n

    work.__name__ = name
    return dsl.component(work, base_image=image, install_kfp_package=False)


@dsl.component(base_image=f"ghcr.io/posgap/posgap-cpu:{__version__}", install_kfp_package=False)
def report(state: dsl.PipelineTaskFinalStatus):
    print(state)


def small(task: dsl.PipelineTask) -> dsl.PipelineTask:
    return bounded(task).set_cpu_request("2").set_memory_request("4Gi")


def bounded(task: dsl.PipelineTask) -> dsl.PipelineTask:
    kubernetes.set_security_context(task, run_as_non_root=True)
    return kubernetes.set_timeout(task, 3600)


def on_gpus(task: dsl.PipelineTask, gpus: int, pool: dict, tolerations: list) -> dsl.PipelineTask:
    bounded(task).set_cpu_request(f"{2 * gpus}").set_memory_request(f"{16 * gpus}Gi")
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(gpus)
    kubernetes.add_node_selector_json(task, pool)
    kubernetes.add_toleration_json(task, tolerations)
    return task


@dsl.pipeline(name="toy", description="A pipeline for tests.", pipeline_root=ROOT_OF_TOYS)
def toy(
    data: str,
    steps: int = 3,
    rate: float = 0.1,
    fast: bool = False,
    shards: list = [1, 2, 3, 4],  # noqa: B006  KFP reads the defaults
    pool: dict = {"pool": "gpu-train"},  # noqa: B006
    tolerations: list = [TAINT],  # noqa: B006
    secret: str = "s3-credentials",
):
    """prepare -> train -> one of two reports; a search and a loop beside them.

    Args:
        data: URI of the examples.
        steps: Steps of training.
        rate: Learning rate.
        fast: Whether to hurry.
        shards: What the loop is over.
        pool: Labels of the nodes with GPUs.
        tolerations: Taints of those nodes.
        secret: Secret with the key to the data.
    """
    with dsl.ExitHandler(small(report())):
        prepared = small(step("prepare")(n=steps))
        trained = on_gpus(step("train")(n=prepared.output), 2, pool, tolerations).set_display_name("train R1")
        trained.set_retry(2, backoff_duration="30s", backoff_factor=2.0)
        kubernetes.use_secret_as_env(trained, secret, {"key": "AWS_SECRET_ACCESS_KEY"})
        kubernetes.use_config_map_as_env(trained, "mlflow", {"uri": "MLFLOW_TRACKING_URI"})
        kubernetes.mount_pvc(trained, "models", "/models")
        kubernetes.empty_dir_mount(trained, "shm", "/dev/shm", medium="Memory", size_limit="8Gi")
        on_gpus(step("search")(n=prepared.output), 1, pool, tolerations)
        with dsl.If(trained.output > 0):
            on_gpus(step("generate")(n=1), 4, pool, tolerations).set_caching_options(False)
        with dsl.Else():
            on_gpus(step("explain")(n=2), 1, pool, tolerations)
        with dsl.ParallelFor(shards, parallelism=2) as shard:
            on_gpus(step("sweep")(n=shard), 1, pool, tolerations)


def write_toy(folder: Path) -> Path:
    """The compiled toy pipeline."""
    (folder / "toy.yaml").write_text(compiled_text(toy))
    return folder / "toy.yaml"


def posgap(capsys, *words) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `posgap pipeline`."""
    with pytest.raises(SystemExit) as stopped:
        main(["pipeline", *map(str, words)])
    return stopped.value.code or 0, *capsys.readouterr()


def fails(capsys, *words, code: int = 2) -> str:
    """The one line that it fails with."""
    ended, _, shown = posgap(capsys, *words)
    errors = [line for line in shown.splitlines() if line.startswith("posgap: error: ")]
    assert ended == code and len(errors) == 1 and "Traceback" not in shown, (ended, shown)
    return errors[0].removeprefix("posgap: error: ")
