"""Mitigations that ask a question over its documents in other orders: reversed, by relevance, fewer of them, and
several at random with a vote on the answer (permutation self-consistency)."""

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posgap.mitigations.mitigation import PromptMitigation, ReorderInput, Settings
from posgap.tasks.examples import AnyExample, Document, RankedExample
from posgap.tasks.metrics import normalize

_ANYWHERE = ("transformers", "vllm", "endpoints")


_REORDER = """def reorder(passages):
    return {returned}
"""


class NoSettings(Settings):
    """Nothing can be chosen."""


class ReversedOrder(PromptMitigation):
    name = "reversed"
    help = "the documents in the reverse order, the last one first"
    level = "prompt"
    source = "a baseline: what stood last stands first"
    cost = "nothing"
    served_by = _ANYWHERE
    settings = NoSettings

    def order_documents(self, given: ReorderInput, settings: NoSettings) -> Sequence[Sequence[Document]]:
        return [list(reversed(given.documents))]

    def write_code(self, settings: NoSettings) -> str:
        return _REORDER.format(returned="passages[::-1]")


class Relevance(Settings):
    """The place of the most relevant documents: at both `ends` of the prompt, the least relevant in its middle, or
    `first`, or `last`."""

    most: Literal["ends", "first", "last"] = "ends"


def at_ends(ranked: Sequence[Document]) -> list[Document]:
    """Reorders documents, given most relevant first: the first stays first, the second goes last, the third second ...

    LangChain's LongContextReorder has the same order of an odd number of documents, and its mirror image of an even
    one; Haystack's LostInTheMiddleRanker has this.
    """
    return [*ranked[::2], *ranked[1::2][::-1]]


def by_relevance(example: AnyExample, documents: Sequence[Document]) -> list[Document]:
    """Sorts documents by relevance to the question, the most relevant first, without knowing the gold ones.

    The order is the retriever's for retrieved examples, else BM25's over title and text among these documents; ties
    keep the given order.
    """
    from posgap.data.distractors import relevance

    if isinstance(example, RankedExample):
        ranks = {passage.document: rank for rank, passage in reversed([*enumerate(example.passages)])}
        return sorted(documents, key=lambda document: ranks.get(document, len(ranks)))
    scores = relevance(example.question, documents)
    return [documents[i] for i in sorted(range(len(documents)), key=lambda i: -scores[i])]


_RELEVANCE_CODE = {
    "ends": "passages[::2] + passages[1::2][::-1]",
    "first": "list(passages)  # keep your retriever's order: this model reads the first place best",
    "last": "passages[::-1]",
}


class RelevanceOrder(PromptMitigation):
    name = "reordering"
    help = "the documents in the order of their relevance to the question, the most relevant at the ends"
    level = "prompt"
    source = (
        "LongContextReorder of LangChain, LostInTheMiddleRanker of Haystack; Liu et al. 2024, TACL 12:157-173, "
        "section 6; BM25 as Robertson and Zaragoza 2009"
    )
    cost = "ranks the documents, on the CPU"
    served_by = _ANYWHERE
    settings = Relevance
    order_free = True

    def order_documents(self, given: ReorderInput, settings: Relevance) -> Sequence[Sequence[Document]]:
        ranked = by_relevance(given.example, given.documents)
        return [{"ends": at_ends(ranked), "first": ranked, "last": ranked[::-1]}[settings.most]]

    def list_settings(self) -> Sequence[Relevance]:
        return [Relevance(most="ends"), Relevance(most="first"), Relevance(most="last")]

    def write_code(self, settings: Relevance) -> str:
        return _REORDER.format(returned=_RELEVANCE_CODE[settings.most])


class KeptShare(Settings):
    """The share of the passages that is kept, of the best ranked; at least one."""

    share: float = Field(0.5, gt=0, le=1)


class FewerDocuments(PromptMitigation):
    name = "fewer"
    help = "the best-ranked share of the passages alone"
    level = "prompt"
    source = "Liu et al. 2024, TACL 12:157-173, section 5: readers gain little from more passages"
    cost = "nothing"
    served_by = _ANYWHERE
    settings = KeptShare
    order_free = True
    needs_ranks = True

    def order_documents(self, given: ReorderInput, settings: KeptShare) -> Sequence[Sequence[Document]]:
        ranked = by_relevance(given.example, given.documents)
        return [ranked[: math.ceil(settings.share * len(ranked))]]

    def list_settings(self) -> Sequence[KeptShare]:
        return [KeptShare(), KeptShare(share=0.25)]

    def write_code(self, settings: KeptShare) -> str:
        return f"""import math

def reorder(passages):
    return passages[: math.ceil({settings.share!r} * len(passages))]
"""


class RepeatedDocuments(PromptMitigation):
    name = "repeated"
    help = "the documents twice, one after the other"
    level = "prompt"
    source = "Just read twice: Arora et al. 2024, arXiv 2407.05483, section 3"
    cost = "nearly twice the tokens of a prompt"
    served_by = _ANYWHERE
    settings = NoSettings
    needs_ranks = True

    def order_documents(self, given: ReorderInput, settings: NoSettings) -> Sequence[Sequence[Document]]:
        return [[*given.documents, *given.documents]]

    def write_code(self, settings: NoSettings) -> str:
        return _REORDER.format(returned="[*passages, *passages]")


_ANSWER = "Answer:"
_QUOTE_FIRST = (
    "First copy, word for word, the sentence of the passages that answers this. Then write, on a line of its own, "
    f'"{_ANSWER}" and the answer alone.'
)
_QUOTED = f"""def quoted(question):
    return question + {f" {_QUOTE_FIRST}"!r}

def behind(text):
    return text.rpartition({_ANSWER!r})[2].strip() or text
"""


class QuotedFirst(PromptMitigation):
    name = "quoted"
    help = "the documents as they are, with the sentence that answers to be copied before the answer"
    level = "decoding"
    source = "Anthropic's advice on long contexts: quotes before the answer; a wording of ours"
    cost = "the tokens of a sentence before each answer"
    served_by = _ANYWHERE
    settings = NoSettings
    needs_ranks = True
    call = "behind(text_of(answer(quoted(question), passages)))"

    def order_documents(self, given: ReorderInput, settings: NoSettings) -> Sequence[Sequence[Document]]:
        return [list(given.documents)]

    def word_question(self, question: str) -> str:
        return f"{question} {_QUOTE_FIRST}"

    def read_response(self, response: str) -> str:
        return response.rpartition(_ANSWER)[2].strip() or response

    def write_code(self, settings: NoSettings) -> str:
        return _QUOTED


class Orders(Settings):
    """The number of random orders of its documents in which a question is asked; all of them if there are no more."""

    orders: int = Field(5, ge=1, le=100)


def majority(responses: Sequence[str]) -> int:
    """Returns the index of the first of the most frequent responses, as SQuAD normalises them; in a tie, the earliest.
    An empty response does not count, unless all are empty."""
    # SQuAD drops articles, and "A" is an option's letter too.
    said = [normalize(response) or " ".join(re.findall(r"\w+", response.lower())) for response in responses]
    votes = Counter(filter(None, said)) or Counter(said)
    ((most, _),) = votes.most_common(1)  # it keeps the order of arrival
    return said.index(most)


_VOTE = """import random
import re
from collections import Counter

def shuffles(passages, orders={orders}):
    return [random.Random(seed).sample(passages, len(passages)) for seed in range(orders)]

def said(text):
    words = re.sub(r"[^\\w\\s]", "", text.lower()).split()
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)

def vote(texts):
    votes = Counter(filter(None, map(said, texts)))
    return max(texts, key=lambda each: votes[said(each)])
"""


class PermutationVote(PromptMitigation):
    name = "permutation"
    help = "several random orders of the documents, and the answer that most of them give"
    level = "decoding"
    source = (
        "permutation self-consistency: Tang et al. 2024, arXiv 2310.07712, section 2; votes as Wang et al. 2023, "
        "arXiv 2203.11171, since single answers have no ranking to aggregate"
    )
    cost = "a prompt and an answer for each order"
    served_by = _ANYWHERE
    settings = Orders
    call = "vote([text_of(answer(question, order)) for order in shuffles(passages)])"

    def order_documents(self, given: ReorderInput, settings: Orders) -> Sequence[Sequence[Document]]:
        """Returns different orders, drawn for the example: at every placement its slots are shuffled alike."""
        drawn: dict[tuple[int, ...], list[Document]] = {}
        random_slots = random.Random(f"permutation {given.seed} {given.example.id}")
        slots = list(range(len(given.documents)))
        while len(drawn) < min(settings.orders, math.factorial(len(slots))):
            random_slots.shuffle(slots)
            drawn[tuple(slots)] = [given.documents[slot] for slot in slots]
        return list(drawn.values())

    def choose_response(self, responses: Sequence[str]) -> int:
        return majority(responses)

    def list_settings(self) -> Sequence[Orders]:
        return [Orders(orders=3), Orders(orders=5)]

    def write_code(self, settings: Orders) -> str:
        return _VOTE.format(orders=settings.orders)


REVERSED = ReversedOrder()
REORDERING = RelevanceOrder()
FEWER = FewerDocuments()
PERMUTATION = PermutationVote()
REPEATED = RepeatedDocuments()
QUOTED = QuotedFirst()
