"""Examples: made, imported, fetched, checked, and their versions."""

from typing import Annotated, Literal

from pydantic import Field

from posgap.config.base import Config, PromptConfig, StageConfig
from posgap.config.fields import MOST_DOCS, POSITIONAL, InputPath, OptionalInputPath, OutputPath, Place, RegisteredName
from posgap.config.sources import SOURCES


class ValidateConfig(PromptConfig):
    """Checks examples with Great Expectations before anything is spent on them."""

    exclude: OptionalInputPath = Field(None, description="examples that must not occur among these (training set)")


class DataVersionConfig(StageConfig):
    """Picks the newest data version, and says whether data or base model changed since the champion was made."""

    data: Place = Field(
        min_length=1,
        description="where data versions begin, like s3://bucket/data/ or s3://bucket/data/train-; or the data itself",
    )
    model: Place = Field(min_length=1, description="base model: Hugging Face folder, s3:// URI or hub name")
    name: RegisteredName = Field("posgap", description="registered model whose champion is compared")
    only_new: bool = Field(True, description="skip where neither changed; false: take the newest anyway")
    force: bool = Field(True, description="run again even where the output is complete: the champion may be another")


class MakeKVConfig(Config):
    """Writes synthetic UUID records in the format of the public lost-in-the-middle file."""

    out: OutputPath = Field(description="file to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_keys: int = Field(75, ge=1, le=MOST_DOCS, description="records an example")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeQAConfig(Config):
    """Gives questions distractors: passages of the other questions, none of which contains an answer."""

    examples: InputPath = Field(description="imported examples, .jsonl or .jsonl.gz; their own distractors are dropped")
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_docs: int = Field(20, ge=1, le=MOST_DOCS, description="documents an example, the gold ones included")
    seed: int = Field(0, ge=0, description="equal seeds draw equal distractors")


class MakeNeedleConfig(Config):
    """Writes synthetic needle questions: one number asked for among invented facts, for the task qa."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=1, le=5000, description="documents an example")
    facts: int = Field(3, ge=1, le=12, description="facts a document, the needle among them")
    digits: int = Field(7, ge=1, le=18, description="digits of each number")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class MakeTwoHopConfig(Config):
    """Writes synthetic two-hop questions about people and whom they know, as examples."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=3, le=24, description="documents an example, the two gold ones included")
    seed: int = Field(0, ge=0, description="equal seeds write equal files")


class ImportConfig(Config):
    """Turns a public data file, or your own, into posgap's examples."""

    input: InputPath = Field(description="file to read, .jsonl or .json, also with .gz")
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    format: Literal["litm-kv", "litm-qa", "dpr", "hotpotqa", "musique", "2wiki", "own"] = Field(
        "litm-kv",
        description="litm-kv, litm-qa: lost-in-the-middle key-value or QA; dpr: NQ, TriviaQA or WebQ with DPR's "
        "passages; hotpotqa: its distractor setting; 2wiki: 2WikiMultiHopQA; own: lines of question, answers, "
        "documents (docs/formats.md)",
    )
    first: int = Field(1, ge=1, description="first line, or item, to read")
    last: int = Field(0, ge=0, description="last line to read; 0: to the end")
    min_docs: int = Field(0, ge=0, description="leave out examples of fewer documents; 0: none")
    queries: int = Field(1, ge=1, description="litm-kv: keys asked for per line, the line's own first")
    key_digits: int = Field(0, ge=0, description="litm-kv: cut keys to so many characters; 0: whole")
    value_digits: int = Field(0, ge=0, description="litm-kv: cut values to so many characters; 0: whole")
    seed: int = Field(0, ge=0, description="litm-kv: draws the further queries")


class FetchConfig(Config):
    """Downloads a public data file into the cache (POSGAP_CACHE, else ~/.cache/posgap) and prints its path."""

    name: Annotated[Literal[tuple(SOURCES)], POSITIONAL] = Field(description="which file")  # type: ignore[valid-type]


class NewestConfig(Config):
    """Prints where the newest complete data version is: the highest date or number in the names below a prefix."""

    prefix: Annotated[str, POSITIONAL] = Field(
        min_length=1, description="a folder, or the beginning of names in one: s3://bucket/data/, data/train-"
    )
