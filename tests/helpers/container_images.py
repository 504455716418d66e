"""The images without CUDA where nothing can be pulled: on a base that debootstrap makes, with stand-ins for others."""

import ast
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from container_engine import run
from places import ROOT

STAND_INS = ROOT / "tests" / "containers"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE = "localhost/posgap-test-base"
TOOLS = ("podman", "buildah", "runc", "catatonit", "debootstrap", "kubectl")
# Of Debian 12's podman, as root in a container or on a small machine.
CONFIG = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
"""


def require() -> None:
    """Skips where containers were not asked for; fails where they were, and something is missing."""
    if os.environ.get("POSGAP_CONTAINERS") != "1":
        pytest.skip(
            "containers are not asked for: make containers, or POSGAP_CONTAINERS=1, as root, where podman can run"
        )
    if os.getuid() != 0:
        pytest.fail("POSGAP_CONTAINERS=1 needs root: networks and users of containers are made")
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        packages = f"{' '.join(tool for tool in TOOLS if tool != 'kubectl')} netavark iptables"
        pytest.fail(f"missing: {', '.join(missing)}; apt-get install --no-install-recommends {packages}")


def build_images(
    folder: Path,
    engine: str = "podman",
    images: Iterable[str] = ("cpu", "mlflow"),
    stand_ins: Iterable[str] = ("postgres", "s3"),
) -> None:
    """Images as `make images` builds them, BUILD_FLAGS included, and stand-ins. Layers are kept for the next time."""
    if subprocess.run([engine, "inspect", "--type=image", BASE], capture_output=True).returncode:
        _build_base(folder, engine)
    flags = ["--network=host", "--layers", *pip_flags(folder)]
    for name in stand_ins:
        file = STAND_INS / f"{name}.Dockerfile"
        run(engine, "build", *flags, "--file", file, f"--tag=localhost/posgap-test-{name}", STAND_INS)
    torch = os.environ.get("TORCH_INDEX_URL", "")
    flags += [f"--build-arg=BASE={BASE}", f"--build-arg=TORCH_INDEX_URL={torch}", os.environ.get("BUILD_FLAGS", "")]
    environment = os.environ | {"ENGINE": engine, "BUILD_FLAGS": " ".join(flags)}
    subprocess.run([ROOT / "infra/images/images.sh", "build", *images], env=environment, check=True)


def _build_base(folder: Path, engine: str) -> None:
    rootfs = folder / "rootfs"
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", rootfs]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # The official image is without these too, and the size of what is built on it is checked.
    for needless in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(rootfs / needless)
    subprocess.run(["tar", "-C", rootfs, "-cf", folder / "rootfs.tar", "."], check=True)
    shutil.rmtree(rootfs)
    run(engine, "build", "--network=host", "--file", STAND_INS / "base.Dockerfile", f"--tag={BASE}", folder)


def pip_flags(folder: Path) -> list[str]:
    """What a build must know to install packages as this machine does: the certificates, pip's settings, and the files
    and folders that these name. Files that a constraint's own lines name are not among them."""
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    settings: dict[str, dict[str, str]] = {}
    # What the environment says comes last: it goes before the files.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if "cert" not in key:
            settings.setdefault(section.replace(":env:", "global"), {})[key] = " ".join(ast.literal_eval(value).split())
    sections = (f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) for name, values in settings.items())
    (folder / "pip.conf").write_text("".join(sections))
    words = [word for values in settings.values() for value in values.values() for word in value.split()]
    # The files of an index lie beside its pages.
    paths = [Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word) for word in words]
    # The bundle alone: packages of Debian, like ssl-cert, write beside it.
    paths = [CERTIFICATES, *(path for path in paths if path.is_absolute() and path.exists())]
    mounts = dict.fromkeys(f"--volume={path}:{path}:ro" for path in paths)
    return [f"--secret=id=pip,src={folder}/pip.conf", *mounts]
