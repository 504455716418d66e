"""Distractors from the gold documents of other questions, drawn at random or ranked by BM25 (the library bm25s)."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count

import numpy as np

from posgap.tasks.answer_text import SPACELESS
from posgap.tasks.examples import Document, Example, Passage, RankedExample
from posgap.tasks.metrics import holds_answer


def with_distractors(examples: Sequence[Example], n_docs: int, seed: int) -> Iterator[Example | None]:
    """Yields each example with `n_docs` documents: its own gold documents, and distractors drawn for it.

    Distractors are drawn without replacement from the gold documents of all examples, except the example's own and
    those that contain one of its answers (both normalised). The draw depends only on the seed, the example's place
    and the pool. Yields None for an example that has too few candidates: an answer like "A", for instance, is
    contained in every passage.
    """
    pool = _gold_documents(examples)
    for place, example in enumerate(examples):
        order = np.random.default_rng([seed, place]).permutation(len(pool))
        drawn = first_distractors((pool[place] for place in order), example, n_docs)
        yield None if drawn is None else example.model_copy(update={"distractors": drawn})


def _gold_documents(examples: Iterable[Example]) -> list[Document]:
    """The gold documents of all examples, each once."""
    return list(dict.fromkeys(chain.from_iterable(example.gold for example in examples)))


def first_distractors(documents: Iterable[Document], example: Example, n_docs: int) -> list[Document] | None:
    """Returns the first non-gold documents without an answer, enough for a prompt of `n_docs` with the gold ones; None
    if there are too few."""
    needed = n_docs - len(example.gold)
    found = list[Document]()
    for document in documents:
        if len(found) >= needed:
            break
        if document not in example.gold and not holds_answer(document, example.answers):
            found.append(document)
    return found if len(found) >= needed else None


def with_ranked_distractors(examples: Sequence[Example], n_docs: int) -> Iterator[Example | RankedExample | None]:
    """Yields each example with `n_docs` documents: its own gold documents, and the passages that BM25 ranks highest for
    its question among the gold documents of all examples.

    Passages that contain one of its answers (both normalised) are left out. An example with one gold document becomes a
    ranked one, with BM25's scores and the gold document at its own rank, or last if its rank is lower. Several gold
    documents keep their order, which may be the order of reasoning. Titles count as text. Equal arguments give equal
    examples. Yields None for an example that has too few candidates.
    """
    pool = _gold_documents(examples)
    place = dict(zip(pool, count()))
    relevance_of = _bm25(pool)
    for example in examples:
        scores = relevance_of(example.question)
        order = np.argsort(-scores, kind="stable")
        hard = first_distractors((pool[place] for place in order), example, n_docs)
        if hard is None:
            yield None
        elif len(example.gold) == 1:
            chosen = sorted([*hard, *example.gold], key=lambda document: (-scores[place[document]], place[document]))
            passages = []
            for document in chosen:
                score = float(scores[place[document]])
                relevant = document in example.gold
                passages.append(Passage(title=document.title, text=document.text, score=score, relevant=relevant))
            yield RankedExample(
                id=example.id, question=example.question, answers=example.answers, passages=passages, relevance="label"
            )
        else:
            yield example.model_copy(update={"distractors": hard})


def relevance(question: str, documents: Sequence[Document]) -> list[float]:
    """BM25's score of each of these documents for a question, `[n_docs]`, counted among them; titles count as text."""
    return [float(score) for score in _bm25(documents)(question)]


def spell_bigrams(text: str) -> str:
    """Returns a text with the letters of scripts without spaces in pairs, which BM25 takes for words."""
    import regex

    def pairs(run: "regex.Match[str]") -> str:
        letters = regex.sub(r"\p{M}", "", run[0])  # which words of `bm25s` do not have
        return " ".join(["", *(letters[at : at + 2] for at in range(max(1, len(letters) - 1))), ""])

    spaceless = rf"{SPACELESS}|\p{{Katakana}}"
    return regex.sub(rf"(?:{spaceless})(?:{spaceless}|[\p{{M}}ー])*", pairs, unicodedata.normalize("NFKC", text))


def _bm25(documents: Sequence[Document]) -> Callable[[str], np.ndarray]:
    """Returns a function that scores each of these documents `[n_docs]` for a question; all scores are 0 if the
    documents or the question have no words."""
    import bm25s

    texts = [spell_bigrams(f"{document.title} {document.text}") for document in documents]
    words = bm25s.tokenize(texts, stopwords="en", show_progress=False)
    ranking = bm25s.BM25()
    if words.vocab:
        ranking.index(words, show_progress=False)

    def scores(question: str) -> np.ndarray:
        plain = spell_bigrams(question)
        asked = bm25s.tokenize([plain], stopwords="en", return_ids=False, show_progress=False)[0]
        return ranking.get_scores(asked) if asked and words.vocab else np.zeros(len(documents))

    return scores
