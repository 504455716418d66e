"""Tells how far the steps of a run are, and why one waits or failed, from Argo's record of the run."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from posgap.kubeflow.workflow import DRIVER, name_of, nodes_of, reason_of
from posgap.pipelines.compilation import CompiledYaml
from posgap.pipelines.resources import Resources, resources
from posgap.pipelines.steps import UNKNOWN, task_names, tree

# Argo's message on a pod that is merely starting.
_STARTING = re.compile(r"^(PodInitializing|ContainerCreating)?$|^(PodInitializing|ContainerCreating):")
# Argo says nothing of a pod that Kueue holds back; of one that has a node it soon does.
_SILENCE = timedelta(seconds=30)
_HELD = "its pod has no node yet; is its queue full? (kubectl get workloads)"


@dataclass(frozen=True)
class State:
    """A step's progress: `waits`, `runs`, `done`, `failed` or `cached`, the reason, the try, and for how long."""

    step: str
    what: str
    why: str = ""
    tries: int = 1
    seconds: float = 0.0


class Task(NamedTuple):
    """A task, or a task's driver, by the id of the node that it belongs to and its name in the pipeline."""

    group: str
    name: str


class Progress:
    """The steps of a run of a compiled pipeline, from one look at its workflow to the next."""

    def __init__(self, compiled: CompiledYaml, arguments: Mapping[str, Any]):
        self.names = task_names(compiled)
        self.asks = {step.name: resources(step) for step in tree(compiled, arguments).steps()}
        self.told: dict[Task, State] = {}
        self.before: dict[Task, State] = {}

    def news(self, workflow: Mapping[str, Any]) -> Iterator[str]:
        """Yields a line for each step that began, ended, or waits since two looks for the same reason."""
        for key, state in self.states(workflow).items():
            is_new = state.what != "waits" or self.before.get(key) == state
            self.before[key] = state
            last = self.told.get(key)
            if is_new and (last is None or (last.what, last.why, last.tries) != (state.what, state.why, state.tries)):
                self.told[key] = state
                yield self._line(state)

    def failures(self, workflow: Mapping[str, Any]) -> dict[str, str]:
        """Returns why each step failed that did, by its name."""
        return {each.step: each.why for each in self.states(workflow).values() if each.what == "failed"}

    def states(self, workflow: Mapping[str, Any]) -> dict[Task, State]:
        """Returns the progress of each step with a pod, or a driver's pod, in Argo."""
        nodes = nodes_of(workflow)
        pods: dict[Task, list[dict[str, Any]]] = {}
        found: dict[Task, State] = {}
        for node in sorted(nodes.values(), key=lambda each: str(each.get("startedAt") or "")):
            task = self._task_of(node, nodes)
            if task and node["type"] == "Pod":
                pods.setdefault(task, []).append(node)
            elif task and node["type"] == "Skipped" and task.name != name_of(node):
                found[task] = State(self.names[task.name], "cached")
        for task, tries in pods.items():
            state = _state_of(self.names[task.name.removesuffix(DRIVER)], tries)
            if state and (not task.name.endswith(DRIVER) or state.what in ("waits", "failed")):
                found[task] = state
        return found

    def _task_of(self, node: Mapping[str, Any], nodes: Mapping[str, dict[str, Any]]) -> Task | None:
        """Returns the task that a node belongs to, if it belongs to one."""
        at: Mapping[str, Any] | None = node
        while at is not None:
            name = name_of(at)
            if name.removesuffix(DRIVER) in self.names:
                return Task(at.get("boundaryID", ""), name)
            at = nodes.get(at.get("boundaryID", ""))
        return None

    def _line(self, state: State) -> str:
        again = f", try {state.tries}" if state.tries > 1 else ""
        match state.what:
            case "runs":
                return f"{state.step} begins{again}"
            case "done":
                return f"{state.step} is done after {state.seconds:.0f} s"
            case "cached":
                return f"{state.step} is taken from the cache"
            case "failed":
                return f"{state.step} failed{again}: {state.why}"
        asked = self.asks.get(state.step)
        return f"{state.step} waits: {state.why}{f'; it asks for {describe_request(asked)}' if asked else ''}"


def _state_of(step: str, pods: list[dict[str, Any]]) -> State | None:
    """Returns the progress of a step's last try; None for a pod that is starting."""
    last = pods[-1]
    phase = pods[-1]["phase"]
    why = last.get("message") or ""
    began = _time(last, "startedAt")
    ended = _time(last, "finishedAt")
    if phase == "Pending":
        if not why and began and datetime.now(UTC) - began > _SILENCE:
            why = _HELD
        return None if _STARTING.search(why) else State(step, "waits", reason_of(why), len(pods))
    if phase == "Running":
        return State(step, "runs", tries=len(pods))
    if phase in ("Failed", "Error"):
        return State(step, "failed", reason_of(why) or phase.lower(), len(pods))
    seconds = (ended - began).total_seconds() if began and ended else 0.0
    return State(step, "done", tries=len(pods), seconds=seconds)


def _time(node: Mapping[str, Any], name: str) -> datetime | None:
    return datetime.fromisoformat(node[name]) if node.get(name) else None


def describe_request(asked: Resources) -> str:
    """Returns in words what a step requests of its node."""
    amounts = [f"{asked.cpu} CPUs", asked.memory, *([f"{asked.accelerators} GPUs"] if asked.accelerators else [])]
    pool = ", ".join(f"{name}={value}" for name, value in asked.pool.items())
    words = ", ".join(each for each in amounts if UNKNOWN not in each and each.strip() not in ("", "CPUs"))
    return f"{words} on nodes with {pool}" if pool else words
