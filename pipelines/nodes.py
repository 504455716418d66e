"""Says before a run which steps no node of the cluster can hold, as far as the cluster may be asked."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posgap.kubeflow.training_pool import amount
from posgap.pipelines.progress import describe_request
from posgap.pipelines.resources import Resources
from posgap.pipelines.steps import UNKNOWN

log = logging.getLogger(__name__)
SECONDS = 5.0  # to wait for the cluster's answer
_KEEPS_OUT = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Node:
    """A node's resources for pods: CPUs, bytes, and accelerators by their resource's name."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]]
    cpu: float
    memory: float
    accelerators: Mapping[str, int]

    @classmethod
    def from_manifest(cls, node: Mapping[str, Any]) -> "Node":
        """Returns the node that Kubernetes describes so."""
        has = node["status"]["allocatable"]
        others = {name: int(amount(has[name])) for name in has if "/" in name}
        labels = node["metadata"].get("labels") or {}
        taints = node["spec"].get("taints") or []
        return cls(node["metadata"]["name"], labels, taints, amount(has["cpu"]), amount(has["memory"]), others)

    def can_hold(self, asked: Resources) -> bool:
        """Whether the step fits on this node when nothing else is there."""
        if any(self.labels.get(name) != value for name, value in asked.pool.items()):
            return False
        if any(taint["effect"] in _KEEPS_OUT and not _tolerates(asked.tolerations, taint) for taint in self.taints):
            return False
        if asked.accelerators and self.accelerators.get(asked.accelerator, 0) < asked.accelerators:
            return False
        return _or_none(asked.cpu) <= self.cpu and _or_none(asked.memory) <= self.memory


def _or_none(quantity: str) -> float:
    """Returns the number in a quantity; 0 if none is requested, or if only the run will know."""
    return amount(quantity) if quantity and UNKNOWN not in quantity else 0.0


def _tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, str]) -> bool:
    for each in tolerations:
        if each.get("key") not in (None, "", taint["key"]) or each.get("effect") not in (None, "", taint["effect"]):
            continue
        if each.get("operator", "Equal") == "Exists" or each.get("value", "") == taint.get("value", ""):
            return True
    return False


def unplaceable(steps: Iterable[Resources], nodes: Sequence[Node]) -> list[str]:
    """Returns a line for each kind of request that no node can hold, with the steps that make it."""
    waiting: dict[str, list[str]] = {}
    for step in steps:
        if UNKNOWN not in step.pool and not any(node.can_hold(step) for node in nodes):
            waiting.setdefault(describe_request(step), []).append(step.step)
    return [
        f"no node that the cluster has now can hold {', '.join(names)}: asks for {request}; unless nodes are added for "
        "it, the run waits there. The cluster's file (POSGAP_CLUSTER) says what steps ask for"
        for request, names in waiting.items()
    ]


def find_nodes() -> list[Node]:
    """Returns the nodes of KUBECONFIG's cluster, or of this pod's; none if access is denied, or it does not answer."""
    kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not kubeconfig.is_file() and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return []
    try:
        from kubernetes import client, config
    except ImportError:
        return []
    try:
        config.load_kube_config() if kubeconfig.is_file() else config.load_incluster_config()
        api = client.CoreV1Api()
        found = api.list_node(_request_timeout=SECONDS)
        return [Node.from_manifest(each) for each in api.api_client.sanitize_for_serialization(found)["items"]]
    except Exception as error:  # a warning must not keep a run from starting, whatever the cluster says
        log.debug("nodes are not known: %s", error)
        return []
