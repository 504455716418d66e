"""Metrics: each gives a response's score from 0 to 1; True counts as 1."""

import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.registry import Parameters, Registry
from posgap.tasks.answer_text import SPACELESS, compile_pattern, stands_in
from posgap.tasks.examples import Document

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = r"\b(a|an|the)\b"
_SPACELESS = rf"{SPACELESS}|\p{{Katakana}}"
_NUMBER = r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-+−]?\.\d+"
PATTERN_SECONDS = 1.0  # for a user's pattern, on one response
SENTENCE = 8  # words that make an answer a sentence
_FUNCTION_WORDS = {
    *("and", "are", "as", "at", "be", "been", "but", "by", "did", "do", "does", "for", "from", "had", "has", "have"),
    *("he", "her", "his", "if", "in", "into", "is", "it", "its", "of", "on", "or", "she", "so", "than", "that"),
    *("their", "them", "then", "there", "these", "they", "this", "those", "to", "was", "were", "what", "when"),
    *("where", "which", "while", "who", "will", "with", "would", "you", "your"),
}
_BEGUN = 2  # characters of a candidate at a response's end that do not stand there by chance


class RightAnswers(list[str]):
    """The right answers, and the `others`: everything else in the prompt that a response could name.

    A plain list of answers says nothing about other candidates.
    """

    def __init__(self, right: Iterable[str], others: Iterable[str] = ()):
        super().__init__(right)
        self.others = list(others)
        self._named: tuple[str, list[bool]] | None = None  # of the last response, which is scored and looked at

    def named(self, response: str) -> list[bool]:
        """Returns the result of `named` for a response, computed once."""
        if self._named is None or self._named[0] != response:
            self._named = response, _find_named(response, self, self.others)
        return self._named[1]


def normalize(text: str) -> str:
    """SQuAD normalisation (Rajpurkar et al. 2016): lower case, no punctuation, no articles,
    single spaces."""
    return " ".join(compile_pattern(_ARTICLES).sub(" ", _without_punctuation(text)).split())


def exact_match(response: str, answers: Sequence[str]) -> bool:
    """EM: the normalised response equals a normalised answer."""
    return any(answer == simplified for answer, simplified in _comparable(response, answers))


def sub_exact_match(response: str, answers: Sequence[str]) -> bool:
    """sub_EM: the words of a normalised answer stand together in the normalised response.

    Parts of a word do not count, so that the answer "A" is not in every response; in scripts without spaces any place
    counts.
    """
    found = (_places(answer, simplified) for answer, simplified in _comparable(response, answers))
    return any(True for places in found for _ in places)  # a place may be 0


def contains_answer(response: str, answers: Sequence[str]) -> bool:
    """The words of an answer occur together in the response, in any Unicode form: numbers, signs and symbols among
    them, on the word boundaries of their script (`posgap.tasks.answer_text`)."""
    return any(stands_in(answer, response) for answer in answers)


def holds_answer(document: Document, answers: Sequence[str], metric: str = "litm") -> bool:
    """Whether a document's title or text contains an answer, or a metric scores a copy of it as right.

    `litm` finds an answer within a word too ("Ali" in "quality"). It is the default because a text that holds no
    answer, neither by `litm` nor by posgap's rule, is a distractor however the response is scored.
    """
    copied = " ".join(f"{document.title} {document.text}".split())
    return METRICS[metric].score(copied, answers) == 1 or contains_answer(copied, answers)


def lost_in_the_middle(response: str, answers: Sequence[str]) -> bool:
    """How Lost in the Middle scores open questions (Liu et al. 2024, scripts/evaluate_qa_responses.py): a normalised
    answer is contained in the response's normalised first line, within a word too.

    Only the first line counts, since a model that copies the documents would copy the answer. Unlike there, an answer
    that normalisation empties ("A", "-") is not contained in every response: it is scored as by sub_EM.
    """
    line = response.split("\n")[0]
    simplified = normalize(line)
    for answer in answers:
        wanted = normalize(answer)
        if wanted in simplified if wanted else sub_exact_match(line, [answer]):
            return True
    return False


def contains_any(response: str, answers: Sequence[str]) -> bool:
    """Whether the response contains an answer verbatim, in any case: how Lost in the Middle scores key-value retrieval
    (scripts/evaluate_kv_responses.py)."""
    lowered = response.lower()
    return any(answer.lower() in lowered for answer in answers)


def sole_answer(response: str, answers: Sequence[str]) -> bool:
    """Returns whether the response names an answer verbatim, and no other candidate of the prompt: see `named`.

    A copy of the prompt names other candidates too, or ends within one, and so is never right. If the others are
    unknown (`answers` is a plain list), any response that names an answer is right.
    """
    said = named(response, answers)
    return bool(said) and all(said)


def named(response: str, answers: Sequence[str]) -> list[bool]:
    """Returns for each candidate that the response names whether it is right, in the response's order.

    Candidates are the answers and, if these are `RightAnswers`, the others. A candidate is named if the response has it
    verbatim, in any case, not within a word. If one holds another ("New York", "York"), the longer one is named.
    Another candidate is also named if the response ends within it, after two characters or more: the token limit has
    cut a copy of the prompt.
    """
    return answers.named(response) if isinstance(answers, RightAnswers) else _find_named(response, answers, ())


def _find_named(response: str, answers: Iterable[str], others: Iterable[str]) -> list[bool]:
    text = response.lower()
    right = {answer.lower() for answer in answers} - {""}
    wrong = {other.lower() for other in others} - right - {""}
    spans: list[tuple[int, int, bool]] = []
    for candidate in right | wrong:
        if candidate in text:
            spans += [(at, at + len(candidate), candidate in right) for at in _places(candidate, text)]
    spans += [(at, len(text), False) for at in _cut_candidates(wrong, text)]
    kept: list[tuple[int, int, bool]] = []
    for start, end, is_right in sorted(spans, key=lambda span: (span[0] - span[1], not span[2], span[0])):
        if all(end <= before or start >= after for before, after, _ in kept):
            kept.append((start, end, is_right))
    return [is_right for _, _, is_right in sorted(kept)]


def f1(response: str, answers: Sequence[str]) -> float:
    """SQuAD's token F1: the harmonic mean of the precision and recall of words, for the answer that fits best. In
    scripts without spaces each character is a word."""
    best = 0.0
    for answer, simplified in _comparable(response, answers):
        said = _tokens(simplified)
        wanted = _tokens(answer)
        best = max(best, 2 * (Counter(said) & Counter(wanted)).total() / (len(said) + len(wanted)))
    return best


def share_of(response: str, answers: Sequence[str]) -> float:
    """Returns the share of the answers that the response contains, by sub_EM; meant for answers that are parts of one,
    not alternative wordings."""
    return sum(sub_exact_match(response, [answer]) for answer in answers) / len(answers) if answers else 0.0


def is_sentence(answer: str) -> bool:
    """Whether an answer is one that no response has word for word."""
    return len(answer.split()) >= SENTENCE


def key_words(response: str, answers: Sequence[str]) -> float:
    """Returns the share of key words in the response, for the best-matched answer; meant for answers that are
    sentences. Key words are all words except English articles, pronouns, prepositions and auxiliaries."""
    best = 0.0
    said = set(_tokens(normalize(response)))
    for answer in answers:
        words = set(_tokens(normalize(answer)))
        words = words - _FUNCTION_WORDS or words
        best = max(best, len(words & said) / len(words) if words else 0.0)
    return best


def all_of(response: str, answers: Sequence[str]) -> bool:
    """The response contains every one of the answers, each as by sub_EM."""
    return share_of(response, answers) == 1


def set_match(response: str, answers: Sequence[str]) -> bool:
    """The response is a list of the answers, which are parts of one: all of them and nothing else, in any order.

    Parts stand between commas or on lines of their own, and are compared as by EM.
    """
    parts = [part for part in compile_pattern(r",|\n").split(response) if part.strip()]
    return bool(parts) and all(exact_match(p, answers) for p in parts) and all(exact_match(a, parts) for a in answers)


def numeric(response: str, answers: Sequence[str]) -> bool:
    """Whether the last number in the response equals an answer's; 1,234.50 and 1234.5 are the same number.

    An answer without a number is in no response.
    """
    stated = _numbers(response)[-1:]
    return bool(stated) and any(stated == _numbers(answer)[-1:] for answer in answers)


def matches_pattern(response: str, answers: Sequence[str]) -> bool:
    """An answer, read as a regular expression, matches somewhere in the response.

    Raises `PosgapError` if it is none, or takes more than a second for a response.
    """
    import regex

    for answer in answers:
        try:
            if compile_pattern(answer).search(response, timeout=PATTERN_SECONDS):
                return True
        except regex.error as error:
            raise PosgapError(f"answer {shorten(repr(answer))} is not a regular expression: {error}") from None
        except TimeoutError:
            raise PosgapError(
                f"answer {shorten(repr(answer))}: takes more than {PATTERN_SECONDS:g} s to match; write it "
                "without nested repetitions"
            ) from None
    return False


def _tokens(simplified: str) -> list[str]:
    return compile_pattern(rf"(?:{_SPACELESS})\p{{M}}*|(?:(?!{_SPACELESS})\S)+").findall(simplified)


def _places(answer: str, response: str) -> Iterator[int]:
    """Yields the start of each answer in a response, without those that begin or end within a word."""
    start = response.find(answer)
    while start >= 0:
        end = start + len(answer)
        before = response[start - 1 : start] if start else ""
        after = response[end : end + 1]
        if not (_cuts_word(answer[0], before) or _cuts_word(answer[-1], after)):
            yield start
        start = response.find(answer, start + 1)


def _cut_candidates(candidates: Iterable[str], text: str) -> Iterator[int]:
    """Yields the start of each candidate that the end of the text cuts off."""
    ending = text[-_BEGUN:]
    for candidate in candidates:
        # Two characters of the text's end stand in few candidates, and only of these every prefix is tried.
        if ending not in candidate:
            continue
        for length in range(min(len(candidate) - 1, len(text)), _BEGUN - 1, -1):
            at = len(text) - length
            if text.endswith(candidate[:length]) and not _cuts_word(candidate[0], text[at - 1 : at] if at else ""):
                yield at
                break


def _cuts_word(inner: str, outer: str) -> bool:
    """Whether a border between these two characters is within a word."""
    letter = compile_pattern(rf"(?!{_SPACELESS})\w")
    return letter.match(inner) is not None and letter.match(outer) is not None


def _numbers(text: str) -> list[Decimal]:
    return [Decimal(number.replace(",", "").replace("−", "-")) for number in compile_pattern(_NUMBER).findall(text)]


def _comparable(response: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each answer with the response, both under the strongest normalisation that does not empty the answer.

    Full normalisation would delete an answer like the hex digit "a" (an article) or "-" (punctuation), and an empty
    answer is contained in every response.
    """
    for answer in answers:
        for simplify in (normalize, _without_punctuation, _lower_case):
            wanted = simplify(answer)
            if wanted:
                yield wanted, simplify(response)
                break


def _without_punctuation(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def _lower_case(text: str) -> str:
    return " ".join(text.lower().split())


@dataclass(frozen=True)
class Metric:
    """A metric by name: `score(response, answers)` is from 0 to 1, and True counts as 1. The answers of a task are
    `RightAnswers`, so that a metric can look at the other candidates too.

    `right_after` says when a response in the task's only form is already right: after its "answer", whatever follows,
    or at its "end". Without it responses have to be generated to be scored. Text after a string of `stop`, the first
    after other text, changes no score. `of_parts` says that the answers are parts of one, all required, instead of
    several wordings.
    """

    name: str
    help: str
    score: Callable[[str, Sequence[str]], float]
    right_after: Literal["answer", "end", ""] = ""
    stop: tuple[str, ...] = ()
    of_parts: bool = False
    parameters: ClassVar[type[Parameters]] = Parameters  # none


METRICS: Registry[Metric] = Registry(
    "metric",
    "posgap.metrics",
    Metric("em", "the response equals an answer", exact_match, "end"),
    Metric("sub_em", "the response contains the words of an answer", sub_exact_match, "answer"),
    Metric(
        "answer_words",
        "the response contains the words, numbers and signs of an answer, in any script and form of Unicode",
        contains_answer,
        "answer",
    ),
    Metric("f1", "token F1 with the answer that fits best", f1),
    Metric(
        "litm",
        "the response's first line contains an answer, as Lost in the Middle has it",
        lost_in_the_middle,
        "answer",
        stop=("\n",),
    ),
    Metric("contains_any", "the response contains an answer as written", contains_any, "answer"),
    Metric(
        "sole_answer",
        "the response names an answer as written, and no other candidate of the prompt",
        sole_answer,
        "end",
    ),
    Metric(
        "key_words", "the share of an answer's key words in the response, for answers that are sentences", key_words
    ),
    Metric("numeric", "the response's last number is an answer's", numeric),
    Metric("regex", "the response has a match of an answer, which is a regular expression", matches_pattern),
    Metric("all_of", "the response contains the words of every answer, which are parts of one", all_of, of_parts=True),
    Metric("share_of", "the share of such parts that the response contains", share_of, of_parts=True),
    Metric("set_em", "the response lists every such part and nothing else", set_match, of_parts=True),
)
