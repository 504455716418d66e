"""What a person does with posgap on a Kubeflow, by the documented commands: kubeflow_steps.py overlay|data|submit|form

So infra/ci/kind.sh calls it, for the cluster of kubectl's configuration. tests/infra/test_kubeflow.py calls its
functions, for the node of cluster.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
import yaml
from api_server import ApiServer, documented_command
from chromium import Page, browser
from manifests import overlay
from places import ROOT
from ports import free_port

FOLDER = ROOT / "build" / "kind"
CLUSTER = ROOT / "infra" / "ci" / "cluster.yaml"
COLLEAGUE = "ada@example.com"
BUCKET = "posgap"
WAITING = ("--namespace=posgap", "--wait", "--timeout=3600")
DATA = {
    "data_train": "s3://posgap/data/train.jsonl.gz",
    "data_eval": "s3://posgap/data/eval.jsonl.gz",
    "base_model": "s3://posgap/models/tiny",
}
ABSENT = {"EC2NodeClass", "NodePool", "ExternalSecret", "SecretStore"}  # kinds of Karpenter and External Secrets


def admit_aws(server: ApiServer) -> None:
    """The API server admits the overlay `aws`, less what such a cluster has no kinds for."""
    made = [each for each in overlay("aws") if each["kind"] not in ABSENT]
    command = ("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--filename=-")
    server.kubectl(*command, text=yaml.safe_dump_all(made))


@contextmanager
def forwarded(server: ApiServer, service: str, namespace: str, port: int) -> Iterator[str]:
    """The address of a Service on this machine."""
    here = free_port()
    command = ["kubectl", "-n", namespace, "port-forward", f"service/{service}", f"{here}:{port}"]
    process = subprocess.Popen(command, env=server.environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("Forwarding"), f"{service} cannot be reached"
        yield f"http://localhost:{here}"
    finally:
        process.terminate()
        process.wait()


def parameters(**settings: object) -> dict:
    """Those of a run of the smallest model, with the registered name that the documented commands prepare."""
    from posgap.pipelines import smoke

    made = smoke.PARAMETERS | smoke.SMALLEST | DATA | {"registered_name": "posgap"}
    return made | {"settings": made["settings"] | settings}


def make_data(folder: Path) -> dict[str, Path]:
    """Makes the smallest model and its examples; returns the files by their place in the bucket."""
    from posgap.demo import tiny_model
    from posgap.options.demo import DemoConfig
    from posgap.verbs.demo import make_examples

    config = DemoConfig(out=folder, smoke=True)
    train, held_out = make_examples(config, folder)
    model, _ = tiny_model.base_model(folder, config.seed, tiny_model.QUICK)
    made = {f"models/tiny/{file.name}": file for file in Path(model).iterdir()}
    return made | {"data/train.jsonl.gz": Path(train), "data/eval.jsonl.gz": Path(held_out)}


def upload(server: ApiServer, files: Mapping[str, Path]) -> None:
    """Puts files into the overlay's bucket."""
    with forwarded(server, "s3", "posgap", 8333) as address:
        keys = server.secret("posgap-s3")
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1",
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"], aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip
        for key, file in files.items():
            client.upload_file(str(file), BUCKET, key)


def words(values: Mapping[str, object]) -> list[str]:
    """Parameters as `submit` and `schedule` take them."""
    return [f"--param={name}={text(value)}" for name, value in values.items()]


def text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Posgap:
    """`posgap` on a machine outside of the cluster, by the token of `posgap-scheduler`."""

    def __init__(self, server: ApiServer, host: str, cluster: Path = CLUSTER):
        account = ("create", "token", "posgap-scheduler", "--audience=pipelines.kubeflow.org", "--duration=4h")
        token = server.kubectl("-n", "posgap", *account)
        self.environment = server.environment() | {"KFP_HOST": host, "KFP_TOKEN": token, "POSGAP_CLUSTER": str(cluster)}

    def start(self, *command: object, **environment: str) -> subprocess.Popen:
        """Starts `posgap`, whose output is one stream."""
        program = [Path(sys.executable).with_name("posgap"), *map(str, command)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(program, cwd=ROOT, env=self.environment | environment, text=True, **streams)

    def run(self, *command: object, code: int = 0, **environment: str) -> str:
        """What `posgap` prints, with this exit code."""
        process = self.start(*command, **environment)
        said, _ = process.communicate()
        assert process.returncode == code, f"{process.returncode}: {said}"
        return said

    def pipeline(self, *command: object, code: int = 0) -> str:
        return self.run("pipeline", *command, code=code)

    def upload_pipeline(self, file: Path) -> str:
        """Compiles and uploads the pipeline; returns its page's address."""
        said = self.pipeline("compile", "--out", file, f"--host={self.environment['KFP_HOST']}", "--namespace=posgap")
        return said.splitlines()[-1]


def add_colleague(server: ApiServer) -> None:
    server.shell(documented_command("What the cluster must have", "kubectl -n posgap create rolebinding ada"))


@contextmanager
def pages(user: str) -> Iterator[Page]:
    """A page of KFP's UI as a user sees it who has logged in at the gateway of Kubeflow."""
    with browser() as page:
        page.call("Network.setExtraHTTPHeaders", headers={"kubeflow-userid": user})
        yield page


def open_form(page: Page, file: Path, address: str, picture: Path, query: str = "") -> None:
    """Opens the form of an uploaded pipeline, which must have all its fields, and takes a picture of it."""
    host, _, path = address.partition("/#/pipelines/details/")
    pipeline, _, version = path.partition("?")[0].partition("/version/")
    fields = next(yaml.safe_load_all(file.read_text()))["root"]["inputDefinitions"]["parameters"]
    new = f"{host}/#/runs/new?pipelineId={pipeline}&pipelineVersionId={version}&ns=posgap{query}"
    page.open(new, height=1700)
    try:
        page.wait(f"document.body.innerText.includes({next(iter(fields))!r})")
        shown = page.js("document.body.innerText")
    finally:
        page.screenshot(picture, whole=True)
    assert not (missing := [name for name in fields if name not in shown]), missing


def as_in_kind(step: str) -> None:
    """A step of infra/ci/kind.sh."""
    server = ApiServer(FOLDER)
    server.kubeconfig = Path(os.environ.get("KUBECONFIG", Path.home() / ".kube/config"))
    match step:
        case "overlay":
            # KFP's profile controller makes what the patch is for.
            made = "kubectl -n posgap wait configmap/kfp-launcher --for create --timeout 5m"
            server.apply_local("kubectl label", "kubectl taint", before_launcher=made)
            admit_aws(server)
        case "data":
            upload(server, make_data(FOLDER))
        case "submit" | "form":
            with forwarded(server, "ml-pipeline-ui", "kubeflow", 80) as host:
                posgap = Posgap(server, host)
                if step == "submit":
                    print(posgap.pipeline("submit", *WAITING, "--smoke", *words(parameters())))
                    return
                add_colleague(server)
                file = FOLDER / "mitigation.yaml"
                address = posgap.upload_pipeline(file)
                with pages(COLLEAGUE) as page:
                    open_form(page, file, address, FOLDER / "form.png")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    as_in_kind(*sys.argv[1:])
