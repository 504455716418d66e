"""Finds the characters and tokens of the gold documents in a prompt."""

from functools import partial

from posgap.foundation.errors import PosgapError
from posgap.tasks.document_spans import characters, overlap, token_offsets
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder


def gold_spans(builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[tuple[int, int]]:
    """The characters [start, end) of each gold document, title and text, in the prompt's text."""
    documents = builder.documents(example, placement)
    gold = {document: place for place, document in enumerate(example.gold)}
    where = [position for position, document in enumerate(documents, start=1) if document in gold]
    return [
        characters(partial(builder.word_prompt, example), documents, position)
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
    tokens: set[int] = set()
    for span in spans:
        tokens.update(index for index, offset in enumerate(offsets) if overlap(offset, span))
    return sorted(tokens)
