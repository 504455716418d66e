"""Sets up the prompt builder of a stage from its task, its model's tokenizer and the model's context length."""

from typing import Any

from posgap.choices import TASKS
from posgap.config import DistillConfig, GenerationConfig, PromptConfig
from posgap.tasks.framing import Framing
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.task import Order


def prompt_builder(task_name: str, model: str, max_new_tokens: int, *asked: Any) -> PromptBuilder:
    """The prompt builder of a task and a model; `max_new_tokens` 0 means the task's own number. What more is `asked` is
    that of `PromptBuilder`."""
    from posgap.models.loading import context_length, load_config, load_tokenizer

    task, tokenizer = TASKS[task_name], load_tokenizer(model)
    context = context_length(load_config(model), tokenizer)
    return PromptBuilder(task, tokenizer, context, max_new_tokens or task.max_new_tokens, *asked)


def builder_of(config: PromptConfig | DistillConfig, longest: int = 0) -> PromptBuilder:
    """The prompt builder that a stage's config asks for; `longest` is the most tokens of a response, where the config
    does not say it."""
    asked = (order_of(config), Framing.of(config))
    build = prompt_builder(config.task, config.model, longest or getattr(config, "max_new_tokens", 0), *asked)
    if isinstance(config, GenerationConfig):
        build.max_thinking_tokens = config.max_thinking_tokens
        # A chat model ends by itself.
        build.stop = tuple(config.stop) or (() if build.chat else build.task.stop(config.metric))
    return build


def order_of(config: PromptConfig | DistillConfig) -> Order:
    """The order of prompts that a stage's config asks for."""
    return Order(config.question, config.shuffle)
