"""Trainer, JobSet and Kueue as controllers in a node, built from Go modules and installed from what lies there."""

import shutil
import tempfile
from pathlib import Path

import yaml
from api_server import CUSTOM_KINDS, PROGRAM, ApiServer, compile_go, documented, module_folder
from container_engine import run
from container_images import STAND_INS

KUEUE, JOBSET, TRAINER = CUSTOM_KINDS
PACKAGES = {
    "kueue": (KUEUE, "./cmd/kueue"),
    "jobset": (JOBSET, "."),
    "trainer": (TRAINER, "./cmd/trainer-controller-manager"),
}
IMAGE = "localhost/posgap-test-operators:latest"


def build() -> None:
    """Compiles them, which takes some ten minutes of two cores the first time, and makes their image."""
    with tempfile.TemporaryDirectory() as context:
        for name, (module, package) in PACKAGES.items():
            compile_go(module_folder(module), package, PROGRAM.parent / name)
            shutil.copy(PROGRAM.parent / name, context)
        run("buildah", "build", "--layers", "--file", STAND_INS / "operators.Dockerfile", f"--tag={IMAGE}", context)


def install(server: ApiServer) -> None:
    """Does what the documented commands do, with the manifests of the modules. The image is there already."""
    with tempfile.TemporaryDirectory() as folder:
        manifests = shutil.copytree(module_folder(TRAINER) / "manifests", Path(folder, "trainer"))
        # Trainer fetches JobSet's manifests.
        file = manifests / "third-party/jobset/kustomization.yaml"
        (file.parent / "jobset.yaml").write_text(_rendered(module_folder(JOBSET) / "config/default"))
        lines = file.read_text().splitlines()
        file.write_text("\n".join("  - jobset.yaml" if line.startswith("  - https:") else line for line in lines))
        for place in (manifests / "overlays/manager", module_folder(KUEUE) / "config/default"):
            objects = list(yaml.safe_load_all(_rendered(place)))
            for each in objects:
                if each["kind"] == "Deployment":
                    _use_our_image(each)
            server.kubectl("apply", "--server-side", "--filename=-", text=yaml.safe_dump_all(objects))
    commands = documented("What the cluster must have")[0].splitlines()
    server.shell("\n".join(line for line in commands if " wait " in line))


def workers(server: ApiServer, *options: str) -> list[str]:
    """The pods of TrainJobs, also those that are ending."""
    command = ("-n", "posgap", "get", "pods", "--selector=jobset.sigs.k8s.io/jobset-name", "--output=name")
    return server.kubectl(*command, *options).split()


def _rendered(place: Path) -> str:
    return run("kubectl", "kustomize", place)


def _use_our_image(deployment: dict) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    program = next(name for name in PACKAGES if name in deployment["metadata"]["name"])
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "command": [f"/{program}"]}
    # JobSet and Kueue ask for half a core each. While a machine is busy they answer late, and were killed for it.
    container["resources"] = {"requests": {"cpu": "100m"}}
    for probe in ("livenessProbe", "readinessProbe"):
        container[probe]["timeoutSeconds"] = 30
