"""Finds where a response ends, besides its end token: at a stop string, or at a limit on its thoughts or its answer.

Every local backend reads token ids in this one way, so that all agree on what is scored.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

from posgap.foundation.heavy_types import PreTrainedTokenizerBase
from posgap.generation.generator import Completion, Sampling, Usage
from posgap.generation.thoughts import TAGS, SplitResponse, split_thoughts

_MARKS = (*TAGS, *TAGS.values())
_TOKENS = 4  # that a character can take, one for each of its bytes


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text, stripped, up to the first of the stop strings that stands after other text in it."""
    return text.lstrip()[: _stop_at(text, stop)].rstrip()


def _stop_at(text: str, stop: Sequence[str]) -> int | None:
    """Returns the index at which the first of these strings begins in the text, stripped on the left; None if there is
    none.
    """
    begins = [text.lstrip().find(string, 1) for string in stop]
    return min((at for at in begins if at >= 0), default=None)


class ResponseStream:
    """Reads one response as its tokens come. It is `over` after its end token, after a stop string, and, if thoughts
    have their own limit, after either limit. Nothing is scored after that.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int], sampling: Sampling):
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self.sampling = sampling
        self.ids: list[int] = []
        self.over = self.cut = False
        self._thinking = bool(sampling.opened)
        self._decided = False
        self._thought_end = 0  # tokens of thoughts, with their tags

    def take(self, token: int) -> bool:
        """Reads the next token; returns whether the response is over."""
        self.ids.append(token)
        if token in self.end_ids:
            self.over = True
        elif self.sampling.ends_early:
            self._check_end()
        return self.over

    def take_all(self, tokens: Iterable[int]) -> None:
        """Reads tokens until the response is over; what a backend has generated beyond that counts for nothing."""
        next(filter(self.take, tokens), None)

    def completion(self, prompt_tokens: int | None = None) -> Completion:
        """Returns the response so far as a completion of a prompt of this many tokens; unless it is over, a limit cut
        it off."""
        thoughts, answer, _ = self._split()
        stopped = _stop_at(answer, self.sampling.stop) is not None
        cut = not stopped and (self.cut or not self.over)
        usage = Usage(prompt_tokens, len(self.ids), self._thinking_tokens() if thoughts else 0)
        return Completion.from_text(before_stop(answer, self.sampling.stop), self.ids, cut, thoughts, usage)

    def _thinking_tokens(self) -> int:
        """Returns the number of tokens before the answer's: thoughts and their tags."""
        answer = split_thoughts(self._text_with_tags(), self.sampling.opened or "").answer
        rest = range(len(self.ids) if answer else 0)  # which begin the rest of the response, ever shorter
        begins = bisect_right(rest, -len(answer), key=lambda first: -len(self._text_with_tags(first)))
        return begins - 1 if answer else len(self.ids)

    def _check_end(self) -> None:
        if not self._decided and (not self._thinking or self._ends_with(TAGS.values())):
            self._decide()
        if self._thinking:
            self.over = self.cut = 0 < self.sampling.max_thinking_tokens <= len(self.ids)
        elif self._decided and self._ends_with(self.sampling.stop):
            self.over = _stop_at(self._split().answer, self.sampling.stop) is not None
        if not self.over and not self._thinking and self.sampling.max_thinking_tokens:
            self.over = self.cut = len(self.ids) - self._thought_end >= self.sampling.max_new_tokens

    def _decide(self) -> None:
        """Decides whether a thought or the answer comes, from the first text that is no tag."""
        was_thinking = self._thinking
        _, answer, ended = self._split()
        self._thinking = not ended
        if was_thinking and ended:
            self._thought_end = len(self.ids)
        self._decided = ended and not any(mark.startswith(answer) for mark in _MARKS)

    def _ends_with(self, strings: Iterable[str]) -> bool:
        """Returns whether one of the strings may have ended with the last token."""
        strings = list(strings)
        last = self.ids[-_TOKENS * (1 + max(map(len, strings), default=0)) :]
        text = str(self.tokenizer.decode(last, skip_special_tokens=False))
        return any(string in text for string in strings)

    def _text_with_tags(self, first: int = 0) -> str:
        """The text with its special tokens, from this token on."""
        return str(self.tokenizer.decode(self.ids[first:], skip_special_tokens=False))

    def _split(self) -> SplitResponse:
        # Some models' tags are special tokens, which plain text leaves out.
        marked = self._text_with_tags()
        parts = split_thoughts(marked, self.sampling.opened or "")
        if parts == ("", marked.lstrip(), True):
            return SplitResponse("", str(self.tokenizer.decode(self.ids, skip_special_tokens=True)))
        return SplitResponse(
            self._drop_special_tokens(parts.thoughts), self._drop_special_tokens(parts.answer), parts.ended
        )

    def _drop_special_tokens(self, text: str) -> str:
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text
