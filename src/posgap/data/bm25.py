"""BM25, by the library bm25s: hard distractors, the passages of other questions that it ranks highest, and the
relevance of a prompt's documents."""

from collections.abc import Iterator, Sequence

import numpy as np

from posgap.data.distractors import first_distractors
from posgap.tasks.examples import Document, Example, Passage, RankedExample


def with_ranked_distractors(examples: Sequence[Example], n_docs: int) -> Iterator[Example | RankedExample | None]:
    """Yields each example with `n_docs` documents: its own gold documents, and the passages that BM25 ranks highest for
    its question among the gold documents of all examples.

    Left out are passages that contain one of its answers (both normalised), which would be no distractors. An example
    with one gold document becomes a ranked one, with BM25's scores and the gold document at its own rank, or last where
    that is lower; the gold documents of others keep their order, which may be that of reasoning. Titles count as text.
    Equal arguments give equal examples. Yields None for an example that has too few candidates.
    """
    import bm25s

    pool = list(dict.fromkeys(document for example in examples for document in example.gold))
    place = {document: i for i, document in enumerate(pool)}
    words = bm25s.tokenize([f"{d.title} {d.text}" for d in pool], stopwords="en", show_progress=False)
    ranking = bm25s.BM25()
    ranking.index(words, show_progress=False)
    questions = bm25s.tokenize(
        [example.question for example in examples], stopwords="en", return_ids=False, show_progress=False
    )
    for example, question in zip(examples, questions):
        scores = ranking.get_scores(question) if question else np.zeros(len(pool))
        order = np.argsort(-scores, kind="stable")
        hard = first_distractors((pool[i] for i in order), example, n_docs)
        if hard is None:
            yield None
        elif len(example.gold) == 1:
            chosen = sorted([*hard, *example.gold], key=lambda document: (-scores[place[document]], place[document]))
            passages = [
                Passage(title=d.title, text=d.text, score=float(scores[place[d]]), relevant=d in example.gold)
                for d in chosen
            ]
            yield RankedExample(
                id=example.id, question=example.question, answers=example.answers, passages=passages, relevance="label"
            )
        else:
            yield example.model_copy(update={"distractors": hard})


def relevance(question: str, documents: Sequence[Document]) -> list[float]:
    """BM25's score of each of these documents for a question, `[n_docs]`, counted among them; titles count as text."""
    import bm25s

    texts = [f"{document.title} {document.text}" for document in documents]
    words = bm25s.tokenize(texts, stopwords="en", show_progress=False)
    asked = bm25s.tokenize([question], stopwords="en", return_ids=False, show_progress=False)[0]
    if not asked or not words.vocab:
        return [0.0] * len(documents)
    ranking = bm25s.BM25()
    ranking.index(words, show_progress=False)
    return [float(score) for score in ranking.get_scores(asked)]
