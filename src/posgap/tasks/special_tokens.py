"""Finds passages with a token that ends or begins a chat turn: a model may obey it."""

from collections.abc import Collection, Iterable

from posgap.foundation.heavy_types import PreTrainedTokenizerBase
from posgap.tasks.examples import AnyExample

# An endpoint's tokenizer is unknown, so these are the tokens of Qwen, Llama, Mistral, Gemma, Phi, DeepSeek and Command
# R.
OF_ANY_MODEL = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "[INST]"),
    *("[/INST]", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Returns the special tokens of a tokenizer, as text."""
    own = [str(token) for token in tokenizer.all_special_tokens]
    own += [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return list(dict.fromkeys(own))


def count_special(examples: Iterable[AnyExample], tokens: Collection[str]) -> dict[str, int]:
    """In how many examples, and in how many of their passages, one of these tokens stands."""
    in_examples, in_all = 0, 0
    for example in examples:
        passages = 0
        for document in [*example.gold, *example.distractors]:
            written = f"{document.title}\n{document.text}"
            passages += any(token in written for token in tokens)
        in_examples += passages > 0
        in_all += passages
    return {"examples_with_special_tokens": in_examples, "passages_with_special_tokens": in_all}
