"""Finds the characters and the tokens of documents in a prompt."""

from collections.abc import Callable, Sequence

from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import PreTrainedTokenizerBase
from posgap.tasks.examples import Document
from posgap.tasks.framing import ChatTemplate, common_beginning

Span = tuple[int, int]


def characters(worded: Callable[[Sequence[Document]], str], documents: Sequence[Document], position: int) -> Span:
    """The characters [start, end), in `worded(documents)`, of the document at `position`, counted from 1.

    They are its title and text: the range that differs if the document is empty. So this need not know how the task
    writes documents.
    """
    whole = worded(documents)
    rest = worded([*documents[: position - 1], Document(title="", text=""), *documents[position:]])
    start = common_beginning(whole, rest)
    # Compare only behind `start`: a document that begins like the text behind it would be counted twice.
    same = common_beginning(whole[start:][::-1], rest[start:][::-1])
    return start, len(whole) - same


def token_offsets(
    tokenizer: PreTrainedTokenizerBase, chat: ChatTemplate | None, text: str, ids: Sequence[int]
) -> list[Span]:
    """The characters of `text`, [start, end), that each token of the prompt `ids` has; what the chat template puts
    before and behind the text has places outside of it.

    Raises `PosgapError` if the tokenizer cannot say so, or the template rewrites the text.
    """
    if not tokenizer.is_fast:
        raise PosgapError("the tokenizer is a slow one, which cannot say which tokens belong to a document")
    whole = chat(text) if chat else text
    before = whole.find(text)
    read = tokenizer(whole, add_special_tokens=not chat, return_offsets_mapping=True)
    if before < 0 or list(read["input_ids"]) != list(ids):
        raise PosgapError("the chat template rewrites the prompt, so its documents cannot be found among the tokens")
    return [(start - before, end - before) for start, end in read["offset_mapping"]]


def token_spans(offsets: Sequence[Span], found: Sequence[Span]) -> tuple[Span, ...]:
    """The columns [first, after the last) of the tokens with a character of each range of characters in `found`.

    A token that two documents share is the first one's. Raises `PosgapError` if a document has no token.
    """
    spans: list[Span] = []
    for number, span in enumerate(found, start=1):
        free = spans[-1][1] if spans else 0
        columns = [column for column in range(free, len(offsets)) if overlap(offsets[column], span)]
        if not columns:
            raise PosgapError(f"document {number} has no token of its own, so it cannot be told from its neighbours")
        spans.append((columns[0], columns[-1] + 1))
    return tuple(spans)


def overlap(a: Span, b: Span) -> bool:
    """Whether two ranges [start, end) share a place."""
    return a[0] < b[1] and b[0] < a[1]
