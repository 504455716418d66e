"""Options of `validate`."""

from typing import ClassVar

from pydantic import Field

from posgap.foundation.fields import (
    OptionalInputPath,
)
from posgap.options.prompts import PromptConfig
from posgap.options.verb import Kind, Verb


class ValidateConfig(PromptConfig):
    """Checks examples with Great Expectations, before any GPU time is spent on them."""

    examples_for: ClassVar[str] = "checked"

    exclude: OptionalInputPath = Field(
        None, description="examples that must not be among these, such as the evaluation set if these are for training"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


VERB = Verb(
    ValidateConfig,
    "--model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/eval",
    results=("validation.json",),
    kind=Kind.STAGE,
)
