"""The notation of positions (7, or 3+7 for two gold documents) and of a sweep's parts (2/4)."""

from collections.abc import Sequence


def parse_positions(text: str) -> tuple[int, ...]:
    """The positions written as "7", or as "3+7" for two gold documents, "3+7+9" for three; raises `ValueError` for
    other text."""
    parts = text.strip().split("+")
    if not all(_is_number(part) and int(part) for part in parts):
        raise ValueError(f"{text.strip()!r} is not a placement: write a position like 7, or two like 3+7")
    return tuple(map(int, parts))


def is_first_part(shard: str) -> bool:
    """Returns whether a part of a sweep holds what all parts share once, such as baselines and guards; a whole sweep
    ("") does."""
    return not shard or parse_shard(shard)[0] == 1


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


def parse_length(text: str) -> str:
    """A length of prompts in the form "4096" or "12.5%", of the model's context, from that or from "4k", which is 4,096
    tokens; raises `ValueError` for other text."""
    plain = text.strip().lower()
    if plain.endswith("%"):
        share = _parse_percent(plain[:-1])
        if 0 < share <= 100:
            return f"{share:g}%"
    else:
        tokens = plain.removesuffix("k")
        if _is_number(tokens) and int(tokens):
            return str(int(tokens) * (1024 if plain.endswith("k") else 1))
    raise ValueError(
        f"{text.strip()!r} is not a length: write tokens like 4096 or 4k, or a share of the context like 50%"
    )


def tokens_of(length: str, context: int) -> int:
    """Returns the tokens of a length, "4096" or "50%", for a model that reads `context` of them."""
    return int(context * _parse_percent(length[:-1]) / 100) if length.endswith("%") else int(length)


def parse_depths(text: str) -> list[float]:
    """Depths in percent, in their order, from such a list, "0,25,50" or "50%", or from how many there are, "5", which
    are spread evenly from 0 to 100; raises `ValueError` for other text."""
    parts = text.replace(",", " ").split()
    if len(parts) == 1 and _is_number(parts[0]):
        count = int(parts[0])
        if 2 <= count <= 101:
            return [100 * number / (count - 1) for number in range(count)]
    else:
        depths = [_parse_percent(part.removesuffix("%")) for part in parts]
        if depths and all(0 <= depth <= 100 for depth in depths) and len(set(depths)) == len(depths):
            return sorted(depths)
    raise ValueError(
        f"{text.strip()!r} are not depths: write a number of depths from 2 to 101, or different percents "
        "like 0,25,50, or one like 50%"
    )


def _parse_percent(text: str) -> float:
    """A number of percents; NaN for other text."""
    whole, _, part = text.partition(".")
    return float(text) if _is_number(whole) and (not part or _is_number(part)) else float("nan")
