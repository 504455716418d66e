"""Leaves the error that ended a container's program in the pod's termination message, for Kubernetes.

Argo has the message in the node of a step, and `infra/kubernetes/kfp/retries.yaml` does not retry a step if its message
begins with `REFUSED`. The watcher of a TrainJob reads each pod's message, as the pod's log may be gone.
"""

import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import with_uris
from posgap.foundation.redaction import redact

FILE = Path("/dev/termination-log")  # Kubernetes' default `terminationMessagePath`, of each container
REFUSED, FAILED = "posgap refused: ", "posgap failed: "
_MAX = 400  # characters; Kubernetes keeps 4,096 bytes, and Argo copies them into a workflow of at most 1 MiB


def tell_kubernetes() -> None:
    """Leaves the error that ends this process in the pod's termination message; KFP's executor only prints it."""
    sys.excepthook = _leave_and_print


def _leave_and_print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    leave_message(error)
    sys.__excepthook__(kind, error, trace)


def leave_message(error: BaseException, words: str = "") -> None:
    """Writes what ended this program, in `words` or the error's own, unless a program of the container already has.

    A refusal is an error of posgap's that would be the same the next time.
    """
    is_refusal = isinstance(error, PosgapError) and not error.may_pass
    line = " ".join(redact(with_uris(words or str(error) or type(error).__name__)).split())
    with suppress(OSError):
        if FILE.exists() and not FILE.stat().st_size:
            FILE.write_text(f"{REFUSED if is_refusal else FAILED}{line[:_MAX]}", encoding="utf-8")
