"""Options of `data import`."""

from typing import Literal

from pydantic import Field

from posgap.data.sources import SOURCES
from posgap.foundation.fields import (
    Arguments,
    InputPath,
    OptionalInputPath,
    OutputPath,
)
from posgap.options.base import FileConfig
from posgap.options.verb import Verb

Format = Literal[
    "litm-kv", "litm-qa", "dpr", "hotpotqa", "musique", "2wiki", "own", "document", "rag",
    "mmlu", "mt-bench", "reward-bench", "comparisons",
]  # fmt: skip


class ImportConfig(FileConfig):
    """Turns a public data file, or your own, into examples in posgap's format."""

    input: InputPath = Field(
        description="file to read: .jsonl, .json, .csv or .tsv, also with .gz, .parquet, or a folder of Parquet files; "
        f"or a public one to download into the cache first: {', '.join(SOURCES)}"
    )
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    format: Format = Field(
        "litm-kv",
        description="litm-kv, litm-qa: lost-in-the-middle key-value or QA; dpr: NQ, TriviaQA or WebQ with DPR's "
        "passages; hotpotqa: its distractor setting; 2wiki: 2WikiMultiHopQA; own: lines of question, answers, "
        "documents (docs/formats.md); document: a table of question, answer, file and quote, beside the files "
        "(docs/tasks.md); rag: a retrieval log, or traces of LangChain or LlamaIndex (docs/rag.md); "
        "mmlu: multiple-choice questions; mt-bench, reward-bench: judged answers; "
        "comparisons: lines of question, answers, label (docs/judge.md)",
    )
    answers: OptionalInputPath = Field(
        None,
        description="rag: table with the columns `question`, `answers` and perhaps `relevant_ids`; traces have no "
        "right answers",
    )
    columns: Arguments = Field(
        {}, description='rag: columns of fields that go by none of their names, like answer="Expected answer"'
    )
    relevant: Literal["", "id", "label", "answer"] = Field(
        "",
        description="rag: which passages are relevant: those with an id among the row's `relevant_ids`, those labelled "
        "so, or those that hold an answer; empty: the first of these that a row has",
    )
    order: str = Field(
        "",
        description="rag: the retriever's order: `listed`, as the passages come, or by a number, like score:highest or "
        "rank:lowest; empty: the one that all numbers of the log agree on",
    )
    answering: Literal["keep", "drop"] = Field(
        "keep", description="rag: what becomes of passages that are not relevant and yet hold an answer"
    )
    first: int = Field(1, ge=1, description="first line, or item of an array, to read")
    last: int = Field(0, ge=0, description="last line to read; 0: to the end")
    min_docs: int = Field(0, ge=0, description="leave out examples with fewer documents; 0: leave out none")
    key_digits: int = Field(0, ge=0, description="litm-kv: cut keys to this many characters; 0: whole")
    value_digits: int = Field(0, ge=0, description="litm-kv: cut values to this many characters; 0: whole")


VERB = Verb(ImportConfig, "--format litm-kv --input made.jsonl.gz --out kv.jsonl.gz")
