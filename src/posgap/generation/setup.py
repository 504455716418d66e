"""Sets up the prompt builder of a stage from its task, its model's tokenizer and the model's context length."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from posgap.options.generation import GenerationConfig
from posgap.options.prompts import PromptConfig
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


def builder_of(config: PromptConfig, longest: int = 0) -> PromptBuilder:
    """The prompt builder that a stage's config asks for; `longest` is the most tokens of a response, where the config
    does not say it."""
    return _of_model(config.model, lambda tokenizer, context: builder_with(config, tokenizer, context, longest))


def _of_model(model: str, builder: "Callable[[PreTrainedTokenizerBase, int], PromptBuilder]") -> PromptBuilder:
    """Returns the builder that `builder(tokenizer, context)` makes for a model."""
    from posgap.models.loading import context_length, load_config, load_tokenizer

    tokenizer = load_tokenizer(model)
    return builder(tokenizer, context_length(load_config(model), tokenizer))


def builder_with(
    config: PromptConfig, tokenizer: "PreTrainedTokenizerBase", context: int, longest: int = 0
) -> PromptBuilder:
    """Returns the builder for a tokenizer that is at hand, of a model that reads `context` tokens."""
    task = TASKS[config.task]
    most = longest or getattr(config, "max_new_tokens", 0) or task.max_new_tokens
    builder = PromptBuilder(
        task, tokenizer, context, most, order_of(config), Framing(config.system, config.template, config.template_args)
    )
    # A chat model ends by itself.
    usual = () if builder.chat else task.stop_of_base(getattr(config, "metric", ""))
    builder.stop = usual
    if isinstance(config, GenerationConfig):
        builder.max_thinking_tokens, builder.stop = config.max_thinking_tokens, config.stop_strings(usual)
    return builder


def order_of(config: PromptConfig) -> PromptOrder:
    """The order of prompts that a stage's config asks for."""
    return PromptOrder(config.question, config.shuffle)
