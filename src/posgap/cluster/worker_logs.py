"""The logs of a TrainJob's workers."""

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from posgap.foundation.printing import is_quiet

if TYPE_CHECKING:
    from kubeflow.trainer import TrainerClient
    from kubeflow.trainer.types.types import TrainJob

log = logging.getLogger(__name__)
NODE = "node-0"
AGAIN_SECONDS = 2.0
LAST_SECONDS = 20.0  # how long to wait for a log's last lines
END_LINES = 20
_ERROR = "posgap: error: "
# The line at which torchrun's own report of a failed process begins: it is long and does not contain the cause.
_LAUNCHER = re.compile(r"torch/distributed/elastic/multiprocessing/api\.py.*(closing signal|failed \(exitcode)")


@contextmanager
def printed(client: "TrainerClient", job: str) -> Iterator[None]:
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

    That is posgap's own first error line among them, since one worker's failure makes the others fail too. If no
    worker has failed, it returns the last events of the job.
    """
    said = {}
    for step in job.steps:
        if step.status == "Failed" and (lines := _end(client, job.name, step.name)):
            log.error(
                "the end of the log of %s:\n%s", step.name, "\n".join(f"  {step.name} | {line}" for line in lines)
            )
            own = [line.partition(_ERROR)[2] for line in lines if _ERROR in line and "SIGTERM" not in line]
            said[step.name] = (not own, own[0] if own else lines[-1])
    if not said:
        return _events(client, job.name)
    worker = min(said, key=lambda name: said[name][0])
    return f"{worker}: {said[worker][1]}"


def _end(client: "TrainerClient", job: str, worker: str) -> list[str]:
    """The last lines of a worker's log, without the launcher's report."""
    try:
        lines = [line.rstrip() for line in client.get_job_logs(job, step=worker)]
    except (RuntimeError, TimeoutError) as error:
        log.warning("log of %s: %s", worker, error)
        return []
    launcher_report = next((i for i, line in enumerate(lines) if _LAUNCHER.search(line)), 0)
    return [line for line in lines[: launcher_report or None] if line][-END_LINES:]


def _events(client: "TrainerClient", job: str) -> str:
    from kubernetes.client import ApiException

    try:
        events = client.get_job_events(job)[-3:]
    except (ApiException, RuntimeError, TimeoutError, NotImplementedError) as error:
        log.debug("events of %s: %s", job, error)
        events = []
    last = "; ".join(f"{event.involved_object_name}: {event.reason}: {event.message}" for event in events)
    return f"The last events: {last}" if last else f"No worker's log says why; see kubectl describe trainjob {job}"
