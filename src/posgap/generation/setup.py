"""Sets up the prompt builder of a stage from its task, its model's tokenizer and the model's context length."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from posgap.generation.asking import ResponseLimits, Wording
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.task import AS_GIVEN, PromptOrder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_builder(
    task_name: str, model: str, max_new_tokens: int, order: PromptOrder = AS_GIVEN, framing: Framing = PLAIN
) -> PromptBuilder:
    """The prompt builder of a task and a model; `max_new_tokens` 0 means the task's own number."""
    task = TASKS[task_name]
    most = max_new_tokens or task.max_new_tokens
    return _of_model(model, lambda tokenizer, context: PromptBuilder(task, tokenizer, context, most, order, framing))


def builder_of(model: str, wording: Wording, limits: ResponseLimits) -> PromptBuilder:
    """The builder of a model's prompts."""
    return _of_model(model, lambda tokenizer, context: builder_with(tokenizer, context, wording, limits))


def _of_model(model: str, builder: "Callable[[PreTrainedTokenizerBase, int], PromptBuilder]") -> PromptBuilder:
    """Returns the builder that `builder(tokenizer, context)` makes for a model."""
    from posgap.models.loading import context_length, load_config, load_tokenizer

    tokenizer = load_tokenizer(model)
    return builder(tokenizer, context_length(load_config(model), tokenizer))


def builder_with(
    tokenizer: "PreTrainedTokenizerBase", context: int, wording: Wording, limits: ResponseLimits
) -> PromptBuilder:
    """Returns the builder for a tokenizer that is at hand, of a model that reads `context` tokens."""
    task = TASKS[wording.task]
    most = limits.max_new_tokens or task.max_new_tokens
    builder = PromptBuilder(task, tokenizer, context, most, wording.order, wording.framing)
    # A chat model ends by itself.
    builder.stop = limits.stop_strings(() if builder.chat else task.stop_of_base(wording.metric))
    builder.max_thinking_tokens = limits.max_thinking_tokens
    return builder
