"""Finds the characters and tokens of the gold documents in a prompt."""

from collections.abc import Sequence

from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.framing import common_beginning
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder


def gold_spans(build: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[tuple[int, int]]:
    """The characters [start, end) of each gold document, title and text, in the prompt's text.

    They are the range in which the prompt differs from the same prompt with an empty document, so the task's way of
    writing documents need not be known.
    """
    documents = build.documents(example, placement)
    whole, spans = build.worded(example, documents), []
    gold = {document: place for place, document in enumerate(example.gold)}
    where = [position for position, document in enumerate(documents, start=1) if document in gold]
    for position in sorted(where, key=lambda position: gold[documents[position - 1]]):
        without = [*documents[: position - 1], Document(title="", text=""), *documents[position:]]
        rest = build.worded(example, without)
        start = common_beginning(whole, rest)
        # Compare only behind `start`: a document that begins like the text behind it would be counted twice.
        same = common_beginning(whole[start:][::-1], rest[start:][::-1])
        spans.append((start, len(whole) - same))
    return spans


def gold_tokens(build: PromptBuilder, example: AnyExample, placement: Placement) -> list[int]:
    """The indices, in the prompt's token ids, of the tokens that contain a character of a gold document."""
    if not build.tokenizer.is_fast:
        raise PosgapError(
            "the tokenizer is a slow one, which cannot say which tokens belong to the gold documents; diagnose with "
            "`attention` 0"
        )
    text, prompt = build.text(example, placement), build(example, placement)
    whole, before = text, 0
    if build.chat:
        whole = build.chat(text)
        before = whole.find(text)
    read = build.tokenizer(whole, add_special_tokens=not build.chat, return_offsets_mapping=True)
    if before < 0 or read["input_ids"] != prompt:
        raise PosgapError(
            "the chat template rewrites the prompt, so its gold documents cannot be found among the tokens; diagnose "
            "with `attention` 0"
        )
    spans = [(start + before, end + before) for start, end in gold_spans(build, example, placement)]
    return [i for i, offsets in enumerate(read["offset_mapping"]) if any(_overlap(offsets, span) for span in spans)]


def _overlap(a: Sequence[int], b: Sequence[int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
