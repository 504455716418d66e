"""The images without CUDA, and what the `local` overlay makes of them: `make containers`, as root, with podman."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from container_engine import as_pod, played, podman, secret, socket_of_podman, wait_for
from container_images import CONFIG, STAND_INS, build_images, require
from manifests import of_kind, overlay
from mlflow import MlflowClient
from places import ROOT
from ports import free_port

from posgap.components.making import CPU, image

pytestmark = pytest.mark.full
PASSWORD = "the administrator's"  # at MLflow
CONFINED = ["--rm", "--network=none", "--read-only", "--tmpfs=/tmp:mode=1777", "--cap-drop=ALL"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    require()
    folder = tmp_path_factory.mktemp("images")
    (folder / "containers.conf").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        build_images(folder)
        check = [ROOT / "infra/images/images.sh", "check", "cpu", "mlflow"]
        subprocess.run(check, env=os.environ | {"ENGINE": "podman"}, check=True)
        yield


@pytest.fixture(scope="module")
def mlflow_server(images, tmp_path_factory):
    """MLflow, its PostgreSQL and its bucket, as the `local` overlay has them but for their addresses."""
    folder = tmp_path_factory.mktemp("manifests")
    postgres, s3, server = free_port(), free_port(), free_port()
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}"}
    maps = [
        each | {"data": each["data"] | {key: value for key, value in here.items() if key in each["data"]}}
        for each in of_kind(overlay("local"), "ConfigMap").values()
    ]
    ports = {"PGPORT": str(postgres), "MOTO_PORT": str(s3)}
    deployments = of_kind(overlay("local"), "Deployment")
    below = [as_pod(deployments[name], ports, image=f"localhost/posgap-test-{name}") for name in ("postgres", "s3")]
    above = [
        as_pod(of_kind(overlay("local"), "Job")["mlflow-migrate"], ports),
        as_pod(deployments["mlflow"], ports, words={"--port=5000": f"--port={server}"}),
    ]
    with (
        secret("posgap-mlflow-db", PGUSER="mlflow", PGPASSWORD="p@ss/wo%rd"),
        secret("posgap-mlflow-auth", MLFLOW_AUTH_ADMIN_PASSWORD=PASSWORD, MLFLOW_FLASK_SERVER_SECRET_KEY="a key"),
        # podman wants them also where they may be missing.
        secret("posgap-mlflow", MLFLOW_TRACKING_USERNAME="posgap-pipeline", MLFLOW_TRACKING_PASSWORD="of the steps"),
        secret("posgap-mlflow-promote", MLFLOW_TRACKING_USERNAME="promote", MLFLOW_TRACKING_PASSWORD="of promotion"),
        secret("posgap-s3", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret"),
        played(folder / "storage.yaml", maps, below),
    ):
        wait_for(postgres, "PostgreSQL")
        wait_for(s3, "S3")
        with played(folder / "mlflow.yaml", maps, above):
            wait_for(server, "MLflow")
            yield SimpleNamespace(url=f"http://localhost:{server}", database=str(postgres))


def test_the_image_works_as_nobody_on_a_root_it_cannot_write(images):
    write = "id -u; touch /home/posgap/x /opt/posgap/x 2> /dev/null || echo refused; touch /tmp/x && echo allowed"
    assert podman("run", *CONFINED, image(CPU), "sh", "-c", write).split() == ["10001", "refused", "allowed"]
    assert "Usage: posgap" in podman("run", *CONFINED, image(CPU))
    assert "posgap.verbs.train_job" in podman(
        "run", *CONFINED, image(CPU), "python", "-c", "import posgap.verbs.train_job as stage; print(stage.__name__)"
    )


def test_the_servers_are_confined_as_their_manifests_say(mlflow_server):
    asked = "{{.HostConfig.ReadonlyRootfs}} {{.EffectiveCaps}} {{.Config.User}}"
    for name, deployment in of_kind(overlay("local"), "Deployment").items():
        user = deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        inspected = podman("inspect", f"posgap-test-{name}-{name}", "--format", asked)
        assert inspected.split() == ["true", "[]", f"{user}:{user}"] and user


def test_the_smoke_pipeline_runs_in_the_image_and_reports_to_the_server(mlflow_server, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)  # steps run as another user
    with socket_of_podman(tmp_path) as address:
        command = [sys.executable, STAND_INS / "smoke_pipeline.py", root, mlflow_server.url, image(CPU)]
        environment = os.environ | {"DOCKER_HOST": address}
        # The folders that KFP makes are for them too.
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, umask=0)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "a failed step is seen" in done.stdout
    steps = {file.parent.name.rstrip("-0123456789") for file in root.rglob("executor_output.json")}
    assert steps >= {"preflight", "validate", "sweep", "teacher", "distill", "merge", "gate", "promote", "report"}

    client = MlflowClient(mlflow_server.url)
    champion = client.get_model_version_by_alias("posgap-smoke", "champion")
    assert champion.tags["method"] == "r1"
    run = client.get_run(champion.run_id)
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/") and client.list_artifacts(champion.run_id)

    query = "select count(*) from registered_models where name = 'posgap-smoke'"
    login = ["--env", "PGPASSWORD=p@ss/wo%rd", "posgap-test-postgres-postgres"]
    psql = ["psql", "-h", "127.0.0.1", "-p", mlflow_server.database, "-U", "mlflow", "-d", "mlflow", "-tAc", query]
    assert podman("exec", *login, *psql).strip() == "1"
