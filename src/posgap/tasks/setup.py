"""What every stage that reads prompts begins with: task, tokenizer and prompt builder."""

from posgap.config import PromptConfig
from posgap.models import context_length, load_config, load_tokenizer
from posgap.tasks.prompts import PromptBuilder, get_task


def prompt_builder(config: PromptConfig) -> PromptBuilder:
    """The prompt builder of a config's task and model."""
    task, tokenizer = get_task(config.task), load_tokenizer(config.model)
    context = context_length(load_config(config.model), tokenizer)
    return PromptBuilder(task, tokenizer, context, config.max_new_tokens or task.max_new_tokens)
