"""Positions, and parts of a sweep, as they are written: 7, 3+7, 2/4."""

from collections.abc import Sequence


def parse_positions(text: str) -> tuple[int, ...]:
    """The positions that "7", or "3+7" for two gold documents, names; `ValueError` for other text."""
    parts = text.strip().split("+")
    if len(parts) > 2 or not all(_is_number(part) and int(part) for part in parts):
        raise ValueError(f"{text.strip()!r} is no placement: write a position like 7, or two like 3+7")
    return tuple(map(int, parts))


def parse_shard(text: str) -> tuple[int, int]:
    """(2, 4) of "2/4", the second of four parts; `ValueError` for other text."""
    part, _, parts = text.partition("/")
    if not (_is_number(part) and _is_number(parts) and 1 <= int(part) <= int(parts)):
        raise ValueError(f"{text!r} is no part: write 2/4 for the second of four")
    return int(part), int(parts)


def _is_number(text: str) -> bool:
    # `int` would read digits of every script, and refuses thousands of them.
    return text.isascii() and text.isdigit() and len(text) <= 9


def format_positions(positions: Sequence[int]) -> str:
    """The text of which `parse_positions` makes these positions."""
    return "+".join(map(str, positions))
