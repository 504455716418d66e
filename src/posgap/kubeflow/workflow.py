"""Argo's record of a pipeline run: its nodes, why one failed or waits, and whether a person ended the run."""

import base64
import gzip
import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from posgap.foundation.errors import shorten
from posgap.foundation.termination import FAILED, REFUSED

log = logging.getLogger(__name__)
SECONDS = 10.0  # to wait for Kubernetes' answer
DRIVER = "-driver"  # ends the name of the node of a task's driver
_TRY = re.compile(r"(\(\d+\))+$")
_OF_CONTAINER = re.compile(r"^(main|wait|init): \S+ \(exit code \d+\)(: )?")


def nodes_of(workflow: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the nodes of a workflow by id; of a large one Argo keeps them compressed."""
    status = workflow.get("status", {})
    packed = status.get("compressedNodes")
    return json.loads(gzip.decompress(base64.b64decode(packed))) if packed else status.get("nodes") or {}


def name_of(node: Mapping[str, Any]) -> str:
    """Returns a node's name without the numbers that Argo adds for its tries. KFP's Argo retries each template, so
    nodes of all kinds have them."""
    return _TRY.sub("", node["displayName"])


def reason_of(message: str) -> str:
    """Returns why a step's pod failed or waits, by Argo's message: posgap's own words, if it left any."""
    words = " ".join(message.split())
    for mark in (REFUSED, FAILED):
        if mark in words:
            return words.partition(mark)[2]
    return shorten(_OF_CONTAINER.sub("", words).removeprefix("Unschedulable: ").rstrip(".") or words)


def failed_tasks(workflow: Mapping[str, Any]) -> dict[str, str]:
    """Returns why each task's last pod failed, by the task's name in the pipeline."""
    nodes = nodes_of(workflow)
    last = dict[str, dict[str, Any]]()
    for node in sorted(nodes.values(), key=lambda each: str(each.get("startedAt") or "")):
        if node["type"] == "Pod":
            # A step's pod is called `executor` within its task; an importer's, or a driver's, has the task's name.
            is_inner = name_of(node) == "executor" and node.get("boundaryID") in nodes
            task = name_of(nodes[node["boundaryID"]] if is_inner else node)
            last[task.removesuffix(DRIVER)] = node
    failed = {task: pod for task, pod in last.items() if pod["phase"] in ("Failed", "Error")}
    return {task: reason_of(pod.get("message") or "") or pod["phase"].lower() for task, pod in failed.items()}


def is_ended_by_hand(workflow: Mapping[str, Any]) -> bool:
    """Whether a person ended the run: KFP then gives its workflow no more seconds, and Argo's own command a word."""
    spec = workflow.get("spec", {})
    return spec.get("activeDeadlineSeconds") == 0 or bool(spec.get("shutdown"))


def read_workflow(run: str) -> dict[str, Any]:
    """Returns the workflow of a KFP run, for a step of it; an empty one elsewhere, or if it may not be read."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ or not run:
        return {}
    try:
        from kubernetes import client, config

        config.load_incluster_config()
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
            place = ("argoproj.io", "v1alpha1", file.read().strip(), "workflows")
        asked = {"label_selector": f"pipeline/runid={run}", "_request_timeout": SECONDS}
        found = client.CustomObjectsApi().list_namespaced_custom_object(*place, **asked)["items"]
    except Exception as error:  # a report without it is better than none
        log.warning("the run's workflow cannot be read: %s", shorten(str(error).splitlines()[0] if str(error) else ""))
        return {}
    return found[0] if found else {}
