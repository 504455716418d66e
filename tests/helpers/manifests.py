"""Renders infra/kubernetes and says what is wrong with it, without a cluster."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from places import ROOT

KUBERNETES = ROOT / "infra" / "kubernetes"
VERSION = "1.32"
CLUSTER_SCOPED = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not on PATH: infra/kubernetes is neither rendered nor checked"
)
SECURED = ", secured"  # an overlay with the components tls and oidc
each_overlay = pytest.mark.parametrize("name", ["local", "aws", f"local{SECURED}", f"aws{SECURED}"])


def render(folder: Path) -> list[dict]:
    """The objects that a kustomization makes."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@cache
def overlay(name: str) -> list[dict]:
    """The objects of an overlay, which are not to be changed."""
    place = name.removesuffix(SECURED)
    if place == name:
        return render(KUBERNETES / "overlays" / place)
    with tempfile.TemporaryDirectory() as folder:
        there = shutil.copytree(KUBERNETES, Path(folder) / "kubernetes") / "overlays" / place
        file = there / "kustomization.yaml"
        images = "  - ../../images\n"
        file.write_text(file.read_text().replace(images, f"  - ../../tls\n  - ../../oidc\n{images}"))
        return render(there)


def of_kind(objects: list[dict], kind: str) -> dict[str, dict]:
    """The objects of one kind by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


@cache
def custom_kinds() -> dict[tuple[str, str], dict]:
    """The schemas of the custom kinds, by API version and kind."""
    loaded = [yaml.safe_load(file.read_text()) for file in sorted((KUBERNETES / "schemas").glob("*.yaml"))]
    return {(schema["apiVersion"], schema["kind"]): schema for schema in loaded}


def validate(manifest: dict) -> None:
    """Raises `ValidationError` (of jsonschema or kubernetes-validate) where a manifest breaks its kind's schema, and
    `SchemaNotFoundError` where its kind is unknown."""
    schema = custom_kinds().get((manifest["apiVersion"], manifest["kind"]))
    if schema is None:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        return
    # Beside its spec a custom object has what every object has.
    common = {key: value for key, value in manifest.items() if key != "spec"}
    kubernetes_validate.validate(common | {"apiVersion": "v1", "kind": "Namespace"}, VERSION, strict=True)
    jsonschema.Draft202012Validator(schema["spec"]).validate(manifest["spec"])
    for job in jobs(manifest):
        kubernetes_validate.validate(job, VERSION, strict=True)


def jobs(manifest: dict) -> Iterator[dict]:
    """The Jobs that a training runtime or a CronJob makes."""
    if manifest["kind"] == "ClusterTrainingRuntime":
        for replicated in manifest["spec"]["template"]["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job"} | replicated["template"]
    if manifest["kind"] == "CronJob":
        yield {"apiVersion": "batch/v1", "kind": "Job"} | manifest["spec"]["jobTemplate"]


def pod_templates(objects: list[dict]) -> dict[str, dict]:
    """Every pod template (metadata and spec), by the kind and name of what makes it."""
    made = {}
    for each in objects:
        for owner in [*jobs(each), each]:
            if "template" in owner.get("spec", {}) and "containers" in owner["spec"]["template"].get("spec", {}):
                made[f"{each['kind']} {each['metadata']['name']}"] = owner["spec"]["template"]
    return made


def containers(pod: dict) -> list[dict]:
    """All containers of a pod's spec."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def env_from(container: dict, kind: str) -> set[str]:
    """The ConfigMaps (`configMapRef`) or Secrets (`secretRef`) that a container takes its environment from."""
    return {source[kind]["name"] for source in container.get("envFrom", []) if kind in source}


# What a security context may say at all: the rest (SELinux, sysctls, procMount, privileged ...) only loosens it.
CONTEXT = {"runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile"}
POD_CONTEXT = CONTEXT | {"fsGroup", "fsGroupChangePolicy", "supplementalGroups"}
CONTAINER_CONTEXT = CONTEXT | {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def insecurities(pod: dict) -> list[str]:
    """What keeps a pod's spec from the Pod Security Standard `restricted`, a read-only root and known requests.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    shared = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"volume {each['name']}" for each in pod.get("volumes", []) if not each.keys() - {"name"} <= VOLUMES]
    found += sorted(shared.keys() - POD_CONTEXT)
    for each in containers(pod):
        own = each.get("securityContext", {})
        context = shared | own
        capabilities = own.get("capabilities", {})
        wrong = dict.fromkeys(own.keys() - CONTAINER_CONTEXT, True) | {
            "runAsNonRoot": context.get("runAsNonRoot") is not True,
            "runAsUser": not context.get("runAsUser"),
            "seccompProfile": context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities": "ALL" not in capabilities.get("drop", []) or bool(capabilities.get("add")),
            "hostPort": any("hostPort" in port for port in each.get("ports", [])),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is not True,
            "requests": not {"cpu", "memory"} <= each.get("resources", {}).get("requests", {}).keys(),
        }
        found += sorted(f"{each['name']}: {name}" for name, is_wrong in wrong.items() if is_wrong)
    return found


def tolerates(pod: dict, taint: dict) -> bool:
    """Whether a pod's spec tolerates a taint."""
    return any(
        each.get("key") in (None, taint["key"])
        and each.get("effect") in (None, taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in pod.get("tolerations", [])
    )
