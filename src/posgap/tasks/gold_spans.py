"""Finds the characters and tokens of the gold documents in a prompt."""

from collections.abc import Sequence

from posgap.foundation.errors import PosgapError
from posgap.tasks.document_spans import characters, token_offsets
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder


def gold_spans(builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[tuple[int, int]]:
    """The characters [start, end) of each gold document, title and text, in the prompt's text."""
    documents = builder.documents(example, placement)
    gold = {document: place for place, document in enumerate(example.gold)}
    where = [position for position, document in enumerate(documents, start=1) if document in gold]
    return [
        characters(lambda shown: builder.word_prompt(example, shown), documents, position)
        for position in sorted(where, key=lambda position: gold[documents[position - 1]])
    ]


def gold_tokens(builder: PromptBuilder, example: AnyExample, placement: Placement) -> list[int]:
    """The indices, in the prompt's token ids, of the tokens that contain a character of a gold document."""
    text, prompt = builder.text(example, placement), builder(example, placement)
    try:
        offsets = token_offsets(builder.tokenizer, builder.chat, text, prompt)
    except PosgapError as error:
        raise PosgapError(f"{error}; diagnose with `attention` 0") from None
    spans = gold_spans(builder, example, placement)
    return [i for i, each in enumerate(offsets) if any(_overlap(each, span) for span in spans)]


def _overlap(a: Sequence[int], b: Sequence[int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
