"""A metric: the response begins with an answer, as a completion model's does."""

from posgap.tasks.metrics import Metric, normalize


def begins(response: str, answers) -> bool:
    return any(normalize(response).startswith(normalize(answer)) for answer in answers)


BEGINS = Metric("begins", "the response begins with an answer", begins)
