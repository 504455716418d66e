"""Ends a step's program, and tells Kubernetes the reason."""

import sys
from types import TracebackType

from posgap.foundation.termination import leave_message


def tell_kubernetes() -> None:
    """Leaves the error that ends this process in the pod's termination message; KFP's executor only prints it."""
    sys.excepthook = _leave_and_print


def _leave_and_print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    leave_message(error)
    sys.__excepthook__(kind, error, trace)
