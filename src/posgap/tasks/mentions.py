"""What a response mentions: names, numbers or other words of a kind, in whatever sentence they stand.

A response that repeats the prompt mentions what the other documents hold too, and so it is told from an answer.
"""

import re
from collections.abc import Callable

# Base models go on to ask a question of their own.
_GOES_ON = re.compile(r"\n\s*(?:\n|question\s*:)", re.IGNORECASE)


def mentioned(pattern: str) -> Callable[[str], str]:
    """What takes from a response everything that matches a pattern, each once, with commas between.

    The response counts up to its first blank line, or the line in which it asks another question.
    """
    kind = re.compile(pattern)

    def taken(response: str) -> str:
        answer, *_ = _GOES_ON.split(response.strip())
        once: dict[str, str] = {}
        for found in kind.findall(answer):
            once.setdefault(found.casefold(), found)
        return ", ".join(once.values())

    return taken


numbers = mentioned(r"\d+")
