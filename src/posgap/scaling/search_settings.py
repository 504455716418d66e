"""What a recipe tells a search of RoPE factors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """How candidates vary, what is maximised, and how the model answers.

    `order` is that of the curves, whose points lie between `low` and `high`. `backend` is the requested generator of
    answers, and may be "auto"; an empty `metric` is the task's own.
    """

    model: str
    n_docs: int
    metric: str
    objective: str
    order: int
    low: float
    high: float
    population: int
    generations: int
    seed: int
    batch_tokens: int
    backend: str
