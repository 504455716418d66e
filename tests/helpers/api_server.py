"""Kubernetes' own API server and etcd as processes of this machine, built from Go modules: no node and no root."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from places import ROOT
from ports import free_port

GO = ROOT / "tests" / "cluster"
PROGRAM = ROOT / "build" / "cluster" / "api"
VERSION = "v1.34.2"  # of Kubernetes, as tests/cluster/go.mod has it
# The custom kinds of what the overlays need beside Kubernetes, by module.
CUSTOM_KINDS = {
    "sigs.k8s.io/kueue@v0.19.2": "config/components/crd/bases",
    "sigs.k8s.io/jobset@v0.12.0": "config/components/crd/bases",
    "github.com/kubeflow/trainer/v2@v2.3.0": "manifests/base/crds",
}


def build() -> None:
    """Compiles API server and etcd, which takes some five minutes of two cores the first time."""
    version = " ".join(
        f"-X {package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in {"gitVersion": VERSION, "gitMajor": "1", "gitMinor": VERSION.split(".")[1]}.items()
    )
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -trimpath"}
    command = ["go", "build", "-ldflags", f"-s -w {version}", "-o", PROGRAM, "./api"]
    subprocess.run(command, cwd=GO, env=environment, check=True)


def custom_kinds() -> Iterator[Path]:
    """Yields the files of the custom kinds, which Go's module cache has."""
    for module, where in CUSTOM_KINDS.items():
        found = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
        for file in sorted(Path(json.loads(found.stdout)["Dir"], where).glob("*.yaml")):
            if file.name != "kustomization.yaml":
                yield file


class ApiServer:
    """An API server, which `kubectl` calls as its administrator."""

    def __init__(self, folder: Path):
        self.kubeconfig = folder / "admin.conf"

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

    def is_ready(self) -> bool:
        return not self.call("get", "--raw", "/readyz", "--request-timeout", "5s").returncode


@contextmanager
def running(folder: Path, seconds: float = 600) -> Iterator[ApiServer]:
    """An API server with the custom kinds, whose files lie in `folder`; it ends with the block."""
    build()
    server, port, storage = ApiServer(folder), free_port(), free_port()
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,1,system:masters\n")
    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "accounts.key").write_bytes(key.private_bytes(pem, *plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "accounts.pub").write_bytes(public)
    named = {"cluster": "api", "user": "admin"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "api", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "api", "context": named}],
        "current-context": "api",
    }
    server.kubeconfig.write_text(yaml.safe_dump(config))
    client, peer = f"http://127.0.0.1:{storage}", f"http://127.0.0.1:{free_port()}"
    programs = {
        "etcd": [
            f"--data-dir={folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
        ],
        "kube-apiserver": [
            f"--etcd-servers={client}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none", f"--cert-dir={folder}/certificates",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
            f"--token-auth-file={folder}/tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            "--api-audiences=https://kubernetes.default.svc,pipelines.kubeflow.org",
            f"--service-account-key-file={folder}/accounts.pub",
            f"--service-account-signing-key-file={folder}/accounts.key",
        ],
    }  # fmt: skip
    started = []
    try:
        for name, options in programs.items():
            log = (folder / f"{name}.log").open("w")
            started.append(subprocess.Popen([PROGRAM, name, *options], stdout=log, stderr=log))
        deadline = time.monotonic() + seconds
        while not server.is_ready():
            assert time.monotonic() < deadline and started[-1].poll() is None, (
                f"no API server; see the logs in {folder}"
            )
            time.sleep(1)
        files = [f"--filename={file}" for file in custom_kinds()]
        server.kubectl("apply", "--server-side", *files)
        server.kubectl("wait", "crd", "--all", "--for", "condition=established", "--timeout", "5m")
        yield server
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
