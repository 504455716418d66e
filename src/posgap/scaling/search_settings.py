"""What a recipe tells a search of RoPE factors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SearchSettings:
    """How candidates vary, what is maximised, and how the model answers. `curve` is a kind of curve with points between
    `low` and `high`. `backend` is the requested generator of answers, and may be "auto"; an empty `metric` is the
    task's own."""

    model: str
    n_docs: int
    metric: str
    objective: str
    curve: str
    curve_parameters: Mapping[str, Any]
    low: float
    high: float
    population: int
    generations: int
    seed: int
    batch_tokens: int
    backend: str
