"""Builders of prompts, for tests that have a model and no options."""

from posgap.generation.asking import ResponseLimits, Wording
from posgap.generation.setup import builder_of
from posgap.tasks.prompts import PromptBuilder


def prompt_builder(task: str, model: str, max_new_tokens: int) -> PromptBuilder:
    """The builder of a model's prompts, without stop strings; 0 tokens: the task's own number."""
    return builder_of(model, Wording(task), ResponseLimits(max_new_tokens, stop=()))
