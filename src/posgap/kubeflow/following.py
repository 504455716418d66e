"""Runs a TrainJob: creates it, or joins one that is running already, follows it to its end and deletes it."""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from posgap.foundation.errors import PosgapError, TerminationSignal
from posgap.foundation.interruption import Termination, deferred_termination
from posgap.foundation.printing import is_quiet
from posgap.kubeflow.train_jobs import Job, create

if TYPE_CHECKING:
    from kubeflow.trainer import TrainerClient
    from kubeflow.trainer.types.types import TrainJob

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0  # between two polls
SILENCE_SECONDS = 300.0  # how long a cluster that does not answer is waited for
COMPLETE, FAILED = "Complete", "Failed"
Create = Callable[["TrainerClient", Job], None]
NODE = "node-0"
AGAIN_SECONDS = 2.0
LAST_SECONDS = 20.0  # how long to wait for a log's last lines
END_LINES = 20
_ERROR = "posgap: error: "
# The line at which torchrun's own report of a failed process begins: it is long and does not contain the cause.
_LAUNCHER = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py.*(closing signal|failed \(exitcode)")


def run_job(client: "TrainerClient", job: Job, create: Create = create) -> None:
    """Runs the job to its end and deletes it. If a job of its name is running already, that one is followed instead.

    The output of node 0 is printed here. Raises `PosgapError` with the end of a failed worker's log, or if the job is
    not done in time, and `TerminationSignal` after SIGTERM. If the cluster no longer answers, this gives up but the
    job goes on; the next call joins it.
    """
    with deferred_termination() as termination:
        cluster = _Cluster(client, termination)
        try:
            ended = _attempt(cluster, job, create)
            while not ended:
                log.info("TrainJob %s was just being deleted when it was joined; creating it again", job.name)
                ended = _attempt(cluster, job, create)
            why = "" if ended.status == COMPLETE else why_it_failed(client, ended)
        except KeyboardInterrupt:
            cluster.delete(job.name)
            raise
        cluster.delete(job.name)
    if ended.status == FAILED:
        raise PosgapError(f"TrainJob {job.name} failed. {why}")
    if ended.status != COMPLETE:
        raise PosgapError(f"TrainJob {job.name} was not done after {job.seconds} s, and is deleted. {why}")


class _Cluster:
    """The TrainJob client, with retries."""

    def __init__(self, client: "TrainerClient", termination: Termination):
        self.client, self.termination, self.answered = client, termination, 0.0

    def get_state(self, name: str) -> "TrainJob | None":
        """The job's present state, or None if there is no such job; retries while the cluster does not answer."""
        while True:
            try:
                job = self.client.get_job(name)
            except (RuntimeError, TimeoutError, ValueError) as error:
                if _status(error) == 404:
                    job = None
                elif time.monotonic() - self.answered > SILENCE_SECONDS:
                    raise PosgapError(f"TrainJob {name}: {_server_message(error)}") from None
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
        """Deletes the job if it exists; where that fails, a warning says how to delete it by hand."""
        try:
            self.client.delete_job(name)
        except (RuntimeError, TimeoutError, ValueError) as error:
            if _status(error) != 404:
                message = _server_message(error)
                log.warning("TrainJob %s could not be deleted: %s; kubectl delete trainjob %s", name, message, name)


def _attempt(cluster: _Cluster, job: Job, create: Create) -> "TrainJob | None":
    """Creates or joins the job and follows it to its end; returns None if a job that was joined disappeared."""
    created = _start(cluster, job, create)
    deadline = time.monotonic() + job.seconds
    with print_log(cluster.client, job.name):
        state = cluster.get_state(job.name)
        while state and state.status not in (COMPLETE, FAILED) and time.monotonic() <= deadline:
            cluster.wait_for_poll()
            state = cluster.get_state(job.name)
    if created and not state:
        raise PosgapError(f"TrainJob {job.name} was deleted by somebody else; the same command goes on")
    return state


def _start(cluster: _Cluster, job: Job, create: Create) -> bool:
    """Makes sure that the job exists, and returns whether it was created here."""
    cluster.answered = time.monotonic() - SILENCE_SECONDS  # do not wait for a cluster that has never answered
    state = cluster.get_state(job.name)
    if state and state.status == FAILED:
        cluster.delete(job.name)
        while state:
            state = cluster.get_state(job.name)
            if state:
                cluster.wait_for_poll()
    if not state:
        try:
            create(cluster.client, job)
        except (RuntimeError, TimeoutError) as error:
            if _status(error) != 409:
                raise PosgapError(f"TrainJob {job.name} cannot be created: {_server_message(error)}") from None
        else:
            log.info("TrainJob %s: created, with %d nodes", job.name, job.nodes)
            return True
    log.info("TrainJob %s is running already; joining it", job.name)
    return False


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
def print_log(client: "TrainerClient", job: str) -> Iterator[None]:
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


def _print(client: "TrainerClient", job: str, over: threading.Event) -> None:
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
                        print(f"{NODE} | {line}", file=sys.stderr, flush=True)
                    shown = number
        except (RuntimeError, TimeoutError, ValueError) as error:
            log.debug("log of %s: %s", job, error)
        if last:
            return
        over.wait(AGAIN_SECONDS)


def why_it_failed(client: "TrainerClient", job: "TrainJob") -> str:
    """Logs the end of each failed worker's log, and returns the line that best explains the failure.

    That is posgap's own first error line among them, since one worker's failure makes the others fail too.
    """
    said = {}
    for step in job.steps:
        lines = _last_lines(client, job.name, step.name) if step.status == "Failed" else []
        if not lines:
            continue
        log.error("the end of the log of %s:\n%s", step.name, "\n".join(f"  {step.name} | {line}" for line in lines))
        own = [line.partition(_ERROR)[2] for line in lines if _ERROR in line and "SIGTERM" not in line]
        said[step.name] = (not own, own[0] if own else lines[-1])
    if not said:
        return f"No worker's log says why; see kubectl describe trainjob {job.name}"
    worker = min(said, key=lambda name: said[name][0])
    return f"{worker}: {said[worker][1]}"


def _last_lines(client: "TrainerClient", job: str, worker: str) -> list[str]:
    """The last lines of a worker's log, without the launcher's report."""
    try:
        lines = [line.rstrip() for line in client.get_job_logs(job, step=worker)]
    except (RuntimeError, TimeoutError) as error:
        log.warning("log of %s: %s", worker, error)
        return []
    launcher_report = next((i for i, line in enumerate(lines) if _LAUNCHER.search(line)), 0)
    return [line for line in lines[: launcher_report or None] if line][-END_LINES:]
