"""Identifies an example by its content, regardless of its file, its id there and the order of its documents.

This decides whether a model was trained on its evaluation examples, and whether two models got the same ones.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.locations import Location
from posgap.foundation.printing import format_count
from posgap.tasks.examples import AnyExample, KVExample, RankedExample, distractor_texts, gold_texts

DIGITS = 16  # hex digits of a content, 64 bits: among a million examples two agree by chance once in 37 million
TELLING = 40  # characters of a gold document or a record that two examples do not have in common by chance
UNMISTAKABLE = 100  # characters of question, answers and gold documents that do not agree by chance


def content_key(example: AnyExample) -> str:
    """The example's content as 16 hex digits, equal for two examples that ask the same.

    It covers question, answers and gold documents; distractors do not count. If these are short (a synthetic fact of
    two words), different examples share them by chance, so the distractors count too. Case, white space and the order
    of answers and documents do not matter.
    """
    parts = [
        [_fold(example.question)],
        sorted({_fold(answer) for answer in example.answers}),
        _fold_documents(gold_texts(example)),
    ]
    if len("".join(chain.from_iterable(parts))) < UNMISTAKABLE:
        parts.append(_fold_documents(distractor_texts(example)))
    return digest_of(parts)[:DIGITS]


def content_keys(examples: Iterable[AnyExample]) -> list[str]:
    """The content of each example, in their order."""
    return [content_key(example) for example in examples]


def find_groups(examples: Iterable[AnyExample], contents: Iterable[str] = ()) -> list[list[str]]:
    """Returns the groups, of two or more, of related examples, as their contents in order. `contents` are the examples'
    contents, if you have them.

    Two examples are related if they share a question with its answers, a gold document or a record, or if both are
    related to a third: a model's answer to one tells something about the others. Short documents and records agree by
    chance and do not count.
    """
    groups: dict[str, list[str]] = {}  # of each content, its group
    owners: dict[tuple, str] = {}
    examples = list(examples)
    for example, content in zip(examples, contents or content_keys(examples)):
        groups.setdefault(content, [content])
        for tie in _list_ties(example):
            group = groups[content]
            other = groups[owners.setdefault(tie, content)]
            if group is not other:
                group += other
                groups.update(dict.fromkeys(other, group))
    tied = {id(group): sorted(group) for group in groups.values() if len(group) > 1}
    return sorted(tied.values())


def _list_ties(example: AnyExample) -> Iterator[tuple]:
    """Yields what an example may share with others that hang together with it."""
    # Differing punctuation does not make a different question.
    words = re.findall(r"\w+", _fold(example.question)) or [example.question]
    yield "question", " ".join(words), *sorted({_fold(answer) for answer in example.answers})
    documents = gold_texts(example)
    if isinstance(example, KVExample):
        documents = example.records
    for text in _fold_documents(documents):
        if len(text) >= TELLING:
            yield "document", text


def require_different(examples: Sequence[AnyExample]) -> None:
    """Raises `PosgapError` that names two examples of one content, if there are such."""
    ids: dict[str, str] = {}
    for content, example in zip(content_keys(examples), examples):
        if content in ids:
            raise PosgapError(
                f"examples {ids[content]} and {example.id} have the same question, answers and gold documents; "
                "leave one out"
            )
        ids[content] = example.id


def examples_digest(examples: Iterable[AnyExample], n_docs: int, shuffle: int = 0) -> str:
    """Returns the sha256 of what these examples put into prompts of `n_docs` documents, independent of their order and
    file; 0 stands for all their documents.

    Distractors count as they stand in the prompt: harder ones make a harder question. A `shuffle` orders them by the
    example's id.
    """
    return digest_of(sorted(digest_of(_prompt_content(example, n_docs, shuffle)) for example in examples))


def with_content_keys(examples: Iterable[AnyExample], contents: Iterable[str]) -> list[AnyExample]:
    """Returns the examples whose content is one of `contents`."""
    contents = set(contents)
    return [example for example in examples if content_key(example) in contents]


def refuse_shared(examples: Iterable[AnyExample], others: Iterable[AnyExample], where: Location, instead: str) -> None:
    """Raises `PosgapError` if some of the examples `where` are among `others`, which evaluate; `instead` says how to
    use other examples."""
    shared = with_content_keys(examples, content_keys(others))
    if shared:
        raise PosgapError(
            f"{where}: shares {format_count(len(shared), 'example')} with the evaluation ({shared[0].id}, ...); "
            f"{instead} on other examples"
        )


def _prompt_content(example: AnyExample, n_docs: int, shuffle: int) -> list:
    gold = gold_texts(example)
    distractors = distractor_texts(example)
    used = distractors[: n_docs - len(gold)] if n_docs else distractors
    documents = [{"title": title, "text": text} for title, text in gold + used]
    asked = [example.question, sorted(example.answers), len(gold), documents, example.id if shuffle else ""]
    if isinstance(example, RankedExample):
        asked.append(_marks(example, n_docs - len(gold)))  # some keep the retriever's place
    return asked


def _marks(example: RankedExample, others: int) -> list[bool]:
    """Marks which of a prompt's passages are relevant, in the retriever's order: all relevant ones and this many
    others."""
    marks: list[bool] = []
    for passage in example.passages:
        if passage.relevant or marks.count(False) < others:
            marks.append(passage.relevant)
    return marks


def _fold_documents(documents: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{_fold(title)}\n{_fold(text)}" for title, text in documents)


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
