"""The shape of accuracy over positions, tested: do the ends stand above the middle?"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from posgap.foundation.files import Record
from posgap.measurement import statistics
from posgap.tasks.placements import in_order

_NAMES = {
    (1, 1): "U-shaped",
    (-1, -1): "hump-shaped",
    (1, -1): "falling",
    (-1, 1): "rising",
    (1, 0): "better at the beginning",
    (0, 1): "better at the end",
    (-1, 0): "worse at the beginning",
    (0, -1): "worse at the end",
    (0, 0): "of no certain shape",
}


class Shape(Record):
    """Accuracy at the first and the last third of the positions compared with those between, in points.

    `ends` is how many positions each of the outer thirds has, `middle` how many are between. The name states what both
    intervals show for certain: "U-shaped" if both lie above 0 (an intersection-union test at the 5 % level). There is
    no name if accuracy may be the same everywhere.
    """

    name: str = Field(description="name of the shape, such as U-shaped, if both intervals exclude 0")
    ends: int = Field(description="number of positions in each outer third")
    middle: int = Field(description="number of positions between the outer thirds")
    beginning_over_middle: float = Field(description="mean of the first third minus the middle, in points")
    beginning_over_middle_ci95: tuple[float, float] = Field(description="95 % interval of that difference")
    end_over_middle: float = Field(description="mean of the last third minus the middle, in points")
    end_over_middle_ci95: tuple[float, float] = Field(description="95 % interval of that difference")


def regions(placements: Sequence[Sequence[int]], categories: Sequence[str] = ()) -> dict[str, list[int]]:
    """Returns the columns of each region: the placements' categories if they have some, else the outer thirds of the
    positions and those between."""
    if any(categories):
        columns: dict[str, list[int]] = {name: [] for name in in_order(categories)}
        for column, name in enumerate(categories):
            columns[name].append(column)
        return columns
    order = np.argsort([placement[0] for placement in placements]).tolist()
    ends = len(placements) // 3
    thirds = {"beginning": order[:ends], "middle": order[ends : len(order) - ends], "end": order[len(order) - ends :]}
    return {name: columns for name, columns in thirds.items() if columns}


def shape_of(correct: np.ndarray, positions: Sequence[int], uneven: bool) -> Shape | None:
    """Returns the shape of `correct [E, P]` over `positions [P]`, in any order; None for fewer than three.

    It has a name only if accuracy is known to be `uneven`.
    """
    if len(positions) < 3:
        return None
    thirds = regions([[position] for position in positions])
    beginning, middle, end = (correct[:, columns].mean(axis=1) for columns in thirds.values())
    first, first_ci95 = statistics.paired_difference(beginning, middle)
    last, last_ci95 = statistics.paired_difference(end, middle)
    return Shape(
        name=_NAMES[(_side(first_ci95), _side(last_ci95)) if uneven else (0, 0)],
        ends=len(thirds["end"]),
        middle=len(thirds["middle"]),
        beginning_over_middle=first,
        beginning_over_middle_ci95=first_ci95,
        end_over_middle=last,
        end_over_middle_ci95=last_ci95,
    )


def _side(interval: Sequence[float]) -> int:
    """Returns 1 if the interval lies above 0, -1 if it lies below, else 0."""
    low, high = interval
    return int(low > 0) - int(high < 0)
