"""Parameters of the data verbs and stages: making, importing, fetching and checking examples, and their versions."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posgap.data.sources import SOURCES
from posgap.foundation.config import Config, FileConfig, StageConfig
from posgap.foundation.fields import (
    POSITIONAL,
    InputPath,
    OptionalInputPath,
    OutputPath,
    Place,
    RegisteredName,
)
from posgap.tasks.config import PromptConfig
from posgap.tasks.fields import MOST_DOCS


class ValidateConfig(PromptConfig):
    """Checks examples with Great Expectations, before any GPU time is spent on them."""

    examples_for: ClassVar[str] = "checked"

    exclude: OptionalInputPath = Field(
        None, description="examples that must not be among these: the evaluation set, where these are for training"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


class DataVersionConfig(StageConfig):
    """Picks the newest data version, and says whether data, base model or recipe are those of the champion."""

    data: Place = Field(
        min_length=1,
        description="beginning of the data versions' names, like s3://bucket/data/ or s3://bucket/data/train-; or a "
        "single file or folder",
    )
    data_eval: Place = Field(
        "", description="beginning of the evaluation data's names, or a single file or folder; empty: none"
    )
    model: Place = Field("", description="base model: Hugging Face folder, s3:// URI or hub name; empty: none")
    recipe: str = Field("", description="digest of how models are made, from `preflight`; empty: any way")
    name: RegisteredName = Field("posgap", description="registered model whose champion is compared with")
    only_new: bool = Field(
        True,
        description="report `skip` if the champion was made from this data, base model and recipe; false: never skip",
    )
    force: bool = Field(
        True, description="run again even if the output is complete, since the champion may have changed"
    )


class MakeKVConfig(FileConfig):
    """Writes synthetic UUID records in the format of the public lost-in-the-middle file."""

    out: OutputPath = Field(description="file to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_keys: int = Field(75, ge=1, le=MOST_DOCS, description="records in an example")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeQAConfig(FileConfig):
    """Gives each question distractors: passages of other questions that contain none of its answers, drawn at random
    or the most similar ones."""

    examples: InputPath = Field(description="imported examples, .jsonl or .jsonl.gz; their own distractors are dropped")
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_docs: int = Field(20, ge=1, le=MOST_DOCS, description="documents in an example, the gold ones included")
    distractors: Literal["random", "bm25"] = Field(
        "random",
        description="random: drawn by the seed; bm25: those that BM25 ranks highest for the question, in its order",
    )
    seed: int = Field(0, ge=0, description="equal seeds draw equal distractors")


class MakeNeedleConfig(FileConfig):
    """Writes synthetic needle questions for the task qa: each asks for one number among invented facts."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=1, le=5000, description="documents in an example")
    facts: int = Field(3, ge=1, le=12, description="facts in a document, the needle among them")
    digits: int = Field(7, ge=1, le=18, description="number of digits of each number")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeSpansConfig(FileConfig):
    """Writes synthetic questions for the task spans: each asks for several numbers, stated in as many documents."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=2, le=5000, description="documents in an example")
    needles: int = Field(2, ge=2, le=4, description="numbers asked for, each in a document of its own")
    facts: int = Field(3, ge=1, le=12, description="facts in a document, the needle among them")
    digits: int = Field(7, ge=1, le=18, description="number of digits of each number")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeTwoHopConfig(FileConfig):
    """Writes synthetic two-hop questions about people and their contacts, as examples."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=3, le=24, description="documents in an example, the two gold ones included")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeChoiceConfig(FileConfig):
    """Writes synthetic questions for the tasks options and judge: which of some sentences is about an animal?"""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(4, ge=2, le=16, description="items to choose from")
    hard: float = Field(
        0.5, ge=0, le=1, description="share of hard examples, which name an animal by its young, like foal for horse"
    )
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class ImportConfig(FileConfig):
    """Turns a public data file, or your own, into examples in posgap's format."""

    input: InputPath = Field(
        description="file to read: .jsonl, .json, .csv or .tsv, also with .gz, .parquet, or a folder of Parquet files"
    )
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    format: Literal[
        "litm-kv",
        "litm-qa",
        "dpr",
        "hotpotqa",
        "musique",
        "2wiki",
        "own",
        "rag",
        "mmlu",
        "mt-bench",
        "reward-bench",
        "comparisons",
    ] = Field(
        "litm-kv",
        description="litm-kv, litm-qa: lost-in-the-middle key-value or QA; dpr: NQ, TriviaQA or WebQ with DPR's "
        "passages; hotpotqa: its distractor setting; 2wiki: 2WikiMultiHopQA; own: lines of question, answers, "
        "documents (docs/formats.md); rag: a retrieval log, or traces of LangChain or LlamaIndex (docs/rag.md); "
        "mmlu: multiple-choice questions; mt-bench, reward-bench: judged answers; "
        "comparisons: lines of question, answers, label (docs/judge.md)",
    )
    answers: OptionalInputPath = Field(
        None,
        description="rag: table with the columns `question`, `answers` and perhaps `relevant_ids`; traces have no "
        "right answers",
    )
    relevant: Literal["", "id", "label", "answer"] = Field(
        "",
        description="rag: which passages are relevant: those with an id among the row's `relevant_ids`, those labelled "
        "so, or those that hold an answer; empty: the first of these that a row has",
    )
    answering: Literal["keep", "drop"] = Field(
        "keep", description="rag: what becomes of passages that are not relevant and yet hold an answer"
    )
    first: int = Field(1, ge=1, description="first line, or item of an array, to read")
    last: int = Field(0, ge=0, description="last line to read; 0: to the end")
    min_docs: int = Field(0, ge=0, description="leave out examples with fewer documents; 0: leave out none")
    queries: int = Field(
        1, ge=1, description="litm-kv: number of questions made of each line, the first about the line's own key"
    )
    key_digits: int = Field(0, ge=0, description="litm-kv: cut keys to this many characters; 0: whole")
    value_digits: int = Field(0, ge=0, description="litm-kv: cut values to this many characters; 0: whole")
    seed: int = Field(0, ge=0, description="litm-kv: seed that draws the keys of further questions")


class FetchConfig(Config):
    """Downloads a public data file into the cache (POSGAP_CACHE, else ~/.cache/posgap) and prints its path."""

    name: Annotated[Literal[tuple(SOURCES)], POSITIONAL] = Field(description="name of the file")  # type: ignore[valid-type]


class NewestConfig(Config):
    """Prints the location of the newest complete data version: the highest date or number among names with a prefix."""

    prefix: Annotated[str, POSITIONAL] = Field(
        min_length=1, description="a folder, or the beginning of names in it: s3://bucket/data/, data/train-"
    )


class ReleaseConfig(Config):
    """Makes a complete data version count as the newest until a later one is released, whatever is written since."""

    version: Annotated[str, POSITIONAL] = Field(
        min_length=1, description="file or folder of the version: s3://bucket/data/v=2026-11-20"
    )
    instead_of: str = Field(
        "", description="name of the version that is released now, like 2026-11-27, where an earlier one is to be taken"
    )
