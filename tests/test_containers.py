"""The cpu image, and the manifests of the `local` overlay, run: POSGAP_TEST_CONTAINERS=1, as root, where podman can."""

import copy
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from container_engine import (
    CONFIG,
    as_pod,
    build_images,
    free_port,
    played,
    podman,
    require,
    secret,
    socket_of_podman,
    wait_for,
)
from manifests import needs_kubectl, of_kind, overlay
from mlflow import MlflowClient
from posgap.components.wrapper import IMAGE

pytestmark = [pytest.mark.slow, needs_kubectl]
PIPELINE = """
import sys
from pathlib import Path
from kfp import dsl, local
from kfp.local import docker_task_handler
from posgap.config import DemoConfig
from posgap.demo import run as demo, tiny_model
from posgap.pipelines import smoke

root, uri = Path(sys.argv[1]), sys.argv[2]

def run(client, image, command, volumes, **options):
    # KFP has the engine remove containers at once, and with podman their exit codes go with them.
    container = client.containers.run(image=image, command=command, volumes=volumes, detach=True, **options)
    try:
        for line in container.logs(stream=True):
            print(line.decode(), end="", flush=True)
        return container.wait()["StatusCode"]
    finally:
        container.remove(force=True)

docker_task_handler.run_docker_container = run
environment = {"OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": uri}
restricted = {"read_only": True, "tmpfs": {"/tmp": "mode=1777"}, "cap_drop": ["ALL"]}
local.init(local.DockerRunner(network_mode="host", environment=environment, **restricted), pipeline_root=str(root))

@dsl.component(base_image=sys.argv[3], install_kfp_package=False)
def fails():
    raise SystemExit(7)

try:
    fails()
except RuntimeError as error:
    print("a failed step is seen:", error)

config = DemoConfig(out=root, smoke=True)
train, held_out = demo.examples(config, root)
model, _ = demo.base_model(root, 0, tiny_model.QUICK)
data = {"train_data": str(train), "eval_data": str(held_out), "model": str(model), "seed": 0}
smoke.pipeline(**(smoke.PARAMETERS | smoke.SMALLEST | data))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    require()
    folder = tmp_path_factory.mktemp("images")
    (folder / "containers.conf").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        build_images(folder)
        yield


@pytest.fixture
def mlflow_server(images, tmp_path):
    """MLflow, its PostgreSQL and its bucket, as the `local` overlay has them but for their addresses."""
    objects = copy.deepcopy(overlay("local"))
    postgres, s3, server = free_port(), free_port(), free_port()
    maps, claims = (list(of_kind(objects, kind).values()) for kind in ("ConfigMap", "PersistentVolumeClaim"))
    for each in maps:
        here = {"PGHOST": "127.0.0.1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}"}
        each["data"] |= {key: value for key, value in here.items() if key in each["data"]}
    deployments = of_kind(objects, "Deployment")
    ports = {"PGPORT": str(postgres), "S3_PORT": str(s3)}
    secret("posgap-mlflow-db", PGUSER="mlflow", PGPASSWORD="p@ss/wo%rd")
    secret("posgap-s3", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    below = [as_pod(deployments[name], f"localhost/{name}", ports, {}) for name in ("postgres", "s3")]
    above = as_pod(deployments["mlflow"], None, ports, {"--port=5000": f"--port={server}"})
    try:
        with played(tmp_path, "storage", [*maps, *claims, *below]):
            wait_for(postgres, "PostgreSQL")
            wait_for(s3, "S3")
            with played(tmp_path, "mlflow", [*maps, above]):
                wait_for(server, "MLflow")
                yield SimpleNamespace(url=f"http://localhost:{server}", database=str(postgres))
    finally:
        podman("secret", "rm", "posgap-mlflow-db", "posgap-s3")
        podman("volume", "prune", "--force")


def test_the_smoke_pipeline_runs_in_the_image_and_reports_to_the_server(mlflow_server, tmp_path):
    (tmp_path / "root").mkdir()
    with socket_of_podman(tmp_path) as address:
        command = [sys.executable, "-c", PIPELINE, tmp_path / "root", mlflow_server.url, IMAGE]
        # Steps run as another user, and write into folders that are made here.
        environment = os.environ | {"DOCKER_HOST": address, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, umask=0)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "a failed step is seen" in done.stdout
    client = MlflowClient(mlflow_server.url)
    champion = client.get_model_version_by_alias("posgap-smoke", "champion")
    assert champion.tags["posgap.method"] == "r1"
    run = client.get_run(champion.run_id)
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/") and client.list_artifacts(champion.run_id)

    login = ["--env", "PGPASSWORD=p@ss/wo%rd", "postgres-postgres"]
    query = "select count(*) from registered_models where name = 'posgap-smoke'"
    psql = ["psql", "-h", "127.0.0.1", "-p", mlflow_server.database, "-U", "mlflow", "-d", "mlflow", "-tAc", query]
    assert podman("exec", *login, *psql).strip() == "1"


def test_the_server_is_confined_as_its_manifest_says(mlflow_server):
    inspected = podman(
        "inspect", "mlflow-mlflow", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}} {{.Config.User}}"
    )
    assert inspected.split() == ["true", "[]", "10001:10001"]
