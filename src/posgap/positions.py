"""Positions, and parts of a sweep, as they are written: 7, 3+7, 2/4."""

from collections.abc import Sequence


def parse_positions(text: str) -> tuple[int, ...]:
    """The positions that "7", or "3+7" for two gold documents, names; `ValueError` for other text."""
    parts = text.strip().split("+")
    # isascii: `int` would read digits of every script.
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"{text.strip()!r} is no placement: write a position like 7, or two like 3+7")
    return tuple(map(int, parts))


def parse_shard(text: str) -> tuple[int, int]:
    """(2, 4) of "2/4", the second of four parts; `ValueError` for other text."""
    part, _, parts = text.partition("/")
    if not (part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"{text!r} is no part: write 2/4 for the second of four")
    return int(part), int(parts)


def format_positions(positions: Sequence[int]) -> str:
    """The text of which `parse_positions` makes these positions."""
    return "+".join(map(str, positions))
