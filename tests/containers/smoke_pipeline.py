"""The smoke pipeline, each step a container that podman runs:  smoke_pipeline.py FOLDER MLFLOW_URI IMAGE

IMAGE takes the place of the images for GPUs too, which are not built. DOCKER_HOST is the address of podman's socket.
"""

import os
import sys
from pathlib import Path

from kfp import dsl, local
from kfp.local import docker_task_handler

from posgap.demo import tiny_model
from posgap.options.demo import DemoConfig
from posgap.pipelines import smoke
from posgap.pipelines.forms import fill_form
from posgap.tracking.runs import PIPELINE_VARIABLE
from posgap.verbs import demo as demo

root, tracking, image = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
CONFINED = {"read_only": True, "tmpfs": {"/tmp": "mode=1777"}, "cap_drop": ["ALL"]}


def run(client, image: str, command: list[str], volumes: dict, **options) -> int:
    """Runs a step's container and returns its exit code.

    KFP has the engine remove containers as they end, and with podman their exit codes go with them.
    """
    container = client.containers.run(image=image, command=command, volumes=volumes, detach=True, **options)
    try:
        for line in container.logs(stream=True):
            print(line.decode(errors="replace"), end="", flush=True)
        return container.wait()["StatusCode"]
    finally:
        container.remove(force=True)


@dsl.component(base_image=image, install_kfp_package=False)
def fails():
    raise SystemExit(7)


docker_task_handler.run_docker_container = lambda client, **given: run(client, **given | {"image": image})
environment = {"OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": tracking, PIPELINE_VARIABLE: "in-containers"}
environment |= {name: os.environ[name] for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")}
local.init(local.DockerRunner(network_mode="host", environment=environment, **CONFINED), pipeline_root=str(root))

try:
    fails()
except RuntimeError as error:
    print("a failed step is seen:", error)

train, held_out = demo.examples(DemoConfig(out=root, smoke=True), root)
model, _ = tiny_model.base_model(root, 0, tiny_model.QUICK)
data = {"data_train": str(train), "data_eval": str(held_out), "base_model": str(model), "seed": 0}
fields = dict.fromkeys(smoke.pipeline.component_spec.inputs, ())
smoke.pipeline(**fill_form(smoke.PARAMETERS | smoke.SMALLEST | data, fields))
