"""Kubernetes' own API server and etcd as processes of this machine, built from Go modules: no node and no root."""

import json
import os
import re
import secrets
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from manifests import KUBERNETES
from places import ROOT
from ports import free_port

GO = ROOT / "tests" / "cluster"
PROGRAM = ROOT / "build" / "cluster" / "kubernetes"
LOCAL, IN_A_NODE = "infra/kubernetes/overlays/local", "tests/cluster/local"
VERSION = "v1.34.2"  # of Kubernetes, as tests/cluster/go.mod has it
README = (KUBERNETES / "README.md").read_text()
# What KFP's profile controller makes in the namespace.
LAUNCHER = "kubectl -n posgap create configmap kfp-launcher"
# The custom kinds of what the overlays need beside Kubernetes, by module.
CUSTOM_KINDS = {
    "sigs.k8s.io/kueue@v0.19.2": "config/components/crd/bases",
    "sigs.k8s.io/jobset@v0.12.0": "config/components/crd/bases",
    "github.com/kubeflow/trainer/v2@v2.3.0": "manifests/base/crds",
}


def build() -> None:
    """Compiles Kubernetes and etcd, which takes some five minutes of two cores the first time."""
    version = " ".join(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in {"gitVersion": VERSION, "gitMajor": "1", "gitMinor": VERSION.split(".")[1]}.items()
    )
    compile_go(GO, ".", PROGRAM, version)


def compile_go(module: Path, package: str, program: Path, flags: str = "") -> None:
    """Compiles a program that needs no library of the system."""
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -trimpath"}
    command = ["go", "build", "-ldflags", f"-s -w {flags}", "-o", program, package]
    subprocess.run(command, cwd=module, env=environment, check=True)


def module_folder(module: str) -> Path:
    """Where Go's module cache has a module."""
    found = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
    return Path(json.loads(found.stdout)["Dir"])


def custom_kinds() -> Iterator[Path]:
    """Yields the files of the custom kinds, which Go's module cache has."""
    for module, where in CUSTOM_KINDS.items():
        for file in sorted((module_folder(module) / where).glob("*.yaml")):
            if file.name != "kustomization.yaml":
                yield file


def documented(section: str) -> list[str]:
    """The commands of a section of README.md, by block."""
    found = re.search(rf"^## {section}\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    return re.findall(r"^```sh\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)


def documented_command(section: str, beginning: str) -> str:
    """The command of a section of README.md that begins so."""
    [found] = [line for block in documented(section) for line in block.splitlines() if line.startswith(beginning)]
    return found


def pod(name: str = "any", labels: dict | None = None, namespace: str = "posgap", **container: object) -> dict:
    """A pod that the namespace's rules let in."""
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    main = {"name": "main", "image": "any", "imagePullPolicy": "Never", "securityContext": confined}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "serviceAccountName": "posgap-train",
            "containers": [main | container],
            "restartPolicy": "Never",
        },
    }


class ApiServer:
    """An API server, which `kubectl` calls as its administrator, and other programs beside it. Their files lie in
    `folder`, and they run `within` what a command like nsenter's leads to."""

    def __init__(self, folder: Path, within: Sequence[str] = ()):
        self.folder, self.kubeconfig, self.within = folder, folder / "admin.conf", within
        self.started: list[subprocess.Popen] = []

    def start(self, program: object, *words: str) -> None:
        """Starts a program, which writes a log."""
        with (self.folder / f"{words[0] if program == PROGRAM else Path(program).name}.log").open("w") as log:
            self.started.append(subprocess.Popen([*self.within, program, *words], stdout=log, stderr=log))

    def wait_for(self, condition: Callable[[], object], seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [process.args for process in self.started if process.poll() is not None]
            assert time.monotonic() < deadline and not ended, f"ended: {ended}; see the logs in {self.folder}"
            time.sleep(1)

    def environment(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def call(self, *words: object, text: str | None = None) -> subprocess.CompletedProcess:
        command = ["kubectl", *map(str, words)]
        return subprocess.run(command, input=text, capture_output=True, text=True, env=self.environment())

    def kubectl(self, *words: object, text: str | None = None) -> str:
        """What kubectl printed; the server must have accepted it, and without a warning."""
        done = self.call(*words, text=text)
        assert done.returncode == 0 and "Warning" not in done.stderr, f"{words}: {done.stdout[-3000:]}{done.stderr}"
        return done.stdout

    def create(self, made: dict, *options: str) -> dict:
        """What the API server answers to an object."""
        printed = self.kubectl("create", "--filename", "-", "--output", "json", *options, text=json.dumps(made))
        return json.loads(printed)

    def refusal(self, made: dict) -> str:
        """Why the API server refuses an object."""
        done = self.call("create", "--dry-run=server", "--filename", "-", text=json.dumps(made))
        assert done.returncode != 0, done.stdout
        return done.stderr

    def shell(self, commands: str) -> None:
        """Runs documented commands, of which none may fail or warn; in a node, with its own overlay."""
        commands = commands.replace(f"-k {LOCAL}", f"-k {IN_A_NODE}") if self.within else commands
        environment = self.environment() | {"HF_TOKEN": "none"}
        shell = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True)
        # With `warn: restricted` the namespace warns of Deployments and Jobs whose pods it would refuse.
        warned = re.search("^Warning:", done.stderr, re.MULTILINE)
        assert done.returncode == 0 and not warned, done.stdout + done.stderr

    def apply_local(self, *without: str, node: str = "NODE", before_launcher: str = LAUNCHER) -> None:
        """Applies the overlay `local` as documented, but for the commands that begin so."""
        lines = [line for line in documented("local")[0].splitlines() if not line.startswith(without)]
        commands = "\n".join(lines).replace(" NODE ", f" {node} ")
        self.shell(re.sub(r"^(?=.*patch configmap kfp-launcher)", f"{before_launcher}\n", commands, flags=re.MULTILINE))

    def secret(self, name: str) -> dict[str, str]:
        """What a secret of posgap's holds."""
        found = json.loads(self.kubectl("-n", "posgap", "get", "secret", name, "--output=json"))["data"]
        return {key: b64decode(value).decode() for key, value in found.items()}

    def is_ready(self) -> bool:
        return not self.call("get", "--raw", "/readyz", "--request-timeout", "5s").returncode


@contextmanager
def running(
    folder: Path,
    address: str = "127.0.0.1",
    port: int = 0,
    within: Sequence[str] = (),
    accounts: Mapping[str, str] | None = None,
) -> Iterator[ApiServer]:
    """An API server with the custom kinds, whose files lie in `folder`; it ends with the block. Each of the further
    `accounts`, a user and its groups by name, gets a kubeconfig of that name, too."""
    build()
    server, port, storage = ApiServer(folder, within), port or free_port(), free_port()
    tokens = []
    for name, account in {"admin": "admin,1,system:masters", **(accounts or {})}.items():
        token = secrets.token_hex(16)
        tokens.append(f"{token},{account}\n")
        cluster = {"server": f"https://{address}:{port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "api", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "api", "context": {"cluster": "api", "user": name}}],
            "current-context": "api",
        }
        (folder / f"{name}.conf").write_text(yaml.safe_dump(config))
    (folder / "tokens.csv").write_text("".join(tokens))
    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "accounts.key").write_bytes(key.private_bytes(pem, *plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "accounts.pub").write_bytes(public)
    client, peer = f"http://127.0.0.1:{storage}", f"http://127.0.0.1:{free_port()}"
    # The address of the Service kubernetes may not be loopback's.
    advertised = "192.0.2.1" if address.startswith("127.") else address
    try:
        server.start(
            PROGRAM, "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
        )  # fmt: skip
        server.start(
            PROGRAM, "kube-apiserver", f"--etcd-servers={client}", f"--secure-port={port}", f"--bind-address={address}",
            f"--advertise-address={advertised}", f"--cert-dir={folder}/certificates",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
            "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={folder}/tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            "--api-audiences=https://kubernetes.default.svc,pipelines.kubeflow.org",
            f"--service-account-key-file={folder}/accounts.pub",
            f"--service-account-signing-key-file={folder}/accounts.key",
        )  # fmt: skip
        server.wait_for(server.is_ready)
        files = [f"--filename={file}" for file in custom_kinds()]
        server.kubectl("apply", "--server-side", *files)
        server.kubectl("wait", "crd", "--all", "--for", "condition=established", "--timeout", "5m")
        yield server
    finally:
        for process in reversed(server.started):
            process.kill()
            process.wait()
