"""Containers where there is no daemon and nothing can be pulled: images on a base that debootstrap makes, podman's
socket, and pods out of the rendered manifests."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
STAND_INS = ROOT / "tests" / "containers"
TOOLS = {"podman": "podman", "runc": "runc", "debootstrap": "debootstrap", "catatonit": "catatonit"}
CONFIG = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
"""


def require() -> None:
    """Skips where containers were not asked for; fails where they were, and something is missing."""
    if os.environ.get("POSGAP_TEST_CONTAINERS") != "1":
        pytest.skip("containers are not asked for: set POSGAP_TEST_CONTAINERS=1, as root, where podman can run")
    if os.getuid() != 0:
        pytest.fail("POSGAP_TEST_CONTAINERS=1 needs root")
    if missing := [package for tool, package in TOOLS.items() if not shutil.which(tool)]:
        pytest.fail(f"missing: apt-get install --no-install-recommends buildah netavark iptables {' '.join(missing)}")


def podman(*words: object, text: str | None = None) -> str:
    """What it printed; the test fails where it fails."""
    done = subprocess.run(["podman", *map(str, words)], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"podman {words}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port: int, what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, f"{what} does not answer on port {port}"
            time.sleep(0.5)


def build_flags(folder: Path) -> list[str]:
    """The host's network, its certificates, and what its pip knows of indexes."""
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    settings = dict(line.split("=", 1) for line in listed.splitlines() if line.startswith("global."))
    values = {key.removeprefix("global."): value.strip("'") for key, value in settings.items() if "cert" not in key}
    (folder / "pip.conf").write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    flags = [
        "--network=host",
        "--layers",
        f"--secret=id=pip,src={folder}/pip.conf",
        "-v=/etc/ssl/certs:/etc/ssl/certs:ro",
    ]
    words = [word for value in values.values() for word in value.split()]
    # The files of an index lie beside its pages.
    paths = [Path(word.removeprefix("file://")).parent if word.startswith("file://") else word for word in words]
    return flags + [f"--volume={path}:{path}:ro" for path in ["/etc/ssl/certs", *paths] if Path(path).is_dir()]


def build_images(folder: Path) -> None:
    """The cpu image as `make images` builds it, and stand-ins for the others. Layers are kept for the next time."""
    if subprocess.run(["podman", "image", "exists", "localhost/posgap-test-base"]).returncode:
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", folder / "rootfs"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "-C", folder / "rootfs", "-cf", folder / "rootfs.tar", "."], check=True)
        shutil.rmtree(folder / "rootfs")
        flags = ["--network=host", "--file", STAND_INS / "base.Dockerfile", "--tag=localhost/posgap-test-base"]
        podman("build", *flags, folder)
    flags = build_flags(folder)
    podman("build", "--network=host", "--file", STAND_INS / "postgres.Dockerfile", "--tag=postgres", STAND_INS)
    podman("build", *flags, "--file", STAND_INS / "s3.Dockerfile", "--tag=s3", STAND_INS)
    torch = os.environ.get("TORCH_INDEX_URL", "")
    flags += ["--build-arg=BASE=localhost/posgap-test-base", f"--build-arg=TORCH_INDEX_URL={torch}"]
    environment = os.environ | {"ENGINE": "podman", "BUILD_FLAGS": " ".join(flags)}
    for verb in ("build", "check"):
        subprocess.run([ROOT / "infra/images/images.sh", verb, "cpu"], env=environment, check=True)


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


def as_pod(deployment: dict, image: str | None, variables: dict[str, str], words: dict[str, str]) -> dict:
    """The pod of a Deployment as `podman kube play` can run it: without probes, since it knows no named ports; with
    `emptyDir` volumes that are not shared with other pods' of the same name; started again where it fails."""
    name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
    spec = template["spec"] | {"restartPolicy": "OnFailure"}
    volumes = {v["name"]: f"{name}-{v['name']}" if "emptyDir" in v else v["name"] for v in spec["volumes"]}
    for volume in spec["volumes"]:
        volume["name"] = volumes[volume["name"]]
    for container in spec["containers"] + spec.get("initContainers", []):
        for key in [key for key in container if key.endswith("Probe") or key == "ports"]:
            del container[key]
        for mount in container.get("volumeMounts", []):
            mount["name"] = volumes[mount["name"]]
        container["imagePullPolicy"] = "Never"
        container["image"] = image or container["image"]
        container["env"] = container.get("env", []) + [{"name": k, "value": v} for k, v in variables.items()]
        container["command"] = [words.get(word, word) for word in container.get("command", [])]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": template["metadata"]["labels"]}} | {
        "spec": {key: value for key, value in spec.items() if key != "priorityClassName"}
    }


def secret(name: str, **values: str) -> None:
    """A secret that pods refer to."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    podman("secret", "create", name, "-", text=json.dumps(encoded))


@contextmanager
def played(folder: Path, name: str, objects: list[dict]) -> Iterator[None]:
    """Runs pods, with the objects they need, on the host's network."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    podman("kube", "play", "--network=host", file)
    try:
        yield
    finally:
        pods = [each["metadata"]["name"] for each in objects if each["kind"] == "Pod"]
        subprocess.run(["podman", "pod", "rm", "--force", *pods], capture_output=True)
