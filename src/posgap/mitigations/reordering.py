"""Mitigations that change the order of a prompt's documents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from posgap.mitigations.mitigation import Asked, PromptMitigation, Settings
from posgap.tasks.examples import RankedExample

if TYPE_CHECKING:
    from posgap.tasks.examples import AnyExample, Document


class NoSettings(Settings):
    """Nothing can be chosen."""


def _reversed(asked: Asked, settings: NoSettings) -> Sequence[Sequence["Document"]]:
    return [list(reversed(asked.documents))]


REVERSED = PromptMitigation(
    name="reversed",
    help="the documents in the reverse order, the last one first",
    level="prompt",
    source="a baseline: what stood last stands first",
    cost="nothing",
    served_by=("transformers", "vllm", "endpoints"),
    settings=NoSettings,
    orders=_reversed,
    chosen=lambda responses: 0,
    tried=lambda: [NoSettings()],
)


class Relevance(Settings):
    """Where the most relevant documents stand: at both `ends` of the prompt, the least relevant in its middle, or
    `first`, or `last`."""

    most: Literal["ends", "first", "last"] = "ends"


def at_ends(ranked: Sequence["Document"]) -> list["Document"]:
    """Documents of which the most relevant comes first, so that it stands first, the second last, the third second ...

    LangChain's LongContextReorder has the same order of an odd number of documents, and its mirror image of an even
    one; Haystack's LostInTheMiddleRanker has this.
    """
    return [*ranked[::2], *ranked[1::2][::-1]]


def by_relevance(example: "AnyExample", documents: Sequence["Document"]) -> list["Document"]:
    """The documents, the most relevant to the example's question first, whatever is known of which are gold.

    That is the order of the retriever where the example was retrieved, and else that of BM25, by which title and text
    count among these documents; those that are as relevant stay in the order given.
    """
    from posgap.data.bm25 import relevance

    if isinstance(example, RankedExample):
        ranks = {passage.document: rank for rank, passage in reversed([*enumerate(example.passages)])}
        return sorted(documents, key=lambda document: ranks.get(document, len(ranks)))
    scores = relevance(example.question, documents)
    return [documents[i] for i in sorted(range(len(documents)), key=lambda i: -scores[i])]


def _by_relevance(asked: Asked, settings: Relevance) -> Sequence[Sequence["Document"]]:
    ranked = by_relevance(asked.example, asked.documents)
    return [{"ends": at_ends(ranked), "first": ranked, "last": ranked[::-1]}[settings.most]]


REORDERING = PromptMitigation(
    name="reordering",
    help="the documents in the order of their relevance to the question, the most relevant at the ends",
    level="prompt",
    source="LongContextReorder of LangChain, LostInTheMiddleRanker of Haystack; Liu et al. 2024, TACL 12:157-173, "
    "section 6; BM25 as Robertson and Zaragoza 2009",
    cost="ranks the documents, on the CPU",
    served_by=("transformers", "vllm", "endpoints"),
    settings=Relevance,
    orders=_by_relevance,
    chosen=lambda responses: 0,
    tried=lambda: [Relevance(most="ends"), Relevance(most="first"), Relevance(most="last")],
)
