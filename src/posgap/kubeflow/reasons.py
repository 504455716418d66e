"""Collects the reports of Kubernetes, Kueue and torchrun on a TrainJob's workers, and finds the best explanation of a
failure.

A worker's log is not enough: a killed worker wrote nothing, and its peers wrote only that the connection closed.
"""

import logging
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from posgap.foundation.heavy_types import TrainerClient
from posgap.foundation.launch import LOST_PEER
from posgap.foundation.termination import FAILED, REFUSED

log = logging.getLogger(__name__)
SECONDS = 10.0  # to wait for an answer
JOB_NAME, WORKER = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"
_ERROR = "posgap: error: "
# The line at which torchrun's own report of a failed process begins: it is long and does not contain the cause.
_LAUNCHER = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py.*(closing signal|failed \(exitcode)")
_REPORTED = re.compile(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*(-?\d+)")
# A container's reasons that only say that its program failed.
_PLAIN = ("", "Error", "Completed")


@dataclass(frozen=True)
class Reason:
    """A sentence on why a worker ended, and how well that explains the others' end: the lowest `rank` does best."""

    rank: int
    worker: str
    words: str
    is_refusal: bool = False

    def __str__(self) -> str:
        return f"{self.worker}: {self.words}" if self.worker else self.words


@dataclass(frozen=True)
class Worker:
    """How a worker ended: why by Kubernetes, its container's exit code and termination message, and its log."""

    name: str
    reason: str = ""
    exit_code: int | None = None
    message: str = ""
    memory: str = ""
    log: str = ""

    @classmethod
    def from_pod(cls, pod: Any) -> "Worker":
        """Returns the worker of a pod, without its log."""
        labels = pod.metadata.labels or {}
        status = pod.status
        ended = [each.state.terminated for each in status.container_statuses or () if each.state]
        failed = next((each for each in ended if each and each.exit_code), None)
        limits = (pod.spec.containers[0].resources.limits if pod.spec.containers[0].resources else None) or {}
        reason = status.reason or (failed.reason if failed else "") or ""
        message = (failed.message if failed else "") or status.message or ""
        name = f"{labels.get(WORKER, 'node')}-{labels.get(INDEX, 0)}"
        return cls(name, reason, failed.exit_code if failed else None, message, str(limits.get("memory", "")))

    @property
    def lines(self) -> list[str]:
        """The lines of the log without the launcher's report."""
        lines = [line.rstrip() for line in self.log.splitlines()]
        report = next((i for i, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
        return [line for line in lines[:report] if line]

    def reasons(self) -> Iterator[Reason]:
        """Yields what may explain the worker's end."""
        message = " ".join(self.message.split())
        for mark in (REFUSED, FAILED):
            if message.startswith(mark):
                words = message.removeprefix(mark)
                is_of_peer = bool(LOST_PEER.search(words))
                yield Reason(5 if is_of_peer else 0, self.name, words, mark == REFUSED and not is_of_peer)
        for line in self.lines:
            if _ERROR in line:
                words = line.partition(_ERROR)[2]
                is_of_peer = bool(LOST_PEER.search(words))
                is_refusal = not (is_of_peer or message or words.startswith("internal error"))
                yield Reason(5 if is_of_peer else 1, self.name, words, is_refusal)
                break
        if self.reason not in _PLAIN:
            room = f": it may use {self.memory} of memory" if self.reason == "OOMKilled" and self.memory else ""
            said = f": {message}" if message and not message.startswith((REFUSED, FAILED)) else ""
            yield Reason(2, self.name, f"{self.reason}{_exit(self.exit_code)}{room}{said}")
        for number, code in _REPORTED.findall(self.log):
            if int(code) < 0 and -int(code) != signal.SIGTERM:
                yield Reason(3, self.name, f"rank {number} was killed by {_signal(-int(code))}")
        if self.lines and (self.exit_code or not message):
            yield Reason(6 if LOST_PEER.search(self.lines[-1]) else 4, self.name, self.lines[-1])
        if self.exit_code:
            yield Reason(7, self.name, f"ended{_exit(self.exit_code)}")


def _exit(code: int | None) -> str:
    return f" (exit code {code})" if code else ""


def _signal(number: int) -> str:
    hint = ", out of memory perhaps" if number == signal.SIGKILL else ""
    with suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name}{hint})"
    return f"signal {number}"


class JobInCluster:
    """Reads what the cluster holds of a TrainJob. A client without a cluster (the SDK's local one) has nothing."""

    def __init__(self, client: TrainerClient, name: str):
        backend: Any = getattr(client, "backend", None)
        self.core = getattr(backend, "core_api", None)
        self.custom = getattr(backend, "custom_api", None)
        self.namespace = getattr(backend, "namespace", "")
        self.name = name
        self.unreadable = set[str]()  # which was said already

    def pods(self) -> list[Any]:
        """The pods of the job, also those that are still ending."""
        if self.core is None:
            return []
        return self._items("pods", self.core.list_namespaced_pod, label_selector=f"{JOB_NAME}={self.name}")

    def is_being_deleted(self) -> bool:
        """Returns whether the job exists and is being deleted."""
        return bool(self._job().get("metadata", {}).get("deletionTimestamp"))

    def conditions(self) -> dict[str, str]:
        """The messages of the job's conditions that hold, by their kind."""
        held = [each for each in self._job().get("status", {}).get("conditions", ()) if each["status"] == "True"]
        return {each["type"]: each.get("message") or each.get("reason", "") for each in held}

    def events(self) -> list[str]:
        """Returns the warnings of the job and its parts, oldest first, each once, without those of an earlier job of
        its name."""
        if self.core is None:
            return []
        own = []
        begun = self._job().get("metadata", {}).get("creationTimestamp", "")
        for event in self._items("events", self.core.list_namespaced_event, field_selector="type=Warning"):
            name = (event.involved_object and event.involved_object.name) or ""
            if name.startswith(self.name) and _time_of(event) >= begun:
                own.append(event)
        own.sort(key=_time_of)
        return list(dict.fromkeys(f"{each.reason}: {' '.join((each.message or '').split())}" for each in own))

    def queue_words(self) -> str:
        """Returns why Kueue has not admitted the job, in its own words; empty if it has, or if there is no Kueue."""
        if self.custom is None:
            return ""
        place = ("kueue.x-k8s.io", "v1beta2", self.namespace, "workloads")
        workloads = self._read("workloads", self.custom.list_namespaced_custom_object, *place) or {}
        for workload in workloads.get("items", ()):
            owners = workload["metadata"].get("ownerReferences", ())
            if any(each["kind"] == "TrainJob" and each["name"] == self.name for each in owners):
                return _queue_words(workload.get("status", {}).get("conditions", ()))
        return ""

    def _job(self) -> Mapping[str, Any]:
        if self.custom is None:
            return {}
        place = ("trainer.kubeflow.org", "v1alpha1", self.namespace, "trainjobs", self.name)
        return self._read("trainjobs", self.custom.get_namespaced_custom_object, *place) or {}

    def _items(self, what: str, read: Callable[..., Any], **selectors: str) -> list[Any]:
        found = self._read(what, read, self.namespace, **selectors)
        return found.items if found else []

    def _read(self, what: str, read: Callable[..., Any], *place: str, **selectors: str) -> Any:
        """Returns the cluster's answer; None if access is denied, which is logged once, or if no answer comes."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return read(*place, **selectors, _request_timeout=SECONDS)
        except ApiException as error:
            if error.status == 403 and what not in self.unreadable:
                log.warning("%s of %s may not be read here; grant get and list on them", what, self.name)
                self.unreadable.add(what)
        except HTTPError as error:
            log.debug("%s of %s: %s", what, self.name, error)
        return None


def _time_of(event: Any) -> str:
    """When an event last happened, in UTC, as Kubernetes writes it."""
    when = event.last_timestamp or event.event_time or event.first_timestamp
    return f"{when:%Y-%m-%dT%H:%M:%SZ}" if when else ""


def _queue_words(conditions: Sequence[Mapping[str, str]]) -> str:
    """Returns what a workload of Kueue waits for, by its conditions; empty once it is admitted."""
    by_kind = {each["type"]: each for each in conditions}
    if by_kind.get("Admitted", {}).get("status") == "True":
        return ""
    said = [by_kind[kind].get("message", "") for kind in ("QuotaReserved", "Evicted", "Admitted") if kind in by_kind]
    return " ".join(next(filter(None, said), "it waits in the queue").split())


def best_reason(
    failed: Sequence[Worker], gone: Sequence[str], conditions: Mapping[str, str], events: Sequence[str]
) -> Reason:
    """Returns the best explanation of a job's failure, given that some workers failed and others no longer have a pod.
    A worker's own words come before Kubernetes' report on it, then killed ranks, and last messages that only tell of a
    lost peer."""
    found = [reason for worker in failed for reason in worker.reasons()]
    if gone and found:
        found.append(Reason(3, ", ".join(gone), "the pod is gone: it was deleted, or its node was"))
    if found:
        return min(found, key=lambda reason: reason.rank)
    said = list(events[-3:])
    for kind, words in conditions.items():
        if kind != "Suspended" and not any(words in each for each in said):
            said.append(f"{kind}: {words}")
    why = "; ".join(said) or "Kubernetes does not say why"
    return Reason(9, "", f"no worker's pod is left, deleted perhaps, or its node was; {why}")
