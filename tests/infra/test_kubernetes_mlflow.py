"""The commands of the MLflow Deployment, as rendered, against a real PostgreSQL and an S3 server."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import boto3
import httpx2
import mlflow
import postgres
import psycopg
import pytest
from manifests import KUBERNETES, SECURED, containers, needs_kubectl, of_kind, overlay, pod_templates
from moto.server import ThreadedMotoServer
from ports import free_port

sys.path.append(str(KUBERNETES / "base" / "namespaced" / "mlflow"))
import access

pytestmark = [
    pytest.mark.full,
    needs_kubectl,
    postgres.needs_postgres,
]
SECRETS = {
    # A password that would have to be escaped in a URI.
    "posgap-mlflow-db": {"PGUSER": "mlflow", "PGPASSWORD": "p@ss/wo%rd"},
    "posgap-mlflow-auth": {
        "MLFLOW_AUTH_ADMIN_PASSWORD": "the administrator's",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key of forms",
    },
    "posgap-mlflow": {access.USERNAME: "posgap-pipeline", access.PASSWORD: "the password of steps"},
    "posgap-mlflow-promote": {access.USERNAME: "posgap-promote", access.PASSWORD: "another password"},
    "posgap-s3": {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
}


def environment(container: dict, maps: dict) -> dict[str, str]:
    """The variables that the kubelet would give a container."""
    made = {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
    for source in container.get("envFrom", []):
        name = next(iter(source.values()))["name"]
        made |= maps[name]["data"] if "configMapRef" in source else SECRETS[name]
    for variable in (each for each in container.get("env", []) if "valueFrom" in each):
        reference = variable["valueFrom"]["configMapKeyRef"]
        made[variable["name"]] = maps[reference["name"]]["data"][reference["key"]]
    return made


@pytest.fixture
def database():
    """The port of a PostgreSQL with an empty database `mlflow`."""
    with postgres.database(SECRETS["posgap-mlflow-db"]) as port:
        yield port


@pytest.fixture
def bucket_server():
    server = ThreadedMotoServer(port=free_port(), verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server._port}"
    server.stop()


def process(container: dict, variables: dict, folder: Path) -> subprocess.Popen:
    return subprocess.Popen([mounted_at(word, folder) for word in container["command"]], env=variables, cwd=folder)


def mounted_at(word: str, folder: Path) -> str:
    """A word of a command, with the folders of its pod below this one."""
    return re.sub(r"(?<!\w)/(?=scripts/|backup/)", f"{folder}/", word)


def make_certificate(folder: Path) -> str:
    """Makes the server's certificate by the line of README.md; the file by which clients know it."""
    line = re.search(r"^openssl req .*$", (KUBERNETES / "README.md").read_text(), re.MULTILINE)[0]
    subprocess.run(line, shell=True, check=True, cwd=folder, capture_output=True)
    return str(folder / "tls.crt")


@contextmanager
def running(command: list[str], variables: dict, url: str, authority: str | bool):
    """A server, once it answers at `url`."""
    process = subprocess.Popen(command, env=variables, start_new_session=True)
    try:
        deadline = time.monotonic() + 180  # what the startup probe allows
        while True:
            try:
                httpx2.get(url, timeout=5, verify=authority).raise_for_status()
                break
            except httpx2.HTTPError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.5)
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.nightly  # migrates a database and starts a server each time, for minutes
@pytest.mark.parametrize("name", ["local", f"local{SECURED}"])
def test_the_job_makes_the_tables_and_the_deployment_serves_the_bucket(
    database, bucket_server, tmp_path, monkeypatch, name
):
    objects = overlay(name)
    maps, pod = of_kind(objects, "ConfigMap"), pod_templates(objects)["Deployment mlflow"]["spec"]
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(database), "AWS_ENDPOINT_URL": bucket_server, "HOME": str(tmp_path)}
    here |= {"PATH": f"{Path(sys.executable).parent}:{postgres.BINARIES}:{os.environ['PATH']}"}
    (server,) = pod["containers"]
    mounts = [mount for container in containers(pod) for mount in container["volumeMounts"]]
    mounted = {each["name"]: each["mountPath"].lstrip("/") for each in mounts}
    for volume in pod["volumes"]:
        (folder := tmp_path / mounted[volume["name"]]).mkdir(parents=True, exist_ok=True)
        held = SECRETS.get(volume["secret"]["secretName"], {}) if "secret" in volume else {}
        held = maps[volume["configMap"]["name"]]["data"] if "configMap" in volume else held
        for file, text in held.items():
            (folder / file).write_text(text)
    here |= {"MLFLOW_AUTH_CONFIG_PATH": f"{tmp_path}/{mounted['auth']}/basic_auth.ini"}
    (migrate,) = pod_templates(objects)["Job mlflow-migrate"]["spec"]["containers"]
    waiting = [process(container, environment(container, maps) | here, tmp_path) for container in pod["initContainers"]]
    assert process(migrate, environment(migrate, maps) | here, tmp_path).wait() == 0
    assert [each.wait() for each in waiting] == [0, 0]

    port = free_port()
    elsewhere = {"--port=5000": f"--port={port}", "--host=0.0.0.0": "--host=127.0.0.1"}
    command = [
        elsewhere.get(word, word).replace("/etc/mlflow-tls", f"{tmp_path}/etc/mlflow-tls") for word in server["command"]
    ]
    scheme, _, clients_host = maps["posgap-env"]["data"]["MLFLOW_TRACKING_URI"].partition("://")
    url, authority = f"{scheme}://localhost:{port}", True
    variables, trusting = environment(server, maps) | here, {"MLFLOW_TRACKING_URI": url}
    if scheme == "https":
        trusting["MLFLOW_TRACKING_SERVER_CERT_PATH"] = authority = make_certificate(tmp_path / mounted["tls"])
    with running(command, variables, url + server["startupProbe"]["httpGet"]["path"], authority):
        allow = [sys.executable, access.__file__, "guarded", "--users", f"{tmp_path}{access.FOLDER}"]
        subprocess.run(allow, env=variables | trusting, cwd=tmp_path, check=True)
        experiment = f"{url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        with httpx2.Client(verify=authority) as client:
            assert client.get(experiment).status_code == 401
            login = tuple(SECRETS["posgap-mlflow"].values())
            assert client.get(experiment, headers={"Host": clients_host}, auth=login).status_code == 200
            assert client.get(experiment, headers={"Host": "elsewhere.example"}, auth=login).status_code == 403
        for variable, value in trusting.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", maps["posgap-env"]["data"]["MLFLOW_EXPERIMENT_NAME"])
        for variable, value in SECRETS["posgap-mlflow"].items():
            monkeypatch.setenv(variable, value)
        with mlflow.start_run() as run:
            mlflow.log_text("kept", "note.txt")
        assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/note.txt") == "kept"
        if scheme == "https":
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                httpx2.get(url)  # who does not know who signed it

    keys = {name.lower(): value for name, value in SECRETS["posgap-s3"].items()}
    store = boto3.client("s3", endpoint_url=bucket_server, region_name="us-east-1", **keys)
    stored = [each["Key"] for each in store.list_objects_v2(Bucket="posgap")["Contents"]]
    (note,) = [key for key in stored if run.info.run_id in key]
    assert note.startswith("mlflow/") and note.endswith("/note.txt")


def test_a_backup_is_restored_as_it_was_or_not_at_all(database, bucket_server, tmp_path):
    maps = of_kind(overlay("local"), "ConfigMap")
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(database), "AWS_ENDPOINT_URL": bucket_server, "HOME": str(tmp_path)}
    here |= {"PATH": f"{Path(sys.executable).parent}:{postgres.BINARIES}:{os.environ['PATH']}"}
    keys = {name.lower(): value for name, value in SECRETS["posgap-s3"].items()}
    store = boto3.client("s3", endpoint_url=bucket_server, region_name="us-east-1", **keys)
    store.create_bucket(Bucket="posgap")
    psql(here, "CREATE TABLE runs (id serial PRIMARY KEY, note text)", "INSERT INTO runs (note) VALUES ('it''s kept')")
    backed_up = tables(here)
    assert "INSERT INTO public.runs VALUES (1, 'it''s kept');" in backed_up
    assert perform("mlflow-backup", here, maps, tmp_path) == [0, 0]
    (saved,) = store.list_objects_v2(Bucket="posgap", Prefix="backup/")["Contents"]
    assert saved["Key"].endswith(".dump")

    psql(here, "DELETE FROM runs", "CREATE TABLE of_a_newer_version (id int)")
    changed = tables(here)
    assert "CREATE TABLE public.of_a_newer_version (" in changed and not any("kept" in line for line in changed)
    # A server that is still connected, whose writes would be lost.
    login = {"user": SECRETS["posgap-mlflow-db"]["PGUSER"], "password": SECRETS["posgap-mlflow-db"]["PGPASSWORD"]}
    with psycopg.connect(host="127.0.0.1", port=database, dbname="mlflow", **login):
        assert perform("mlflow-restore", here, maps, tmp_path) == [0, 1]
    assert tables(here) == changed
    # A dump that is cut off, of this name.
    whole = store.get_object(Bucket="posgap", Key=saved["Key"])["Body"].read()
    store.put_object(Bucket="posgap", Key="backup/2000-01-01T00-00-00Z.dump", Body=whole[:-100])
    named = here | {"BACKUP": "2000-01-01T00-00-00Z.dump"}
    assert perform("mlflow-restore", named, maps, tmp_path) == [0, 1]
    assert tables(here) == changed
    assert perform("mlflow-restore", here, maps, tmp_path) == [0, 0]
    assert tables(here) == backed_up


def test_the_bucket_is_made_as_soon_as_there_is_a_server(tmp_path):
    pod = pod_templates(overlay("local"))["Deployment mlflow"]["spec"]
    (container,) = [each for each in pod["initContainers"] if each["name"] == "bucket"]
    server = ThreadedMotoServer(port=free_port(), verbose=False)
    here = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server._port}", "HOME": str(tmp_path)}
    here |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    variables = environment(container, of_kind(overlay("local"), "ConfigMap")) | here
    waiting = subprocess.Popen(container["command"], env=variables, stderr=subprocess.PIPE, text=True)
    assert f"127.0.0.1:{server._port}" in waiting.stderr.readline()  # what it waits for
    server.start()
    try:
        assert waiting.wait() == 0
        keys = {name.lower(): value for name, value in SECRETS["posgap-s3"].items()}
        store = boto3.client("s3", endpoint_url=here["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)
        assert [each["Name"] for each in store.list_buckets()["Buckets"]] == ["posgap"]
    finally:
        server.stop()


def perform(name: str, here: dict, maps: dict, folder: Path) -> list[int]:
    """Runs the containers of a CronJob's pod, one after the other, up to the first that fails; their exit codes."""
    pod, codes = pod_templates(overlay("local"))[f"CronJob {name}"]["spec"], []
    for mounted in ("backup", "scripts"):
        (folder / mounted).mkdir(exist_ok=True)
    (scripts,) = (each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each)
    for file, text in maps[scripts]["data"].items():
        (folder / "scripts" / file).write_text(text)
    for container in containers(pod):
        variables = environment(container, maps) | here
        words = [word.replace("$(BACKUP)", variables.get("BACKUP", "")) for word in container["command"]]
        words = [mounted_at(word, folder) for word in words]
        codes.append(subprocess.run(words, env=variables, cwd=folder).returncode)
        if codes[-1]:
            break
    return codes


def psql(here: dict, *words: str) -> str:
    """What psql answers to a statement, as the server's user of its database."""
    login = SECRETS["posgap-mlflow-db"] | {"PGDATABASE": "mlflow"} | here
    command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", *(f"--command={word}" for word in words)]
    return subprocess.run(command, env=login, check=True, capture_output=True, text=True).stdout


def tables(here: dict) -> list[str]:
    """All of the database as lines of statements, in an order that does not depend on how it came to be."""
    dumped = ["pg_dump", "--no-owner", "--no-privileges", "--inserts"]
    login = SECRETS["posgap-mlflow-db"] | {"PGDATABASE": "mlflow"} | here
    text = subprocess.run(dumped, env=login, check=True, capture_output=True, text=True).stdout
    return sorted(line for line in text.splitlines() if line and not line.startswith(("\\", "--")))
