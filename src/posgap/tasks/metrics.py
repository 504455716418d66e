"""How well a response answers the question: a score from 0 to 1, where True is 1."""

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
    return any(wanted == found for wanted, found in _comparable(response, answers))


def sub_exact_match(response: str, answers: Sequence[str]) -> bool:
    """sub_EM (Liu et al. 2024): a normalised answer is contained in the normalised response."""
    return any(wanted in found for wanted, found in _comparable(response, answers))


def f1(response: str, answers: Sequence[str]) -> float:
    """SQuAD's token F1: the harmonic mean of precision and recall of words, at the best of the answers."""
    pairs = _comparable(response, answers)
    return max((_token_f1(found.split(), wanted.split()) for wanted, found in pairs), default=0.0)


def _token_f1(found: list[str], wanted: list[str]) -> float:
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))


def _comparable(response: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(answer, response) pairs under the strongest normalisation that leaves something of the answer.

    The hex digit "a" is an article and "-" is punctuation: normalised away, they would be
    contained in every response.
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
    """How a response is scored: `score(response, answers)` is from 0 to 1, and True counts as 1."""

    name: str
    help: str
    score: Callable[[str, Sequence[str]], float]
    parameters: ClassVar[type[Parameters]] = Parameters  # none


EM = Metric("em", "the response equals an answer", exact_match)
SUB_EM = Metric("sub_em", "the response contains an answer", sub_exact_match)
F1 = Metric("f1", "words in common with the best of the answers", f1)
