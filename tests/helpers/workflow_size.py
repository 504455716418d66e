"""Estimates the Workflow that KFP makes of a compiled pipeline, with the status that Argo keeps of a whole run.

By KFP 2.17's backend/src/v2/compiler/argocompiler and backend/src/v2/driver, and by Argo 4.0.5's
workflow/controller/operator.go and workflow/packer: each step has a driver, which is given component, task, container
and settings as texts and answers with a patch of the pod. Since every template has a retryStrategy, each node of the
status is there twice, as a try and as what tries it, and the patch is an output of one and an input of two. Beyond
1 MiB Argo compresses the nodes, and fails where that is not enough.

KFP's own compiler and driver made of r1 in 1 and 12 parts, r1+mitigate in 4 and r1+r2+sft+mitigate in 2 (27 November
2026, with a step more for each model) 466, 648, 624 and 742 kB, where this said 467, 658, 632 and 762.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from posgap.distillation.methods import MITIGATE
from posgap.kubeflow.form import candidates, has_on_top, settings
from posgap.options.preflight import PreflightConfig
from posgap.pipelines.compilation import CompiledYaml

FRAME = {  # what Argo notes of every node
    "type": "Retry",
    "phase": "Succeeded",
    "boundaryID": "posgap-mitigation-x7k2p-1234567890",
    "startedAt": "2026-11-27T20:00:00Z",
    "finishedAt": "2026-11-27T20:30:00Z",
    "progress": "1/1",
    "resourcesDuration": {"cpu": 12, "memory": 345},
    "templateScope": "local/posgap-mitigation-x7k2p",
    "children": ["posgap-mitigation-x7k2p-1234567890"],
    "hostNodeName": "ip-10-0-12-34.us-east-1.compute.internal",
}
PLACEHOLDERS = 1_000  # bytes of what is about a task in its template: the arguments of its driver, what it waits for
SYSTEM_TEMPLATES = 16_000  # bytes of the templates that every Workflow of KFP has: drivers, importer, executors


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def artifact(path: str, name: str) -> dict:
    """An artifact as the driver names it to the launcher: of random identity, so that no two compress into one."""
    noise = hashlib.sha512(f"{path} {name}".encode()).hexdigest()
    return {
        "name": f"projects/0/locations/0/metadataStores/default/artifacts/{int(noise[:4], 16)}",
        "uri": f"s3://posgap/kfp/posgap-mitigation/{noise[:36]}/{path.rsplit('.', 1)[-1]}/{noise[36:72]}/{name}",
        "type": {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"},
        "metadata": {"stage": "sweep", "seed": 0, "posgap": "0.1.0", "mlflow_run_id": noise[72:104]},
    }


class Status:
    """The nodes of a run, by the values of the parameters that its loops and branches go by."""

    def __init__(self, compiled: CompiledYaml, form: PreflightConfig):
        self.compiled, self.settings = compiled, settings(form)
        made = candidates(form.methods)
        self.parts, self.trained = form.shards, [name for name in made if name != MITIGATE.name]
        self.taken = {"mitigated": self.trained != made, "layered": has_on_top(form.methods)}
        self.nodes: dict[str, dict] = {}
        self.add_group("root", compiled.spec["root"])

    def add(self, name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        """Adds a node, and the one that tries it again."""
        for suffix in ("", "(0)"):
            whole = f"posgap-mitigation-x7k2p.{name}{suffix}"
            node = {"name": whole, "displayName": whole.rsplit(".", 1)[-1], "templateName": whole.rsplit(".", 1)[-1]}
            identity = f"posgap-mitigation-x7k2p-{int(hashlib.sha256(whole.encode()).hexdigest()[:8], 16)}"
            for kind, values in (("inputs", inputs), ("outputs", outputs)):
                node |= {kind: {"parameters": [{"name": each, "value": value} for each, value in values.items()]}}
            self.nodes[identity] = FRAME | node | {"id": identity}

    def add_group(self, path: str, component: dict) -> None:
        """Adds the nodes of a group's tasks, those of a loop as often as it goes round."""
        for key, task in component["dag"]["tasks"].items():
            inner = self.compiled.spec["components"][task["componentRef"]["name"]]
            if "dag" not in inner:
                self.add_step(f"{path}.{key}", task, inner)
                continue
            items = task.get("parameterIterator", {}).get("items", {}).get("inputParameter", "")
            rounds = len(self.trained) if "trained" in items else self.parts if "parts" in items else 1
            given = {"component": as_json(inner), "task": as_json(task), "parent-dag-id": "12345", "task-name": key}
            if items:
                self.add(f"{path}.{key}.iteration-driver", given, {"execution-id": "12345"})
            for number in range(rounds):
                place = f"{path}.{key}.{number}" if items else f"{path}.{key}"
                self.add(f"{place}-driver", given, {"execution-id": "12345", "condition": "true"})
                if self.is_taken(task):
                    self.add(place, {"parent-dag-id": "12345"}, {})
                    self.add_group(place, inner)

    def is_taken(self, task: dict) -> bool:
        """Whether a branch is taken; one that asks a gate, or whether there is something to do, always is."""
        condition = task.get("triggerPolicy", {}).get("condition", "")
        return all(taken for name, taken in self.taken.items() if name in condition)

    def add_step(self, path: str, task: dict, component: dict) -> None:
        executor = self.compiled.executors[component["executorLabel"]]
        given = {"component": as_json(component), "task": as_json(task), "parent-dag-id": "12345"}
        if "importer" in executor:
            self.add(path, given | {"importer": as_json(executor["importer"])}, {})
            return
        container = as_json(executor["container"])
        kubernetes = as_json(self.compiled.settings(component["executorLabel"]))
        patch = as_json({"containers": [self.container(path, component, executor["container"])]}) + kubernetes
        driver = given | {"container": container, "kubernetes-config": kubernetes, "task-name": "sweep"}
        self.add(f"{path}-driver", driver, {"pod-spec-patch": patch, "cached-decision": "false", "condition": "true"})
        for name in (path, f"{path}.executor"):
            self.add(name, {"pod-spec-patch": patch, "cached-decision": "false"}, {})

    def container(self, path: str, component: dict, container: dict) -> dict:
        """The step's container as its driver patches the pod: the launcher, with all that the step is given."""
        inputs, outputs = component.get("inputDefinitions", {}), component.get("outputDefinitions", {})
        stage = component["executorLabel"].removeprefix("exec-").rsplit("-", 1)[0].replace("-", "_")
        values = {name: spec.get("defaultValue", "x" * 40) for name, spec in inputs.get("parameters", {}).items()}
        if "settings" in values:
            values["settings"] = self.settings.get(stage, {})
        read = {name: [artifact(path, name)] for name in inputs.get("artifacts", {})}
        made = {name: [artifact(path, name)] for name in outputs.get("artifacts", {})}
        given, made = {"parameterValues": values, "artifacts": read}, {"artifacts": made, "outputFile": "/gcs/out.json"}
        launcher = ["--executor_input", as_json({"inputs": given, "outputs": made})]
        launcher += ["--component_spec", as_json(component), "--mlmd_server_address", "metadata-grpc-service.kubeflow"]
        return {"command": launcher + container["command"], "args": container["args"], "env": container.get("env", [])}


def sizes_of(compiled: CompiledYaml, form: PreflightConfig) -> tuple[int, int]:
    """The bytes of the Workflow at the end of the run, and those that Argo needs where it compresses the nodes."""
    texts = {as_json(component) for component in compiled.spec["components"].values()}
    settings_of = set()  # with the executor whose they are
    for label, executor in compiled.executors.items():
        texts.add(as_json(executor))  # each is there once, under a digest
        settings_of.add((as_json(executor), as_json(compiled.settings(label))))
    tasks = []
    for dag in compiled.dags():
        for task in dag["tasks"].values():
            tasks += [as_json(as_json(task))] * (2 if "parameterIterator" in task else 1)
    texts_size = sum(len(as_json(text)) + 120 for text in [*texts, *(settings for _, settings in settings_of)])
    spec = texts_size + sum(len(task) + PLACEHOLDERS for task in tasks) + SYSTEM_TEMPLATES
    nodes = as_json(dict(sorted(Status(compiled, form).nodes.items())))  # as Go writes a map
    packed = base64.b64encode(gzip.compress(nodes.encode(), 6))
    return spec + len(nodes), spec + len(packed)
