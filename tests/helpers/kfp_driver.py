"""Plays a compiled pipeline through KFP's own driver and launcher, one task after another, as Argo would.

`POSGAP_KFP_BIN` names the folder `bin` of a virtual environment with PyPI's `ml-metadata`, in which KFP's `driver` and
`launcher-v2` lie, too. Each of their processes gets what a pod has: a mount namespace of its own with an empty /tmp and
/s3, a service account, and a Kubernetes API to read. ML Metadata and the cache are those of kfp_services.py, S3 is
moto's. A step's own program is played: it writes the outputs that the test says, and looks for its inputs' files.

What KFP's compiler and Argo do in between is here, after KFP 2.17.0 (backend/src/v2/compiler/argocompiler): tasks wait
for those whose outputs they take (`addImplicitDependencies`), and run where all of them succeeded (`depends`); a loop
has a driver of its own and one for each iteration (`iterationItemTask`); an exit task is a hook of the task that it
depends on (`DAG`); an importer is one process (`importerTask`); a failed container is tried again under its execution.
"""

import base64
import datetime
import ipaddress
import json
import os
import shlex
import shutil
import ssl
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from places import ROOT as REPOSITORY
from ports import free_port
from s3_servers import KEY, serving

PROGRAMS = ("driver", "launcher-v2", "python")
LAUNCHER = REPOSITORY / "infra" / "kubernetes" / "overlays" / "local" / "launcher.yaml"
NAMESPACE = "posgap"
BUCKET = "posgap"
ROOT = f"s3://{BUCKET}/kfp"
FAILED = {"Failed", "Error"}  # a step's own program; what KFP's driver, importer or launcher could not do
ALL_ENDED = "ALL_UPSTREAM_TASKS_COMPLETED"  # the trigger of exit tasks
# A pod's file system: that of this machine, but for /tmp, /run and /s3. $1 is an empty folder for it, $2 comes as /pod
# and $3 as /kfp.
POD = """set -e
root=$1 pod=$2 kfp=$3; shift 3
mount -t tmpfs tmpfs "$root"
for each in /*; do
  case $each in /tmp | /run | /s3 | /pod | /kfp) continue ;; esac
  if [ -L "$each" ]; then cp -P "$each" "$root$each"
  elif [ -d "$each" ]; then mkdir "$root$each"; mount --rbind "$each" "$root$each"; fi
done
mkdir -m 1777 "$root/tmp"
mkdir -p "$root/pod" "$root/kfp" "$root/run/secrets/kubernetes.io"
mount --bind "$pod" "$root/pod"
mount --bind "$kfp" "$root/kfp"
cp -r "$pod/serviceaccount" "$root/run/secrets/kubernetes.io/serviceaccount"
exec chroot "$root" "$@"
"""


class DriverError(Exception):
    """What KFP's driver, importer or launcher said last, where it failed."""


def explain_absence() -> str:
    """Returns why nothing can be played here; empty where all is there."""
    folder = os.environ.get("POSGAP_KFP_BIN", "")
    if not folder:
        return "POSGAP_KFP_BIN names no folder with KFP's driver and launcher-v2 and a Python with ml-metadata"
    absent = [program for program in PROGRAMS if not (Path(folder) / program).exists()]
    if absent:
        return f"POSGAP_KFP_BIN={folder}: not there: {', '.join(absent)}"
    probe = ["unshare", "--map-root-user", "--mount", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        return "no mount namespace can be made here (unshare --map-root-user --mount)"
    return ""


@dataclass
class Step:
    """A try of a container step, of which its test says what comes out."""

    name: str  # the task's key
    path: str  # the groups above it, and its name, as in "exit-handler-1/for-loop-3[0]/sweep"
    attempt: int
    parameters: dict[str, Any]
    artifacts: dict[str, list[str]]  # the addresses of its inputs


Outcome = Mapping[str, Any] | None  # a step's output parameters besides the usual ones; None: the step fails


@dataclass
class Run:
    """What became of a run: each task's state by its path, in the order in which they ended, and its inputs."""

    states: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Step] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    pods: dict[str, dict] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)  # files of inputs that the launcher did not bring

    @property
    def has_succeeded(self) -> bool:
        return not self.errors and self.states["root"] == "Succeeded"


@dataclass
class Kfp:
    """What KFP's programs need, and how they are called."""

    programs: Path
    folder: Path
    metadata_port: int
    kubernetes_port: int
    s3: str
    certificate: bytes

    def run(self, program: str, *arguments: str, **variables: str) -> Path:
        """Runs a program of KFP in a pod, and returns the folder that it has as /pod."""
        pod = self.folder / uuid.uuid4().hex
        account = pod / "serviceaccount"
        account.mkdir(parents=True)
        account.joinpath("namespace").write_text(NAMESPACE)
        account.joinpath("token").write_text("let-me-in")
        account.joinpath("ca.crt").write_bytes(self.certificate)
        pod.joinpath("root").mkdir()
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", POD, "pod"]
        command += [str(pod / "root"), str(pod), str(self.programs), f"/kfp/{program}", *arguments]
        environment = {
            "PATH": os.environ["PATH"],
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.kubernetes_port),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "us-east-1",
            **variables,
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise DriverError(said[-1] if said else f"{program} ended with {done.returncode}")
        return pod

    def name_services(self) -> list[str]:
        """Returns the options of driver and launcher that say where ML Metadata and the cache are."""
        port, host = str(self.metadata_port), "127.0.0.1"
        metadata = ["--mlmd_server_address", host, "--mlmd_server_port", port]
        return [*metadata, "--ml_pipeline_server_address", host, "--ml_pipeline_server_port", port]


@contextmanager
def start_kfp(folder: Path) -> Iterator[Kfp]:
    """ML Metadata, cache, S3 and Kubernetes on loopback, for as many runs as wanted.

    How KFP reaches S3 is as the overlay `local` has it, but for the address.
    """
    programs, port = Path(os.environ["POSGAP_KFP_BIN"]).absolute(), free_port()
    with ExitStack() as stack:
        s3 = stack.enter_context(serving("moto", folder))
        s3_client(s3).create_bucket(Bucket=BUCKET)
        script = Path(__file__).with_name("kfp_services.py")
        command = [programs / "python", script, f"127.0.0.1:{port}", str(folder / "metadata.db")]
        # Not this interpreter's packages, which may be named in the environment.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait, 30)
        stack.callback(server.terminate)
        assert server.stdout.readline() == "ready\n", "ML Metadata's server did not start"
        providers = yaml.safe_load(LAUNCHER.read_text())["data"]["providers"]
        config = {"defaultPipelineRoot": ROOT, "providers": providers.replace("http://s3.posgap:8333", s3)}
        certificate, kubernetes_port = stack.enter_context(_kubernetes(folder, config))
        yield Kfp(programs, folder, port, kubernetes_port, s3, certificate)


def s3_client(address: str):
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=address, **keys)


@contextmanager
def _kubernetes(folder: Path, config: Mapping[str, str]) -> Iterator[tuple[bytes, int]]:
    """A Kubernetes API that has the ConfigMap `kfp-launcher`, and whose pods are each a step's first try."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, name = self.path.split("?")[0].rsplit("/", 2)[1:]
            found = {"apiVersion": "v1", "metadata": {"name": name, "namespace": NAMESPACE}}
            if (kind, name) == ("configmaps", "kfp-launcher"):
                found |= {"kind": "ConfigMap", "data": config}
            elif kind == "pods":
                found |= {"kind": "Pod"}
                found["metadata"]["annotations"] = {"workflows.argoproj.io/node-name": f"{name}(0)"}
            else:
                found = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found).encode()
            self.send_response(found.get("code", 200))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    certificate, key = _self_signed()
    pair = folder / "kubernetes.pem"
    pair.write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield certificate, server.server_port
    server.shutdown()
    server.server_close()


def _self_signed() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=6))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    encoding, clear = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, clear)
    return builder.sign(key, hashes.SHA256()).public_bytes(encoding), private


def play(
    kfp: Kfp,
    pipeline: str,
    parameters: Mapping[str, Any],
    outcome: Callable[[Step], Outcome],
    root: str = "",
    cache: bool = True,
) -> Run:
    """Plays a compiled pipeline, given as its text, to the end.

    `root` is the run's own pipeline root, as `submit` may send it; without one KFP takes that of `kfp-launcher`.
    """
    documents = list(yaml.safe_load_all(pipeline))
    return _Player(kfp, documents[0], documents[1:], outcome, cache).play(parameters, root)


class _Player:
    def __init__(self, kfp: Kfp, spec: dict, platforms: list[dict], outcome: Callable[[Step], Outcome], cache: bool):
        self.kfp, self.spec, self.outcome, self.cache = kfp, spec, outcome, cache
        self.id = str(uuid.uuid4())
        self.run = Run()
        self.kubernetes = {}
        for platform in platforms:
            self.kubernetes |= platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]

    def play(self, parameters: Mapping[str, Any], root: str) -> Run:
        values = dict(parameters)
        for name, declared in self.spec["root"].get("inputDefinitions", {}).get("parameters", {}).items():
            if name not in values and ("defaultValue" in declared or declared.get("isOptional")):
                values[name] = declared.get("defaultValue")
        config = {"parameterValues": values}
        if root:
            config["gcsOutputDirectory"] = root
        try:
            driven = self._drive("ROOT_DAG", self.spec["root"], runtime_config=json.dumps(config))
        except DriverError as error:
            self.run.errors.append(f"root: {error}")
            self.run.states["root"] = "Error"
            return self.run
        self.run.states["root"] = self._play_tasks(self.spec["root"]["dag"], driven["execution"], "")
        return self.run

    def _play_tasks(self, dag: Mapping[str, Any], parent: str, path: str) -> str:
        """Plays the tasks of a group, whose execution is `parent`, and returns the group's state."""
        tasks = {name: dict(task, dependentTasks=_find_dependencies(task)) for name, task in dag["tasks"].items()}
        order = TopologicalSorter({name: task["dependentTasks"] for name, task in tasks.items()})
        states: dict[str, str] = {}
        for name in order.static_order():
            awaited = {states[each] for each in tasks[name]["dependentTasks"]}
            if tasks[name].get("triggerPolicy", {}).get("strategy") == ALL_ENDED:
                # A hook is of the group's tasks, which are never begun where its driver fails.
                runs = awaited <= {"Succeeded", "Failed"}
            else:
                # Argo starts nothing more in a group in which a task failed (failFast), and none after a skipped one.
                runs = awaited <= {"Succeeded", "Cached"} and not FAILED & set(states.values())
            states[name] = self._try_task(name, tasks[name], parent, path) if runs else "Omitted"
            self.run.states[f"{path}{name}"] = states[name]
        return "Failed" if FAILED & set(states.values()) else "Succeeded"

    def _try_task(self, name: str, task: Mapping[str, Any], parent: str, path: str) -> str:
        """Plays a task, and keeps what KFP's programs say where they fail."""
        try:
            return self._play_task(name, task, parent, path)
        except DriverError as error:
            self.run.errors.append(f"{path}{name}: {error}")
            return "Error"

    def _play_task(self, name: str, task: Mapping[str, Any], parent: str, path: str) -> str:
        component = self.spec["components"][task["componentRef"]["name"]]
        if "executorLabel" in component:
            executor = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]
            if "importer" in executor:
                return self._import(task, component, executor["importer"], parent)
            return self._play_container(name, task, component, executor["container"], parent, path)
        given = {"task": json.dumps(task), "task_name": name}
        driven = self._drive("DAG", component, dag_execution_id=parent, **given)
        if driven["condition"] == "false":
            return "Skipped"
        if "parameterIterator" not in task:
            return self._play_tasks(component["dag"], driven["execution"], f"{path}{name}/")
        states = set()
        for index in range(int(driven["iterations"])):
            at = {"dag_execution_id": driven["execution"], "iteration_index": str(index)}
            iteration = self._drive("DAG", component, **given, **at)
            states.add(self._play_tasks(component["dag"], iteration["execution"], f"{path}{name}[{index}]/"))
        return "Failed" if "Failed" in states else "Succeeded"

    def _play_container(self, name: str, task, component, container, parent: str, path: str) -> str:
        given = {"task": json.dumps(task), "task_name": name, "container": json.dumps(container)}
        platform = self.kubernetes.get(component["executorLabel"])
        if platform:
            given["kubernetes_config"] = json.dumps(platform)
        driven = self._drive("CONTAINER", component, dag_execution_id=parent, **given)
        if driven["condition"] == "false":
            return "Skipped"
        if driven["cached"] == "true":
            return "Cached"
        pod = json.loads(driven["pod"])
        self.run.pods[f"{path}{name}"] = pod
        for attempt in range(1 + task.get("retryPolicy", {}).get("maxRetryCount", 0)):
            if self._launch(pod, component, name, f"{path}{name}", attempt):
                return "Succeeded"
        return "Failed"

    def _launch(self, pod: Mapping[str, Any], component, name: str, path: str, attempt: int) -> bool:
        """Runs the launcher of a step's pod with the program that plays the step; returns whether that succeeded."""
        main = next(one for one in pod["containers"] if one["name"] == "main")
        command = []
        for word in main["command"][1:]:
            command.append(word.replace("$(KFP_POD_NAME)", name).replace("$(KFP_POD_UID)", name))
        executor_input = json.loads(command[command.index("--executor_input") + 1])
        step = Step(name, path, attempt, *_read_inputs(executor_input))
        self.run.inputs[path], self.run.tries[path] = step, attempt + 1
        result = self.outcome(step)
        program = ["sh", "-c", _write_program(executor_input, component, step, result)]
        try:
            done = self.kfp.run("launcher-v2", *command, *program, KFP_RETRY_INDEX=str(attempt))
        except DriverError:
            if result is None:
                return False
            raise
        absent = done / "absent"
        if absent.exists():
            self.run.absent += absent.read_text().split()
        return True

    def _import(self, task, component, importer, parent: str) -> str:
        given = {"task_spec": task, "component_spec": component, "importer_spec": importer}
        options = ["--executor_type", "importer", "--parent_dag_id", parent, "--pod_name", "importer", "--pod_uid", "1"]
        for option, value in given.items():
            options += [f"--{option}", json.dumps(value)]
        self.kfp.run("launcher-v2", *options, *self._name_run())
        return "Succeeded"

    def _drive(self, kind: str, component: Mapping[str, Any], **options: str) -> dict[str, str]:
        """Calls the driver as the templates of argocompiler do, and returns what it writes for Argo."""
        arguments = ["--type", kind, "--component", json.dumps(component), "--run_name", f"run-{self.id}"]
        arguments += ["--run_display_name", "a run", "--pipeline_job_create_time_utc", "2026-11-27T00:00:00Z"]
        arguments += ["--http_proxy", "", "--https_proxy", "", "--no_proxy", ""]
        for option, value in options.items():
            arguments += [f"--{option}", value]
        for name, option in _WRITTEN.items():
            arguments += [f"--{option}", f"/pod/outputs/{name}"]
        outputs = self.kfp.run("driver", *arguments, *self._name_run()) / "outputs"
        return {name: (outputs / name).read_text() if (outputs / name).exists() else "" for name in _WRITTEN}

    def _name_run(self) -> list[str]:
        pipeline = self.spec["pipelineInfo"]["name"]
        options = ["--pipeline_name", pipeline, "--run_id", self.id, *self.kfp.name_services()]
        return options if self.cache else [*options, "--cache_disabled"]


def _find_dependencies(task: Mapping[str, Any]) -> list[str]:
    """Returns the tasks that a task waits for: those named, and those whose outputs it takes."""
    inputs, found = task.get("inputs", {}), dict.fromkeys(task.get("dependentTasks", ()))
    for given in inputs.get("parameters", {}).values():
        if "taskOutputParameter" in given:
            found[given["taskOutputParameter"]["producerTask"]] = None
    for given in inputs.get("artifacts", {}).values():
        if "taskOutputArtifact" in given:
            found[given["taskOutputArtifact"]["producerTask"]] = None
    return list(found)


def _read_inputs(executor_input: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    given = executor_input.get("inputs", {})
    artifacts = {}
    for name, found in given.get("artifacts", {}).items():
        artifacts[name] = [one["uri"] for one in found.get("artifacts", ())]
    return given.get("parameterValues", {}), artifacts


def _write_program(executor_input: Mapping[str, Any], component: Mapping[str, Any], step: Step, result: Outcome) -> str:
    """Returns the program that plays a step: it notes which inputs are not there, and writes all outputs or fails."""
    lines = []
    for addresses in step.artifacts.values():
        for local in map(_find_local, addresses):
            lines.append(f"[ -e {local} ] || echo {local} >> /pod/absent")
    if result is None:
        return "\n".join([*lines, "exit 1"])
    outputs = executor_input["outputs"]
    for name, found in outputs.get("artifacts", {}).items():
        if name != "executor-logs":  # the launcher's
            lines.append(f"echo {shlex.quote(step.path)} > {_find_local(found['artifacts'][0]['uri'])}")
    values = {}
    for name, declared in component.get("outputDefinitions", {}).get("parameters", {}).items():
        values[name] = result[name] if name in result else _USUAL[declared["parameterType"]]
        if values[name] is None:
            values[name] = f"{step.name} {name}"
    written = base64.b64encode(json.dumps({"parameterValues": values}).encode()).decode()
    file = shlex.quote(outputs["outputFile"])
    return "\n".join([*lines, f'mkdir -p "$(dirname {file})"', f"echo {written} | base64 -d > {file}"])


# What the driver writes for Argo, by the option that says where.
_WRITTEN = {
    "execution": "execution_id_path",
    "iterations": "iteration_count_path",
    "condition": "condition_path",
    "cached": "cached_decision_path",
    "pod": "pod_spec_patch_path",
}
_USUAL = {"STRING": None, "BOOLEAN": True, "NUMBER_INTEGER": 1, "NUMBER_DOUBLE": 0.5, "LIST": [], "STRUCT": {}}


def _find_local(address: str) -> str:
    """Returns where the launcher puts an artifact (component/launcher_v2.go, `LocalPathForURI`), quoted for a shell."""
    return shlex.quote("/" + address.replace("://", "/", 1))
