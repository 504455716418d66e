"""The steps and groups of steps of a compiled pipeline, with the values that reach them filled in."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from posgap.kubeflow.training_pool import VARIABLE, train_pool
from posgap.pipelines.compilation import CompiledYaml

UNKNOWN = "?"  # a value that will be known only at run time, such as another step's output
_PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\[['\"](.+?)['\"]\]\}\}")


@dataclass(frozen=True)
class Step:
    """One step: its container, its settings for Kubernetes, and its task (caching, retries).

    `unpassed` names inputs that the step uses but nothing passes to it: KFP compiles such a step, but its run fails.
    """

    name: str
    container: dict[str, Any]
    settings: dict[str, Any]
    task: dict[str, Any]
    unpassed: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Steps and groups by task name, in a possible order of running, and the tasks that each depends on.

    `exclusive` says that only one of them runs (if, else). `times` is the number of copies that run at once, or None if
    it is known only at run time (a loop over a step's output).
    """

    members: dict[str, "Step | Group"]
    after: dict[str, list[str]]
    exclusive: bool = False
    times: int | None = 1

    def steps(self) -> list[Step]:
        """Returns all steps, including those of inner groups."""
        steps: list[Step] = []
        for member in self.members.values():
            steps += member.steps() if isinstance(member, Group) else [member]
        return steps


def tree(compiled: CompiledYaml, arguments: Mapping[str, Any]) -> Group:
    """The pipeline as it would run with `arguments`; a parameter without a value or default is `UNKNOWN`."""
    scope = {name: arguments.get(name, spec.get("defaultValue", UNKNOWN)) for name, spec in compiled.parameters.items()}
    return _group(compiled, compiled.spec["root"], scope | _known_outputs(compiled, scope))


def _known_outputs(compiled: CompiledYaml, scope: Mapping[str, Any]) -> dict[str, str]:
    """Returns what `preflight` will say of training's resources, as far as its pool and the number of GPUs are known;
    by step and output, joined with a dot, which no parameter's name contains."""
    container = compiled.executors.get("exec-preflight", {}).get("container", {})
    environment = {each["name"]: each["value"] for each in container.get("env", [])}
    pool = train_pool(environment.get(VARIABLE, ""))
    gpus = str(scope.get("gpus_train", ""))
    if pool is None or not gpus.isdecimal():
        return {}
    asked = pool.times(int(gpus))
    return {"preflight.train_cpu": asked.cpu, "preflight.train_memory": asked.memory}


def task_names(compiled: CompiledYaml) -> dict[str, str]:
    """Returns the names of steps in the UI, by the task names that a run reports."""
    components = compiled.spec.get("components", {})
    return {
        key: task["taskInfo"]["name"]
        for dag in compiled.dags()
        for key, task in dag["tasks"].items()
        if "executorLabel" in components[task["componentRef"]["name"]]
    }


def _group(
    compiled: CompiledYaml, component: dict, scope: dict, exclusive: bool = False, times: int | None = 1
) -> Group:
    members: dict[str, Step | Group] = {}
    tasks = component["dag"]["tasks"]
    after = {key: sorted(task.get("dependentTasks", [])) for key, task in tasks.items()}
    for key in TopologicalSorter(after).static_order():
        task = tasks[key]
        inner = compiled.spec["components"][task["componentRef"]["name"]]
        missing: list[str] = []
        defaults = inner.get("inputDefinitions", {}).get("parameters", {})
        passed = _fill_in(task.get("inputs", {}).get("parameters", {}), scope, missing)
        values = {n: d["defaultValue"] for n, d in defaults.items() if "defaultValue" in d} | passed
        if "dag" in inner:
            item = task.get("parameterIterator", {}).get("itemInput")
            values |= {item: UNKNOWN} if item else {}
            values |= {name: scope[name] for name in scope if "." in name}  # outputs, which are known in every group
            branches = task["componentRef"]["name"].startswith("comp-condition-branches")
            members[key] = _group(compiled, inner, values, branches, _times(task, values))
        elif container := compiled.executors[inner["executorLabel"]].get("container"):  # an importer has none
            members[key] = Step(
                name=task["taskInfo"]["name"],
                # A container's placeholders name inputs of its task, Kubernetes settings those of the group.
                container=_fill_in(container, values, missing),
                settings=_fill_in(compiled.settings(inner["executorLabel"]), scope, missing),
                task=task,
                unpassed=tuple(dict.fromkeys(missing)),
            )
    return Group(members, after, exclusive, times)


def _times(task: dict, values: dict) -> int | None:
    if "parameterIterator" not in task and "artifactIterator" not in task:
        return 1
    items = task.get("parameterIterator", {}).get("items", {})
    listed = json.loads(items["raw"]) if "raw" in items else values.get(items.get("inputParameter"))
    length = [len(listed)] if isinstance(listed, list) else []
    limit = task.get("iteratorPolicy", {}).get("parallelismLimit")
    return min([*length, limit] if limit else length, default=None)


def _fill_in(value: Any, scope: dict, missing: list[str]) -> Any:
    """`value` with KFP's references to inputs replaced by their values in `scope`; names not in it go to `missing`."""

    def look_up(name: str) -> Any:
        if name not in scope:
            missing.append(name)
        return scope.get(name, UNKNOWN)

    if isinstance(value, list):
        return [_fill_in(item, scope, missing) for item in value]
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: _as_text(look_up(match[1])), value)
    if not isinstance(value, dict):
        return value
    if value.keys() == {"componentInputParameter"}:
        return look_up(value["componentInputParameter"])
    if value.keys() == {"runtimeValue"}:
        return _fill_in(value["runtimeValue"].get("constant", UNKNOWN), scope, missing)
    if value.keys() == {"taskOutputParameter"}:
        output = value["taskOutputParameter"]
        return scope.get(f"{output['producerTask']}.{output['outputParameterKey']}", UNKNOWN)
    if value.keys() == {"taskFinalStatus"}:
        return UNKNOWN
    return {name: _fill_in(item, scope, missing) for name, item in value.items()}


def _as_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
