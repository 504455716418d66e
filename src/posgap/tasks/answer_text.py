"""The one normalisation of posgap's own metric: what numbers, signs and symbols survive, in any script.

Texts become words. A text contains an answer if its words occur in it one after the other, on the word boundaries of
their script. The public scripts' normalisations are in `posgap.tasks.metrics`, by the names of these.
"""

import html
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

# Thai to Myanmar, Khmer, hiragana and Chinese: scripts that put no spaces between words. Katakana spell out one word.
SPACELESS = r"[\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}\p{Hiragana}\p{Han}]"
_MARKUP = r"</?[A-Za-z][^<>]{0,200}>"
_VOWEL_SIGNS = r"[\u0591-\u05C7\u0610-\u061A\u064B-\u065F\u0670\u06D6-\u06ED\u0640]"  # Hebrew's and Arabic's, tatweel
_INVISIBLE = r"[\p{Cf}\uFE00-\uFE0F]"  # soft hyphens, zero-width signs, marks of direction
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
        **dict.fromkeys("‘’‚‛′ʼʹ`´＇", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **{"⁄": "/", "∕": "/", "ي": "ی", "ى": "ی", "ك": "ک", "ı": "i", "_": " ", "*": "", "&": " and "},
        **{"٪": "%", "٫": ".", "٬": ","},
    }
)
_UNITS = (
    r"(?:km|cm|mm|nm|µm|μm|m|kg|mg|g|ml|l|s|ms|min|h|hz|khz|mhz|ghz|kw|mw|gw|w|v|mph|km/h|kmh|kb|mb|gb|tb|bn|ft|in|lbs?"
    r"|oz|mio|mrd|million|billion)"
)
# Thousands by points, or in India's way; a part of one; thousands by commas or spaces, with a part.
_NUMBER = (
    r"(?:\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\.\d+"
    r"|\d{1,3}(?:(?:,\d{3})+|(?:[ '\u00A0\u2009\u202F]\d{3})+)(?!\d)|\d+)(?:\.\d+)*(?:,\d{1,2}(?!\d))?"
)
_OTHER = rf"(?!{SPACELESS}|\p{{Katakana}}|\p{{Hangul}})"
# A word: a number with its sign, or some that make a range, a date, a time or a fraction; a character of a script
# without spaces; a word of katakana; letters with what is part of them, as in u.s, o'dell and c++; or a sign.
_WORD = (
    rf"(?P<number>(?<!{_OTHER}[\p{{L}}\p{{N}}]\.?)-?{_NUMBER}(?:[-/:]{_NUMBER})*(?:st|nd|rd|th)?(?=[^\p{{L}}\p{{N}}]|$"
    rf"|{_UNITS}\b|{SPACELESS}|\p{{Hangul}}|\p{{Katakana}}))"
    rf"|(?P<spaceless>{SPACELESS}\p{{M}}*)"
    r"|(?P<katakana>[\p{Katakana}ー]+)"
    rf"|(?P<letters>(?:(?!{SPACELESS}|\p{{Katakana}})(?:[\p{{L}}\p{{N}}\p{{M}}]|(?<=[\p{{L}}\p{{N}}\p{{M}}])[.'](?=[\p{{L}}\p{{N}}])))+"
    r"(?:\+\+|\+(?!\w)|\#)?)"
    r"|(?P<sign>[%$€£¥₹₩₽°=<>@§^~|©®™]|\p{So})"
)
_HYPHEN = r"(?<=\p{L})-(?=[\p{L}\d])"
_ABBREVIATION = r"\b(?:\p{Lu}\p{Ll}?\.){2,}|\b(?:\p{Lu}\.)+\p{Lu}\b"
_LEFT_OUT = ("the",)
# What may surround an answer's word within a longer one: Korean particles, a genitive or a case behind an apostrophe;
# elisions, and the proclitics of Arabic and Hebrew.
_PARTICLES = (
    r"(?:은|는|이|가|을|를|의|에|에서|에게|로|으로|와|과|도|만|까지|부터|보다|처럼|께서|한테|이나|나|이며|며|이고|고|입니다|이다|다"
    r"|이에요|예요|이었다|였다|이었습니다|였습니다|이라고|라고|이라는|라는|인|이란|란|이야|야|요){1,3}"
)
_CASE = r"'\p{L}{1,4}"
_ELISION, _PROCLITIC = r"(?:l|d|qu|un|dell|all|nell|sull|dall)'", r"[وفبلك]{1,2}|[ובלמשכה]{1,2}"
_DATE = r"(\d{4})-\d\d?-\d\d?"


def stands_in(answer: str, text: str) -> bool:
    """Returns whether the words of an answer occur in a text one after the other.

    An answer without a word, like "The The" or "-", must stand there verbatim, in any case.
    """
    forms = _forms(answer)
    if not forms[0]:
        return _fold(answer).strip() in _fold(text) if answer.strip() else False
    # Few texts have the longest word of an answer, and only these take the time to be parted into words.
    longest = max((_letters(word).lstrip("0") for word in forms[1]), key=len)
    if longest not in _letters(text):
        return False
    return any(_has_run(words, written) for words, written in zip(forms, _forms(text)))


@lru_cache(maxsize=4096)
def _letters(text: str) -> str:
    """The letters and digits of a text, one after the other."""
    return compile_pattern(r"[\W_\p{M}\u0640]+").sub("", _fold(_plain_text(text)))


def _plain_text(text: str) -> str:
    """A text without markup and entities, its signs and digits in one form."""
    if "<" in text:
        text = compile_pattern(_MARKUP).sub("", text)
    text = compile_pattern(r"(?<=\d)(?=[½⅓⅔¼¾⅛⅜⅝⅞])").sub(" ", html.unescape(text))
    text = compile_pattern(r"(?<=\d)(?=[⁰¹²³⁴⁵⁶⁷⁸⁹])(?<![⁰¹²³⁴⁵⁶⁷⁸⁹])").sub("^", text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    return compile_pattern(r"[^\P{Nd}0-9]").sub(lambda digit: str(unicodedata.digit(digit[0])), text)


@lru_cache(maxsize=1024)
def _forms(text: str) -> tuple[tuple[str, ...], ...]:
    """Returns the words of a text with spaces for hyphens between letters; without such hyphens; and without the points
    of abbreviations, if a word in capitals differs from the same in small letters."""
    shown = compile_pattern(f"{_INVISIBLE}|{_VOWEL_SIGNS}").sub("", _plain_text(text))
    shown = compile_pattern(r"(?<=\p{Ll}\p{Ll})\.(?=\p{Lu})").sub(". ", shown)
    shown = compile_pattern(r"\b(\p{Lu})\. (?=\p{Lu}\.)").sub(r"\1.", shown)  # J. R. R. Tolkien
    shown = compile_pattern(r"(?i)(?<=\d)\s*(?:percent|per cent)\b").sub("%", shown)
    shown = compile_pattern(r"(?i)\bminus (?=\d)").sub("-", shown)
    shown = compile_pattern(r"(?<=\d) - (?=\d)").sub("-", shown)
    shown = compile_pattern(r"(?<![€£¥₹₩₽$\d.,])(\d[\d.,]*)\s?([€£¥₹₩₽$])(?!\d)").sub(r"\2\1", shown)
    parted = compile_pattern(_HYPHEN).sub(" ", shown)
    plain = _words(_fold(parted))
    joined = _words(_fold(compile_pattern(_HYPHEN).sub("", shown))) if parted != shown else plain
    short = compile_pattern(_ABBREVIATION).sub(lambda points: points[0].replace(".", "") + " ", parted)
    return plain, joined, _words(short)


def _words(text: str) -> tuple[str, ...]:
    """The words of a text; those in capitals that may be abbreviations stay so."""
    words: list[str] = []
    for match in compile_pattern(_WORD).finditer(text):
        word = match[0]
        if match.lastgroup == "number":
            word = _number(word)
        elif not (1 < len(word) < 6 and word.isupper()):
            word = _fold(word)
        if word not in _LEFT_OUT:
            words.append(word)
    return tuple(words)


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text.casefold()).replace("i\u0307", "i").replace("ı", "i")


def _number(written: str) -> str:
    """Returns a number in its standard form: 12,500 and 12 500 as 12500, 1994.0 as 1994, 3,5 as 3.5."""
    if compile_pattern(r"-?\d+(?:\.\d{3}){2,}").fullmatch(written):
        return written.replace(".", "")
    plain = (
        compile_pattern(r"(?<=\d)[, '\u00A0\u2009\u202F](?=(?:\d\d,)*\d{3}(?!\d))").sub("", written).replace(",", ".")
    )
    plain = compile_pattern(r"^(-?)\.").sub(r"\g<1>0.", plain)
    return compile_pattern(r"^(-?\d+)\.0+$").sub(r"\1", plain)


def _has_run(answer: Sequence[str], text: Sequence[str]) -> bool:
    if answer[0] in ("a", "an") and len(answer) > 1:
        answer = answer[1:]
    last = len(answer) - 1
    for at in range(len(text) - last):
        if text[at + 1 : at + last] != answer[1:-1]:
            continue
        if not last:
            is_there = _is_word(answer[0], text[at], may_begin=True, may_go_on=True)
        else:
            is_there = _is_word(answer[0], text[at], may_begin=True)
            is_there = is_there and _is_word(answer[-1], text[at + last], may_go_on=True)
        if is_there:
            return True
    return False


def _is_word(answer: str, word: str, may_begin: bool = False, may_go_on: bool = False) -> bool:
    """Returns whether a word is an answer's word, or contains it with only allowed text around it."""
    if answer == word:
        return True
    if answer.isdecimal():
        date = compile_pattern(_DATE).fullmatch(word)
        return date is not None and date[1] == answer
    before, found, behind = word.partition(answer)
    if not found or (before and not may_begin) or (behind and not may_go_on):
        return False
    may_precede = len(answer) > 2 and compile_pattern(_PROCLITIC).fullmatch(before)
    if before and not may_precede and not compile_pattern(_ELISION).fullmatch(before):
        return False
    if behind and compile_pattern(r"\p{Hangul}").match(answer[-1]):
        return compile_pattern(_PARTICLES).fullmatch(behind) is not None
    return not behind or (len(answer) > 1 and compile_pattern(_CASE).fullmatch(behind) is not None)


@cache
def compile_pattern(text: str) -> "regex.Pattern[str]":
    """The compiled pattern of a text, each once."""
    import regex  # which takes a while, and not every command scores

    return regex.compile(text)
