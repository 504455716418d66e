"""How the rows of a step are read: in micro-batches of so many tokens, prompts of like length beside each other.

Every process makes the same plan from the rows' lengths, so that all of them call the model equally often, as ZeRO-3
needs.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from posgap.distillation.batches import rows_of_rank

# Of what is read in one call of the model, the largest share of a row that is padding.
MAX_PADDING = 1 / 8


@dataclass(frozen=True)
class MicroBatch:
    """Rows, by index, whose activations are held at the same time; they are dealt out to the processes in turn.

    `rows` stand by falling length. `sizes` has the number of rows of each of a process's calls of the model, and
    `tokens` the number of tokens that a process reads in them, padding included.
    """

    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    tokens: int

    @classmethod
    def of(cls, rows: Sequence[int], lengths: Sequence[int], world: int, padded: bool = True) -> "MicroBatch":
        """The micro-batch of `rows` on `world` processes; `lengths` are those of all rows of the step.

        Unless `padded`, all rows of a process are read in one call.
        """
        ordered = _by_falling_length(rows, lengths)
        own = [lengths[row] for row in ordered[::world]]
        if not padded:
            return cls(tuple(ordered), (len(own),), sum(own))
        widths = _widths(own)
        return cls(tuple(ordered), tuple(len(list(same)) for _, same in groupby(widths)), sum(widths))

    @property
    def is_least(self) -> bool:
        """Whether no process reads more than one row, so that this cannot be divided."""
        return sum(self.sizes) == 1

    def calls(self, rank: int, world: int) -> Iterator[list[int]]:
        """The rows of each call of the model on process `rank` of `world`; copies of the last row fill up the end."""
        own, start = rows_of_rank(self.rows, rank, world), 0
        for size in self.sizes:
            yield own[start : start + size]
            start += size


def in_micro_batches(
    rows: Sequence[int], lengths: Sequence[int], world: int, most_tokens: int, padded: bool = True
) -> list[MicroBatch]:
    """Divides `rows` into micro-batches of at most `most_tokens` tokens a process, longest rows first.

    A row that is longer than that is read by itself.
    """
    rest, parts = _by_falling_length(rows, lengths), []
    while rest:
        widths = [lengths[row] for row in rest[::world]]
        widths = _widths(widths) if padded else widths
        count = world * max(1, bisect_right(list(accumulate(widths)), most_tokens))
        parts.append(MicroBatch.of(rest[:count], lengths, world, padded))
        rest = rest[count:]
    return parts


def in_groups(
    together: Sequence[Hashable | None], lengths: Sequence[int], world: int, most_tokens: int, padded: bool = True
) -> list[list[MicroBatch]]:
    """Divides a step's rows into groups of micro-batches, so that rows of an equal key in `together` are in one group.

    Where the rows of a key do not fit into a micro-batch, some fill micro-batches of their own, and the rest is in the
    group's last one, which may have all rows of other keys. Rows without a key (`None`) are in the last groups.
    """
    by_key: dict[Hashable | None, list[int]] = {}
    for row, key in enumerate(together):
        by_key.setdefault(key, []).append(row)
    free = by_key.pop(None, [])
    groups: list[list[MicroBatch]] = []

    def joined(group: list[MicroBatch], rows: Sequence[int]) -> bool:
        """Whether `rows` fit into a group's last micro-batch beside what is there; if so, they are now there."""
        both = MicroBatch.of((*group[-1].rows, *rows), lengths, world, padded)
        if both.tokens <= most_tokens:
            group[-1] = both
        return both.tokens <= most_tokens

    divided = [in_micro_batches(rows, lengths, world, most_tokens, padded) for rows in by_key.values()]
    # The largest rest first: so they leave the least room unused.
    for *full, rest in sorted(divided, key=lambda parts: len(parts[-1].rows), reverse=True):
        host = next((group for group in groups if joined(group, rest.rows)), None)
        if host is None:
            groups.append([*full, rest])
        else:
            host[:0] = full
    if not groups or not free or not joined(groups[-1], free):
        groups += [[part] for part in in_micro_batches(free, lengths, world, most_tokens, padded)]
    return groups


def _by_falling_length(rows: Sequence[int], lengths: Sequence[int]) -> list[int]:
    return sorted(rows, key=lambda row: (-lengths[row], row))


def _widths(lengths: Sequence[int]) -> list[int]:
    """To what each of these falling lengths is padded: to that of the first of its call."""
    widths: list[int] = []
    for length in lengths:
        begins = not widths or length < (1 - MAX_PADDING) * widths[-1]
        widths.append(length if begins else widths[-1])
    return widths
