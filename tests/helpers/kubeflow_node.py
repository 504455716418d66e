"""Kubeflow Pipelines 2.17 for several users, with its UI, in the node of cluster.py.

`POSGAP_KFP` names the folder with its programs, which are built outside the repository: infra/ci/README.md says what
lies there. They are no images, so they run beside Kubernetes' own. A pod in the namespace kubeflow passes on to them
what other pods ask, as network rules expect it. `python tests/helpers/kubeflow_node.py` keeps all of it up in a node
that is kept up already.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cluster
import yaml
from api_server import GO, PROGRAM, ApiServer, documented_command
from cluster import ADDRESS
from container_engine import run

PROGRAMS = yaml.safe_load((GO / "kubeflow.yaml").read_text())
UI = f"http://{ADDRESS}:{PROGRAMS['ui']['port']}"
STORE_KEYS = {"accesskey": "minio", "secretkey": "minio123"}
TOKENS = "/run/secrets/kubeflow/tokens"  # where KFP's agents look for theirs
NAMES = """nameserver 10.96.0.10
search kubeflow.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
"""


class Kubeflow:
    """KFP's programs in a node, each of which can be stopped and started."""

    def __init__(self, server: ApiServer):
        self.server, self.made, self.files = server, Path(os.environ["POSGAP_KFP"]), server.folder / "kubeflow"

    def start(self, name: str) -> None:
        """Starts a program, and waits until it can be called."""
        program = PROGRAMS[name]
        environment = os.environ | program.get("environment", {})
        places = {"made": self.made, "files": self.files, "bin": PROGRAM.parent, "here": Path(__file__).parent}
        if "account" in program:
            # Some calls read the option, others the variable, and KFP's server its home.
            places["kubeconfig"] = file = self._account(program["account"])
            environment |= {"KUBECONFIG": str(file), "HOME": str(file.parents[1])}
        if "token" in program:
            token = self._token(program["account"], "--audience=pipelines.kubeflow.org")
            run(*self.server.within, "tee", f"{TOKENS}/{program['token']}-sa-token", text=token)
        if "secret" in program:
            environment |= self.server.secret(program["secret"])
        with (self.files / f"{name}.log").open("a") as log:
            command = [*self.server.within, *program["command"].format(**places).split()]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        (self.files / f"{name}.pid").write_text(str(process.pid))
        deadline = time.monotonic() + 300
        while "port" in program and not is_open(program["port"]):
            assert process.poll() is None and time.monotonic() < deadline, f"{name}: see {log.name}"
            time.sleep(0.5)

    def stop(self, name: str) -> None:
        """Kills a program."""
        # nsenter's child is the program, and lives on without it.
        run("pkill", "--signal=KILL", "--parent", (self.files / f"{name}.pid").read_text())

    def _token(self, account: str, *options: str) -> str:
        return self.server.kubectl("-n", "kubeflow", "create", "token", account, "--duration=24h", *options)

    def _account(self, name: str) -> Path:
        """The kubeconfig of a service account, as its pods would have it."""
        config = yaml.safe_load(self.server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": self._token(name)}
        config["contexts"][0]["context"]["namespace"] = "kubeflow"
        file = self.files / name / ".kube" / "config"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(config))
        return file

    def prepare(self) -> None:
        """Makes what the programs need: KFP's objects and images, a database, names, tokens."""
        self.files.mkdir()
        (self.files / "store").mkdir()
        for image in (self.made / "images").glob("*.tar"):
            run("ctr", f"--address={cluster.SOCKET}", "--namespace=k8s.io", "images", "import", image)
        self.server.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={self.made}/manifests")
        patch = "kubectl -n kubeflow patch configmap workflow-controller-configmap"
        self.server.shell(documented_command("What the cluster must have", patch))
        words = [f"--from-literal={key}={value}" for key, value in STORE_KEYS.items()]
        for namespace in ("kubeflow", "posgap"):
            self.server.kubectl("-n", namespace, "create", "secret", "generic", "mlpipeline-minio-artifact", *words)
        run("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self.files}/database")
        (self.files / "resolv.conf").write_text(NAMES)
        run(*self.server.within, "mount", "--bind", self.files / "resolv.conf", "/etc/resolv.conf")
        run(*self.server.within, "mkdir", "--parents", TOKENS)


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection((ADDRESS, port), timeout=5):
        return True
    return False


@contextmanager
def running(server: ApiServer) -> Iterator[Kubeflow]:
    """KFP in a node with the overlay `local`; one that is kept, if any."""
    kubeflow = Kubeflow(server)
    if is_open(PROGRAMS["ui"]["port"]):
        yield kubeflow
        return
    kubeflow.prepare()
    try:
        for name in PROGRAMS:
            kubeflow.start(name)
        server.kubectl("-n", "kubeflow", "rollout", "status", "deployment/kfp-relay", "--timeout=5m")
        yield kubeflow
    finally:
        for name in reversed(PROGRAMS):
            with suppress(AssertionError, OSError):
                kubeflow.stop(name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), cluster.with_overlay() as up, running(up):
        print(UI, flush=True)
        signal.pause()
