"""The two halves of the examples: to choose settings by, and to measure on."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import format_count
from posgap.tasks.content import content_key, find_groups
from posgap.tasks.examples import AnyExample

MIN_EXAMPLES = 2  # examples in a half: of one no interval can be told


class Splits(NamedTuple):
    """Examples of two kinds, no two that hang together (`posgap.tasks.content.find_groups`) in different halves."""

    selection: list[AnyExample]
    held_out: list[AnyExample]


def split(examples: Sequence[AnyExample]) -> Splits:
    """Splits examples into halves. The second is larger if the number is odd, or if groups do not fit.

    The split follows only from the digest of the examples' contents, not from their order or names. Of examples with
    the same content one stays, and a group stays together. Raises `PosgapError` if a half would have fewer than two.
    """
    by_content = {content_key(example): example for example in reversed(examples)}
    groups = find_groups(by_content.values(), by_content)
    grouped = {content for group in groups for content in group}
    groups += [[content] for content in by_content if content not in grouped]
    halves = Splits([], [])
    for group in sorted(groups):
        fits = len(halves.selection) + len(group) <= len(by_content) // 2
        (halves.selection if fits else halves.held_out).extend(by_content[content] for content in group)
    chosen, measured = map(len, halves)
    if min(chosen, measured) < MIN_EXAMPLES:
        raise PosgapError(
            f"{format_count(len(by_content), 'different example')}: {chosen} to choose settings by and {measured} to "
            f"measure on, and related ones stay together; each half needs {MIN_EXAMPLES} or more: give more examples"
        )
    return halves
