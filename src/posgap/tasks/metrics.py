"""Metrics: a response's score from 0 to 1, where True counts as 1."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from posgap.choices import Parameters

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """SQuAD normalisation (Rajpurkar et al. 2016): lower case, no punctuation, no articles,
    single spaces."""
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def exact_match(response: str, answers: Sequence[str]) -> bool:
    """EM: the normalised response equals a normalised answer."""
    return any(answer == simplified for answer, simplified in _comparable(response, answers))


def sub_exact_match(response: str, answers: Sequence[str]) -> bool:
    """sub_EM (Liu et al. 2024): a normalised answer is contained in the normalised response."""
    return any(answer in simplified for answer, simplified in _comparable(response, answers))


def f1(response: str, answers: Sequence[str]) -> float:
    """SQuAD's token F1: the harmonic mean of the precision and recall of words, for the answer that fits best."""
    pairs = _comparable(response, answers)
    return max((_token_f1(simplified.split(), answer.split()) for answer, simplified in pairs), default=0.0)


def _token_f1(response: list[str], answer: list[str]) -> float:
    common = (Counter(response) & Counter(answer)).total()
    return 2 * common / (len(response) + len(answer))


def _comparable(response: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each answer with the response, both under the strongest normalisation that does not empty the answer.

    Full normalisation would delete an answer like the hex digit "a" (an article) or "-" (punctuation), and an empty
    answer is contained in every response.
    """
    for answer in answers:
        for simplify in (normalize, _without_punctuation, _lowered):
            if wanted := simplify(answer):
                yield wanted, simplify(response)
                break


def _without_punctuation(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def _lowered(text: str) -> str:
    return " ".join(text.lower().split())


@dataclass(frozen=True)
class Metric:
    """A metric by name: `score(response, answers)` is from 0 to 1, and True counts as 1."""

    name: str
    help: str
    score: Callable[[str, Sequence[str]], float]
    parameters: ClassVar[type[Parameters]] = Parameters  # none


EM = Metric("em", "the response equals an answer", exact_match)
SUB_EM = Metric("sub_em", "the response contains an answer", sub_exact_match)
F1 = Metric("f1", "token F1 with the answer that fits best", f1)
