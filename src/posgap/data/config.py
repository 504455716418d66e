"""Config of data: the parameters of making, importing, fetching and checking examples, and their versions."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from posgap.data.generators import GENERATORS
from posgap.data.sources import SOURCES
from posgap.foundation.config import FileConfig, StageConfig
from posgap.foundation.fields import (
    POSITIONAL,
    Arguments,
    InputPath,
    OptionalInputPath,
    OptionalOutputPath,
    OutputPath,
    Place,
    RegisteredName,
)
from posgap.foundation.registry import WholeNumber
from posgap.tasks.config import PromptConfig
from posgap.tasks.fields import MAX_DOCS

Format = Literal[
    "litm-kv", "litm-qa", "dpr", "hotpotqa", "musique", "2wiki", "own", "document", "rag",
    "mmlu", "mt-bench", "reward-bench", "comparisons",
]  # fmt: skip


class ValidateConfig(PromptConfig):
    """Checks examples with Great Expectations, before any GPU time is spent on them."""

    examples_for: ClassVar[str] = "checked"

    exclude: OptionalInputPath = Field(
        None, description="examples that must not be among these: the evaluation set, where these are for training"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


class DataVersionConfig(StageConfig):
    """Picks the newest data version: the highest date or number among names with a prefix.

    It prints its location; with --out it also says whether data, base model or recipe are those of the champion.
    """

    out: OptionalOutputPath = Field(  # type: ignore[assignment]  # without it there is no stage to run
        None, description="folder to write; empty: only print the location"
    )
    data: Annotated[Place, POSITIONAL] = Field(
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


class MakeConfig(*GENERATORS.bases(), FileConfig):  # type: ignore[misc]  # mypy needs named base classes
    """Writes synthetic data of a kind, or gives questions distractors."""

    out: OutputPath = Field(description="file to write, .jsonl or .jsonl.gz")
    kind: Annotated[str, POSITIONAL, GENERATORS, AfterValidator(GENERATORS.require_name)] = Field(
        description=GENERATORS.help_text()
    )
    n_examples: int = Field(300, ge=1, description="examples, one a line; all kinds but qa")
    n_docs: WholeNumber = Field(
        None,
        ge=1,
        le=MAX_DOCS,
        description="documents in an example, the gold ones included, or records, or items to choose from",
    )
    seed: int = Field(0, ge=0, description="equal seeds write equal files")

    @classmethod
    def shown_defaults(cls) -> dict[str, str]:
        usual = [kind.usual for kind in GENERATORS]
        most = max(usual, key=usual.count)
        others = [f"{kind.name}: {kind.usual}" for kind in GENERATORS if kind.usual != most]
        return {"n_docs": ", ".join([str(most), *others])}

    @model_validator(mode="after")
    def _takes_what_is_given(self) -> Self:
        kind, common = GENERATORS[self.kind], ("kind", *FileConfig.model_fields)
        for name in sorted(self.model_fields_set - {*common, *kind.takes()}):
            taking = [each.name for each in GENERATORS if name in each.takes()]
            raise ValueError(f"`{name}` is an option of {', '.join(taking)}, not of {kind.name}")
        n_docs = self.n_docs
        if n_docs is not None and not kind.least <= n_docs <= kind.most:
            raise ValueError(f"`n_docs` of {kind.name} must lie in {kind.least} to {kind.most}, got {n_docs}")
        return self


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
        "(docs/sweep.md); rag: a retrieval log, or traces of LangChain or LlamaIndex (docs/rag.md); "
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
    answering: Literal["keep", "drop"] = Field(
        "keep", description="rag: what becomes of passages that are not relevant and yet hold an answer"
    )
    first: int = Field(1, ge=1, description="first line, or item of an array, to read")
    last: int = Field(0, ge=0, description="last line to read; 0: to the end")
    min_docs: int = Field(0, ge=0, description="leave out examples with fewer documents; 0: leave out none")
    key_digits: int = Field(0, ge=0, description="litm-kv: cut keys to this many characters; 0: whole")
    value_digits: int = Field(0, ge=0, description="litm-kv: cut values to this many characters; 0: whole")
