"""Options of `rollout measure`."""

from typing import Literal

from pydantic import Field

from posgap.foundation.fields import MODEL, InputPath, ModelName, OptionalInputPath
from posgap.options.base import SeededConfig
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import MAX_DOCS, OptionalTaskName
from posgap.tasks.registry import TASKS


class RolloutMeasureConfig(SeededConfig):
    """Measures how much each part of a prompt reaches the last token."""

    named_by = ("model", "task", "texts")

    texts: InputPath = Field(
        description="a text file, a .jsonl(.gz) with a field `text` or, with `task`, a file of examples"
    )
    model: ModelName = Field(description=MODEL)
    task: OptionalTaskName = Field(
        "", description=f"task whose examples `texts` holds; {TASKS.help_text()}; empty: `texts` holds plain text"
    )
    n_docs: int = Field(20, ge=1, le=MAX_DOCS, description="with `task`: documents in a prompt")
    sweep: OptionalInputPath = Field(
        None,
        description="with `task`: folder from a `sweep` of the model, whose positions are measured, and whose accuracy "
        "`rollout predict` compares",
    )
    length: int = Field(
        0, ge=0, description="number of tokens of every text (N); 0: 256. Prompts of a `task` are measured whole"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` texts; 0: all")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    label: str = Field("", description="what plots and tables call this model; empty: its name")


VERB = Verb(
    RolloutMeasureConfig,
    "--model Qwen/Qwen3-0.6B --texts texts.jsonl --out run/measurement",
    results=("measurement.json",),
    kind=Kind.STAGE,
)
