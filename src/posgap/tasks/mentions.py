"""What a response mentions: names, numbers or other words of a kind, in whatever sentence they stand.

A response that repeats the prompt mentions what the other documents hold too, and so it is told from an answer.
"""

import re
from collections.abc import Callable

_MARKER = r"\d{1,2}[.)]\s"  # of a list
_GOES_ON = re.compile(r"\n\s*question\s*:", re.IGNORECASE)  # as base models do
_BLANK, _OF_LIST = re.compile(r"\n\s*\n"), re.compile(rf"\s*(?:{_MARKER}|[-*•]\s)")


def mentioned(pattern: str, but: str = "") -> Callable[[str], str]:
    """What takes from a response everything that matches a pattern, each once, with commas between.

    The first paragraph in which anything matches counts, with the items of a list that follow it, and nothing behind
    another question. What matches `but` does not count.
    """
    kind, left_out = re.compile(pattern), re.compile(but) if but else None

    def found(text: str) -> list[str]:
        return kind.findall(left_out.sub(" ", text) if left_out else text)

    def taken(response: str) -> str:
        answer, *_ = _GOES_ON.split(f"\n{response.strip()}")
        once: dict[str, str] = {}
        for paragraph in _BLANK.split(answer):
            if once and not _OF_LIST.match(paragraph):
                break
            for each in found(paragraph):
                once.setdefault(each.casefold(), each)
        return ", ".join(once.values())

    return taken


numbers = mentioned(r"\d+", but=rf"(?m)^\s*{_MARKER}")
