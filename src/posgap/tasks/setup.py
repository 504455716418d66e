"""Sets up the prompt builder of a stage from its task, its model's tokenizer and the model's context length."""

from posgap.choices import TASKS
from posgap.config import DistillConfig, PromptConfig
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.task import AS_GIVEN, Order


def prompt_builder(
    task_name: str, model: str, max_new_tokens: int, order: Order = AS_GIVEN, framing: Framing = PLAIN
) -> PromptBuilder:
    """The prompt builder of a task and a model; `max_new_tokens` 0 means the task's own number."""
    from posgap.models.loading import context_length, load_config, load_tokenizer

    task, tokenizer = TASKS[task_name], load_tokenizer(model)
    return PromptBuilder(
        task,
        tokenizer,
        context_length(load_config(model), tokenizer),
        max_new_tokens or task.max_new_tokens,
        order,
        framing,
    )


def builder_of(config: PromptConfig | DistillConfig, longest: int = 0) -> PromptBuilder:
    """The prompt builder that a stage's config asks for; `longest` is the most tokens of a response, where the config
    does not say it."""
    return prompt_builder(
        config.task,
        config.model,
        longest or getattr(config, "max_new_tokens", 0),
        order_of(config),
        Framing.of(config),
    )


def order_of(config: PromptConfig | DistillConfig) -> Order:
    """The order of prompts that a stage's config asks for."""
    return Order(config.question, config.shuffle)
