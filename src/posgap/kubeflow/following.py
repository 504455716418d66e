"""Runs a TrainJob: creates it, or joins one that is running already, follows it to its end and deletes it."""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from posgap.foundation.errors import NoServer, PosgapError, ProcessFailure, Refused, TerminationSignal
from posgap.foundation.heavy_types import TrainerClient, TrainJob
from posgap.foundation.interruption import Termination, deferred_termination
from posgap.foundation.printing import Lines, is_quiet, join_lines, printable
from posgap.kubeflow.reasons import JobInCluster, Reason, Worker, best_reason
from posgap.kubeflow.train_jobs import Job, create

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0  # between two polls
SILENCE_SECONDS = 300.0  # how long a cluster that does not answer is waited for
COMPLETE, FAILED = "Complete", "Failed"
PENDING = "Pending"  # of a worker's pod
Create = Callable[["TrainerClient", Job], None]
NODE = "node-0"
AGAIN_SECONDS = 2.0
LAST_SECONDS = 20.0  # how long to wait for a log's last lines
END_LINES = 20
QUEUE_SECONDS = 15.0  # between two looks at why no worker runs


def run_job(client: TrainerClient, job: Job, create: Create = create) -> None:
    """Runs the job to its end and deletes it. If a job of its name is running already, that one is followed instead.

    The output of node 0 is printed here, and until a worker runs, what it waits for. Raises `PosgapError`
    with the best explanation of a failure, if the job is not done in time, or if somebody deletes it, and
    `TerminationSignal` after SIGTERM. If the cluster no longer answers, this gives up but the job continues; the next
    call joins it.
    """
    with deferred_termination() as termination:
        cluster = _Cluster(client, termination)
        in_cluster = JobInCluster(client, job.name)
        try:
            ended = _attempt(cluster, in_cluster, job, create)
            why = why_it_failed(client, ended, in_cluster) if ended.status == FAILED else None
            waits = "" if ended.status in (COMPLETE, FAILED) else _waits_for(ended, in_cluster)
        except KeyboardInterrupt:
            cluster.delete(job.name)
            raise
        cluster.delete(job.name)
    if why:
        error = PosgapError if why.is_refusal else ProcessFailure
        raise error(f"TrainJob {job.name} failed. {why}")
    if ended.status != COMPLETE:
        why_not = waits or "It was running: give it a longer --timeout, and it resumes from its checkpoint"
        raise ProcessFailure(f"TrainJob {job.name} was not done after {job.seconds} s, and is deleted. {why_not}")


class _Cluster:
    """The TrainJob client, with retries."""

    def __init__(self, client: TrainerClient, termination: Termination):
        self.client = client
        self.termination = termination
        self.answered = 0.0

    def get_state(self, name: str) -> TrainJob | None:
        """Returns the job's present state, or None if there is no such job; retries while the cluster does not
        answer."""
        while True:
            try:
                job = self.client.get_job(name)
            except (RuntimeError, TimeoutError, ValueError) as error:
                if _status(error) == 404:
                    job = None
                elif time.monotonic() - self.answered > SILENCE_SECONDS:
                    raise NoServer(f"TrainJob {name}: {_server_message(error)}") from None
                else:
                    self.wait_for_poll()
                    continue
            self.answered = time.monotonic()
            return job

    def wait_for_poll(self) -> None:
        """Sleeps between two polls; raises `TerminationSignal` after SIGTERM."""
        if self.termination.requested:
            raise TerminationSignal("stopped by SIGTERM, and the TrainJob deleted")
        time.sleep(LOOK_SECONDS)

    def delete(self, name: str) -> None:
        """Deletes the job if it exists; if that fails, a warning says how to delete it by hand."""
        try:
            self.client.delete_job(name)
        except (RuntimeError, TimeoutError, ValueError) as error:
            if _status(error) != 404:
                message = _server_message(error)
                log.warning(
                    "TrainJob %s could not be deleted: %s; delete it by kubectl delete trainjob %s",
                    name,
                    message,
                    name,
                )


def _attempt(cluster: _Cluster, in_cluster: JobInCluster, job: Job, create: Create) -> TrainJob:
    """Creates or joins the job, and follows it to its end."""
    _start(cluster, in_cluster, job, create)
    deadline = time.monotonic() + job.seconds
    told, look_at = "", time.monotonic() + QUEUE_SECONDS  # most jobs are admitted by then
    with print_log(cluster.client, job.name):
        state = cluster.get_state(job.name)
        while state and state.status not in (COMPLETE, FAILED) and time.monotonic() <= deadline:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + QUEUE_SECONDS
                waits = _waits_for(state, in_cluster)
                if waits and waits != told:
                    log.info("TrainJob %s waits: %s", job.name, waits)
                told = waits or told
            cluster.wait_for_poll()
            state = cluster.get_state(job.name)
    if not state:
        raise PosgapError(f"TrainJob {job.name} was deleted by somebody else; the same command goes on")
    return state


def _waits_for(state: TrainJob, in_cluster: JobInCluster) -> str:
    """Returns why no worker has started: Kueue's words, or Kubernetes' newest warning; empty if one has."""
    if any(step.status != PENDING for step in state.steps):
        return ""
    return in_cluster.queue_words() or "".join(in_cluster.events()[-1:])


def _start(cluster: _Cluster, in_cluster: JobInCluster, job: Job, create: Create) -> None:
    """Makes sure that the job exists.

    If an earlier one failed, or is being deleted, it and all its pods must be gone before another of its name is made:
    they would be taken for the new one's.
    """
    cluster.answered = time.monotonic() - SILENCE_SECONDS  # do not wait for a cluster that has never answered
    state = cluster.get_state(job.name)
    if state and state.status == FAILED:
        cluster.delete(job.name)
    elif state and not in_cluster.is_being_deleted():
        log.info("TrainJob %s is running already; joining it", job.name)
        return
    if state or in_cluster.pods():
        log.info("TrainJob %s of before is being deleted; waiting until its pods are gone", job.name)
        while cluster.get_state(job.name) or in_cluster.pods():
            cluster.wait_for_poll()
    try:
        create(cluster.client, job)
        log.info("TrainJob %s: created, with %d nodes", job.name, job.nodes)
    except (RuntimeError, TimeoutError) as error:
        if _status(error) != 409:  # else another process has just made it
            raise _creation_error(job, error) from None


def _creation_error(job: Job, error: Exception) -> PosgapError:
    kind = Refused if 400 <= _status(error) < 500 else NoServer
    said = _server_message(error)
    if _status(error) == 403 and "trainingruntimes" in said:
        said = f"there is no runtime {job.runtime}, or this account may not read it; see --runtime"
    return kind(f"TrainJob {job.name} cannot be created: {said}")


def _status(error: Exception) -> int:
    """The HTTP status behind an exception of the SDK, or 0; its local backend raises `ValueError` instead of 404."""
    return 404 if isinstance(error, ValueError) else getattr(error.__cause__, "status", None) or 0


def _server_message(error: Exception) -> str:
    """The server's message, or the reason why there is none, in one line."""
    try:
        return json.loads(getattr(error.__cause__, "body", ""))["message"]
    except (TypeError, ValueError, KeyError):
        return f"{error} ({error.__cause__})".splitlines()[0]


@contextmanager
def print_log(client: TrainerClient, job: str) -> Iterator[None]:
    """Within the block, the output of node 0 is printed to stderr as it arrives."""
    over = threading.Event()
    thread = threading.Thread(target=_print, args=(client, job, over), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        over.set()  # without waiting: a process that is being stopped has only seconds left
        raise
    over.set()
    thread.join(LAST_SECONDS)


def _print(client: TrainerClient, job: str, over: threading.Event) -> None:
    """Follows the log, reconnects if the connection breaks, and prints no line of a pod twice."""
    pod, shown = "", 0
    while True:
        last = over.is_set()
        try:
            now = next((step.pod_name for step in client.get_job(job).steps if step.name == NODE), "")
            pod, shown = now, shown if now == pod else 0
            for number, line in enumerate(client.get_job_logs(job, follow=not last), start=1):
                if number > shown:
                    if not is_quiet():
                        print(f"{NODE} | {printable(line)}", file=sys.stderr, flush=True)
                    shown = number
        except (RuntimeError, TimeoutError, ValueError) as error:
            log.debug("log of %s: %s", job, error)
        if last:
            return
        over.wait(AGAIN_SECONDS)


def why_it_failed(client: TrainerClient, job: TrainJob, in_cluster: JobInCluster) -> Reason:
    """Logs the end of each failed worker's log, and returns what best explains the failure.

    It reads pods, conditions and events, which are gone as soon as the job is deleted.
    """
    workers = []
    there = []
    pods = in_cluster.pods()
    for pod in pods:
        worker = Worker.from_pod(pod)
        there.append(worker.name)
        if pod.status.phase == "Failed" or pod.status.reason or worker.exit_code:
            workers.append(replace(worker, log=_log_of(client, job.name, worker.name)))
    if not pods:
        failed = [step.name for step in job.steps if step.status == "Failed"]
        workers = [Worker(name, log=_log_of(client, job.name, name)) for name in failed]
    for worker in workers:
        end = join_lines(f"  {worker.name} | {line}" for line in worker.lines[-END_LINES:])
        if end:
            log.error("the end of the log of %s:\n%s", worker.name, Lines(end))
    expected = [f"node-{index}" for index in range(job.num_nodes)] if pods else []
    gone = [name for name in expected if name not in there]
    return best_reason(workers, gone, in_cluster.conditions(), in_cluster.events())


def _log_of(client: TrainerClient, job: str, worker: str) -> str:
    try:
        return "\n".join(line.rstrip() for line in client.get_job_logs(job, step=worker))
    except (RuntimeError, TimeoutError) as error:
        log.warning("log of %s: %s", worker, error)
        return ""
