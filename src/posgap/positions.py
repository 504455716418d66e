"""The notation of positions (7, or 3+7 for two gold documents) and of a sweep's parts (2/4)."""

from collections.abc import Sequence


def parse_positions(text: str) -> tuple[int, ...]:
    """The positions written as "7", or as "3+7" for two gold documents; raises `ValueError` for other text."""
    parts = text.strip().split("+")
    if len(parts) > 2 or not all(_is_number(part) and int(part) for part in parts):
        raise ValueError(f"{text.strip()!r} is not a placement: write a position like 7, or two like 3+7")
    return tuple(map(int, parts))


def parse_shard(text: str) -> tuple[int, int]:
    """The numbers (2, 4) of "2/4", the second of four parts; raises `ValueError` for other text."""
    part, _, parts = text.partition("/")
    if not (_is_number(part) and _is_number(parts) and 1 <= int(part) <= int(parts)):
        raise ValueError(f"{text!r} is not a part of a sweep: write 2/4 for the second of four parts")
    return int(part), int(parts)


def _is_number(text: str) -> bool:
    # `int` alone would accept the digits of every script, and fail on thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= 9


def format_positions(positions: Sequence[int]) -> str:
    """Writes positions in the notation that `parse_positions` reads."""
    return "+".join(map(str, positions))
