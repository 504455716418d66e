"""Sets up the prompt builder of a stage from its task, its model's tokenizer and the model's context length."""

from posgap.foundation.heavy_types import PreTrainedTokenizerBase
from posgap.generation.asking import ResponseLimits, Wording
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS


def builder_of(model: str, wording: Wording, limits: ResponseLimits) -> PromptBuilder:
    """The builder of a model's prompts."""
    from posgap.models.loading import context_length, load_config, load_tokenizer

    tokenizer = load_tokenizer(model)
    return builder_with(tokenizer, context_length(load_config(model), tokenizer), wording, limits)


def builder_with(
    tokenizer: PreTrainedTokenizerBase, context: int, wording: Wording, limits: ResponseLimits
) -> PromptBuilder:
    """Returns the builder for a loaded tokenizer of a model that reads `context` tokens."""
    task = TASKS[wording.task]
    most = limits.max_new_tokens or task.max_new_tokens
    builder = PromptBuilder(task, tokenizer, context, most, wording.order, wording.framing)
    # A chat model ends by itself.
    builder.stop = limits.stop_strings(() if builder.chat else task.stop_of_base(wording.metric))
    builder.max_thinking_tokens = limits.max_thinking_tokens
    return builder
