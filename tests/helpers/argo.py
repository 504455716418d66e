"""How Argo tries a step again: its arithmetic of retries, deadlines and lost pods, in seconds.

Each rule has its source: Argo Workflows 4.0.5 (`workflow/controller`; 3.7, of KFP 2.15 and 2.16, has the same),
Kubeflow Pipelines 2.17.0 (`backend/src/v2`), Kueue 0.19 and the API of Kubernetes 1.32.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

Phase = Literal["Succeeded", "Failed", "Error"]
Policy = Literal["OnFailure", "OnError", "Always"]


@dataclass(frozen=True)
class Strategy:
    """The `retryStrategy` that a step has in the end, and the time limit of its pod."""

    limit: int
    policy: Policy
    wait: float
    factor: float
    longest: float
    pod_deadline: float
    refused: str = ""  # what a try's message has in it after which there is none; empty: every try counts


@dataclass(frozen=True)
class End:
    """How a try ends before its work is done: after how many seconds of running, and in which phase.

    A pod that ends is Failed where its status says so: its program failed, the kubelet evicted it or ended it for its
    time limit (operator.go, `inferFailedReason`). A pod that is gone before the controller has seen its end is in
    Error (`podReconciliation`, "pod deleted").
    """

    after: float
    phase: Phase
    message: str = ""


@dataclass(frozen=True)
class Run:
    """What became of a step: its phase, the tries, the seconds from the first pod's making to the end, and those of
    work that were done twice."""

    phase: Phase
    tries: int
    seconds: float
    again: float
    why: str = ""


def strategy(retry: Mapping[str, Any], deadline: float, defaults: Mapping[str, Any]) -> Strategy:
    """The strategy of a compiled step, whose `retryPolicy` this is, under the controller's defaults of templates.

    KFP writes limit, duration, factor and longest duration, and no policy (`argocompiler/container.go`,
    `getTaskRetryStrategyFromInput`). What is not written comes from the defaults (operator.go,
    `mergedTemplateDefaultsInto`), else the policy is OnFailure (workflow_types.go, `RetryPolicyActual`).
    """
    said = re.fullmatch(r"!\(lastRetry\.message contains '(.+)'\)", defaults.get("expression", ""))
    return Strategy(
        limit=int(retry["maxRetryCount"]),
        policy=defaults.get("retryPolicy", "OnFailure"),
        wait=_seconds(retry["backoffDuration"]),
        factor=retry["backoffFactor"],
        longest=_seconds(retry["backoffMaxDuration"]),
        pod_deadline=deadline,
        refused=said[1] if said else "",
    )


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def run(step: Strategy, work: float, queue: float, end: Callable[[int], End | None], lost: float = inf) -> Run:
    """Runs a step of so many seconds of work, each try of which waits in the queue, and ends as `end` says of it.

    A try goes on from what the one before it kept, which is all but the last `lost` seconds of it.
    """
    tries, now, done, again = 0, 0.0, 0.0, 0.0
    execution_deadline = inf
    while True:
        tries += 1
        # The pod waits with a scheduling gate (Kueue), and its time limit runs from its start on a node (Kubernetes,
        # `activeDeadlineSeconds`: "relative to StartTime"; KFP sets that of the pod, driver/k8s.go).
        started = now + queue
        ends = [End(step.pod_deadline, "Failed"), End(work - done, "Succeeded")]
        # Of a try after the first the container is killed when the longest duration is over (operator.go sets
        # `executionDeadline`; executor.go, `monitorDeadline`).
        ends.append(End(max(execution_deadline - started, 0), "Failed"))
        ends += [early] if (early := end(tries)) else []
        last = min(ends, key=lambda each: each.after)
        now = started + last.after
        if last.phase == "Succeeded":
            return Run("Succeeded", tries, now, again)
        kept = max(last.after - lost, 0)
        done, again = done + kept, again + last.after - kept
        # processNodeRetries, in its order. The first try's node was made at 0, before its pod waited.
        if now > step.longest:
            return Run(last.phase, tries, now, again, "Max duration limit exceeded")
        wait = step.wait * step.factor ** (tries - 1)
        if now + wait > step.longest:
            return Run(last.phase, tries, now, again, "Backoff would exceed max duration limit")
        if last.phase not in {"OnFailure": ("Failed",), "OnError": ("Error",)}.get(step.policy, ("Failed", "Error")):
            return Run(last.phase, tries, now, again, "Node not set to be retried")
        if tries > step.limit:
            return Run(last.phase, tries, now, again, "No more retries left")
        # `buildRetryStrategyLocalScope`: the message of the pod's node, `inferFailedReason`.
        if step.refused and step.refused in last.message:
            return Run(last.phase, tries, now, again, "retryStrategy.expression evaluated to false")
        now, execution_deadline = now + wait, step.longest
