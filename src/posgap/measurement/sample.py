"""The examples of a sweep as a sample: those that hang together count once, and no order of lines moves a figure."""

from collections.abc import Sequence

import numpy as np

from posgap.tasks.content import content_keys, find_groups
from posgap.tasks.examples import AnyExample


class Sample:
    """Examples of these `contents` [E]. The examples of a group (`posgap.tasks.content.find_groups`) are one draw, and
    every other example is a draw of its own: n draws in all."""

    def __init__(self, contents: Sequence[str], groups: Sequence[Sequence[str]] = ()):
        self.groups = groups
        first: dict[str, str] = {}
        for group in groups:
            first.update(dict.fromkeys(group, group[0]))
        self._draws: dict[str, list[int]] = {}
        for at in sorted(range(len(contents)), key=lambda at: contents[at]):
            self._draws.setdefault(first.get(contents[at], contents[at]), []).append(at)

    @classmethod
    def from_examples(cls, examples: Sequence[AnyExample]) -> "Sample":
        """Returns the sample that these examples are."""
        contents = content_keys(examples)
        return cls(contents, find_groups(examples, contents))

    @property
    def n(self) -> int:
        """The number of draws."""
        return len(self._draws)

    def average(self, scores: np.ndarray) -> np.ndarray:
        """Averages scores [E, ...] within each draw [n, ...]; draws come in the order of their content."""
        draws = [of_draw for _, of_draw in sorted(self._draws.items())]
        sizes = np.array([len(of_draw) for of_draw in draws]).reshape(-1, *[1] * (scores.ndim - 1))
        rows = scores[np.concatenate(draws)].astype(np.float64)
        return np.add.reduceat(rows, np.cumsum(sizes.ravel()) - sizes.ravel()) / sizes
