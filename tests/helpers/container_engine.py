"""podman: its socket, and pods out of the rendered manifests."""

import base64
import copy
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml
from manifests import containers


def run(*words: object, text: str | None = None) -> str:
    """What a program printed; the test fails where it fails."""
    done = subprocess.run([*map(str, words)], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


podman = partial(run, "podman")


def wait_for(port: int, what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, f"{what} does not answer on port {port}"
            time.sleep(0.5)


@contextmanager
def socket_of_podman(folder: Path) -> Iterator[str]:
    """The address of an API like Docker's."""
    file = folder / "podman.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=0", f"unix://{file}"])
    try:
        while not file.exists():
            assert service.poll() is None
            time.sleep(0.1)
        yield f"unix://{file}"
    finally:
        service.terminate()
        service.wait()


def as_pod(
    deployment: dict, variables: Mapping[str, str], image: str = "", words: Mapping[str, str] | None = None
) -> dict:
    """The pod of a Deployment as `podman kube play` can run it: without probes, since it knows no named ports; with
    volumes that are no other pod's of the same name; started again where it fails. `words` of its commands are
    replaced, and the `variables` added."""
    template = copy.deepcopy(deployment["spec"]["template"])
    name, spec = f"posgap-test-{deployment['metadata']['name']}", template["spec"] | {"restartPolicy": "OnFailure"}
    del spec["priorityClassName"]
    for volume in spec["volumes"]:
        volume["name"] = f"{name}-{volume['name']}"
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = volume["name"]
    for container in containers(spec):
        for key in [key for key in container if key.endswith("Probe") or key == "ports"]:
            del container[key]
        for mount in container.get("volumeMounts", []):
            mount["name"] = f"{name}-{mount['name']}"
        container["imagePullPolicy"] = "Never"
        container["image"] = image or container["image"]
        container["env"] = container.get("env", []) + [{"name": k, "value": v} for k, v in variables.items()]
        container["command"] = [(words or {}).get(word, word) for word in container.get("command", [])]
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextmanager
def secret(name: str, **values: str) -> Iterator[None]:
    """A secret that pods refer to."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    with _removed(["secret", "rm", name]):
        podman("secret", "create", name, "-", text=json.dumps(encoded))
        yield


@contextmanager
def played(file: Path, maps: list[dict], pods: list[dict]) -> Iterator[None]:
    """Runs pods, with the ConfigMaps they need, on the host's network; removes them and their volumes."""
    file.write_text(yaml.safe_dump_all([*maps, *pods]))
    names = [pod["metadata"]["name"] for pod in pods]
    volumes = [volume["name"] for pod in pods for volume in pod["spec"]["volumes"]]
    with _removed(["volume", "rm", "--force", *volumes]), _removed(["pod", "rm", "--force", *names]):
        podman("kube", "play", "--network=host", file)
        yield


@contextmanager
def _removed(command: list[str]) -> Iterator[None]:
    """Runs what removes something after the block, and before it, since a test that was killed leaves it behind."""
    subprocess.run(["podman", *command], capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["podman", *command], capture_output=True)
