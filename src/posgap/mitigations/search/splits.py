"""The two halves of the examples: to choose settings by, and to measure on."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample

MIN_EXAMPLES = 2  # examples in a half: of one no interval can be told


class Splits(NamedTuple):
    """Examples of two kinds, no two of the same content in different halves."""

    selection: Sequence[AnyExample]
    held_out: Sequence[AnyExample]


def split(examples: Sequence[AnyExample]) -> Splits:
    """Splits examples into halves, of an odd number the second one larger.

    Who goes where follows from the digest of the examples' contents alone, not from their order or names; of those with
    the same content one stays. Raises `PosgapError` where a half would have fewer than two.
    """
    by_content = {content_key(example): example for example in reversed(examples)}
    ordered = [by_content[name] for name in sorted(by_content)]
    half = len(ordered) // 2
    if half < MIN_EXAMPLES:
        raise PosgapError(
            f"{len(ordered)} different examples: {half} to choose settings by and {len(ordered) - half} to measure on; "
            f"each half needs {MIN_EXAMPLES} or more: give more examples"
        )
    return Splits(ordered[:half], ordered[half:])
