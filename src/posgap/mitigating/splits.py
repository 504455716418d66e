"""The three parts of the examples: to try settings on, to choose among the best of them, and to measure on."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.tasks.content import content
from posgap.tasks.examples import AnyExample

MIN_EXAMPLES = 2  # examples in a part: of one no interval can be told


class Splits(NamedTuple):
    """Examples of three kinds, no two of the same content in different parts."""

    search: Sequence[AnyExample]
    selection: Sequence[AnyExample]
    held_out: Sequence[AnyExample]


def split(examples: Sequence[AnyExample], search: int = 0, selection: int = 0) -> Splits:
    """Splits examples into parts of these sizes, 0 for a quarter of all, and the rest.

    Who goes where follows from the digest of the examples' contents alone, not from their order or names; of those with
    the same content one stays. Raises `PosgapError` where a part would have fewer than two.
    """
    by_content = {content(example): example for example in reversed(examples)}
    ordered = [by_content[name] for name in sorted(by_content)]
    sizes = [search or len(ordered) // 4, selection or len(ordered) // 4]
    left = len(ordered) - sum(sizes)
    if min(*sizes, left) < MIN_EXAMPLES:
        raise PosgapError(
            f"{len(ordered)} different examples: {sizes[0]} to search on, {sizes[1]} to select on and {max(left, 0)} "
            f"to measure on; each part needs {MIN_EXAMPLES} or more: give more examples, or other "
            "--search and --selection"
        )
    return Splits(ordered[: sizes[0]], ordered[sizes[0] : sum(sizes)], ordered[sum(sizes) :])
