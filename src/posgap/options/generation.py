"""Options of all verbs that generate responses."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posgap.foundation.fields import RARE, StopStrings
from posgap.foundation.registry import WITHOUT_EFFECT
from posgap.options.base import SeededConfig
from posgap.options.prompts import PromptConfig
from posgap.tasks.fields import OptionalMetricName
from posgap.tasks.metrics import METRICS

NO_STOP = "none"  # asks for no stop string, where there are usual ones


class GenerationConfig(PromptConfig, SeededConfig):
    is_costly: ClassVar[bool] = True

    metric: OptionalMetricName = Field(
        "", description=f"metric that scores responses; {METRICS.help_text()}; empty: the task's own"
    )
    max_thinking_tokens: Annotated[int, RARE] = Field(
        0,
        ge=0,
        description="longest thoughts of a reasoning model, in tokens, beside max_new_tokens of the answer; 0: "
        "max_new_tokens has both",
    )
    stop: Annotated[StopStrings, RARE] = Field(
        [],
        description=f"strings that end a response, as a JSON list, or one as it is; {NO_STOP}: no string ends it; "
        "empty: without a chat template the end of the first line with task kv or metric litm",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="auto: bfloat16 on a GPU, and for models of 50 million parameters or more on a processor that "
        "computes it quicker (AMX, avx512_bf16); else float32",
    )
    batch_tokens: Annotated[int, WITHOUT_EFFECT, RARE] = Field(
        0,
        ge=0,
        description="transformers: tokens in a batch, padding included; 0: 32768, and on a GPU what its memory holds",
    )

    def stop_strings(self, usual: Sequence[str]) -> tuple[str, ...]:
        """The strings that end a response: those that are asked for, else the `usual` ones."""
        return () if self.stop == [NO_STOP] else tuple(self.stop or usual)
