"""A TrainJob from its creation to its end: created or joined, followed, and deleted."""

import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from posgap.cluster.train_jobs import Job, create
from posgap.cluster.worker_logs import printed, why_it_failed
from posgap.errors import PosgapError, Stopped
from posgap.interruption import Termination, deferred_termination

if TYPE_CHECKING:
    from kubeflow.trainer import TrainerClient
    from kubeflow.trainer.types.types import TrainJob

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
SILENCE_SECONDS = 300.0  # without an answer from the cluster, after which it is given up
COMPLETE, FAILED = "Complete", "Failed"
Create = Callable[["TrainerClient", Job], None]


def run(client: "TrainerClient", job: Job, create: Create = create) -> None:
    """Runs the job to its end, or the one of its name that is under way already, and deletes it.

    What node 0 prints is printed here. Raises `PosgapError` with the end of a failed worker's log, or where the
    time is up; `Stopped` at SIGTERM. Where the cluster does not answer any more the job goes on, to be joined by
    the next that runs it.
    """
    with deferred_termination() as termination:
        cluster = _Cluster(client, termination)
        try:
            while not (ended := _attempt(cluster, job, create)):
                log.info("TrainJob %s was being deleted when it was joined, and is gone", job.name)
            why = "" if ended.status == COMPLETE else why_it_failed(client, ended)
        except (Stopped, KeyboardInterrupt):
            cluster.delete(job.name)
            raise
        cluster.delete(job.name)
    if ended.status == FAILED:
        raise PosgapError(f"TrainJob {job.name} failed. {why}")
    if ended.status != COMPLETE:
        raise PosgapError(f"TrainJob {job.name} was not done after {job.seconds} s, and is deleted. {why}")


class _Cluster:
    """The client, asked patiently."""

    def __init__(self, client: "TrainerClient", termination: Termination):
        self.client, self.termination, self.answered = client, termination, 0.0

    def look(self, name: str) -> "TrainJob | None":
        """The job as it is now, None where there is none; waits where the cluster does not answer for a while."""
        while True:
            try:
                found = self.client.get_job(name)
            except (RuntimeError, TimeoutError, ValueError) as error:
                if _status(error) == 404:
                    found = None
                elif time.monotonic() - self.answered > SILENCE_SECONDS:
                    raise PosgapError(f"TrainJob {name}: {_reason(error)}") from None
                else:
                    self.wait()
                    continue
            self.answered = time.monotonic()
            return found

    def wait(self) -> None:
        """A while; raises `Stopped` where SIGTERM has come."""
        if self.termination.requested:
            raise Stopped("stopped by SIGTERM, and the TrainJob deleted")
        time.sleep(LOOK_SECONDS)

    def delete(self, name: str) -> None:
        try:
            self.client.delete_job(name)
        except (RuntimeError, TimeoutError, ValueError) as error:
            if _status(error) != 404:
                log.warning("TrainJob %s stays: %s; kubectl delete trainjob %s", name, _reason(error), name)


def _attempt(cluster: _Cluster, job: Job, create: Create) -> "TrainJob | None":
    """Creates or joins the job and follows it to its end; None where one that was joined went away."""
    ours = _start(cluster, job, create)
    deadline = time.monotonic() + job.seconds
    with printed(cluster.client, job.name):
        while found := cluster.look(job.name):
            if found.status in (COMPLETE, FAILED) or time.monotonic() > deadline:
                break
            cluster.wait()
    if ours and not found:
        raise PosgapError(f"TrainJob {job.name} was deleted by somebody else; the same command goes on")
    return found


def _start(cluster: _Cluster, job: Job, create: Create) -> bool:
    """Makes sure that there is such a job, and says whether it was created here."""
    cluster.answered = time.monotonic() - SILENCE_SECONDS  # a cluster that never answered is not waited for
    found = cluster.look(job.name)
    if found and found.status == FAILED:
        cluster.delete(job.name)
        while found := cluster.look(job.name):
            cluster.wait()
    if not found:
        try:
            create(cluster.client, job)
        except (RuntimeError, TimeoutError) as error:
            if _status(error) != 409:
                raise PosgapError(f"TrainJob {job.name} cannot be created: {_reason(error)}") from None
        else:
            log.info("TrainJob %s: created, for %d nodes", job.name, job.nodes)
            return True
    log.info("TrainJob %s is there already; joining it", job.name)
    return False


def _status(error: Exception) -> int:
    """The HTTP status behind what the SDK raised, 0 without one; its local backend says 404 by a `ValueError`."""
    return 404 if isinstance(error, ValueError) else getattr(error.__cause__, "status", None) or 0


def _reason(error: Exception) -> str:
    """What the server said, or why it did not, in one line."""
    try:
        return json.loads(getattr(error.__cause__, "body", ""))["message"]
    except (TypeError, ValueError, KeyError):
        return f"{error} ({error.__cause__})".splitlines()[0]
