"""What every stage that reads prompts begins with: task, tokenizer and context in one prompt builder."""

from posgap.models import context_length, load_config, load_tokenizer
from posgap.tasks.prompts import PromptBuilder, get_task


def prompt_builder(task_name: str, model: str, max_new_tokens: int) -> PromptBuilder:
    """The prompt builder of a task and a model; `max_new_tokens` 0 is the task's own."""
    task, tokenizer = get_task(task_name), load_tokenizer(model)
    return PromptBuilder(
        task, tokenizer, context_length(load_config(model), tokenizer), max_new_tokens or task.max_new_tokens
    )
