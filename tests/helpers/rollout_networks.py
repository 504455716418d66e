"""The smallest networks of the in-context task."""

from posgap.rollout.in_context import TaskSizes
from posgap.rollout.networks import Design
from posgap.rollout.trials import Training, Trial

SMALL = TaskSizes(size=16, classes=40, labels=12)


TINY = Training(iterations=10, batch=8, tests=50)


def trials() -> list[Trial]:
    return [
        Trial(Design(2), SMALL, 0),
        Trial(Design(2, "window", width=5), SMALL, 1),
        Trial(Design(1, "prefix", prefix=4), SMALL, 0),
    ]
