"""Handles RoPE whose frequencies follow the length of the input: Phi-3's long RoPE, dynamic NTK.

transformers chooses a whole batch's frequencies by its longest row, and dynamic NTK keeps those of the longest prompt
that it has read. So an answer would depend on the other prompts in the batch, and on those before it. And a model's
token-by-token answer differs from reading prompt and answer at once, unless its frequencies are the same from the
prompt's first token to the answer's last.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

from transformers import PretrainedConfig, PreTrainedModel

KINDS = ("dynamic", "longrope")
Regime = tuple[int, ...]  # for each kind of layer 0: short, -1: long, else the prompt's length


class RopeLengths(NamedTuple):
    """A model's length-dependent kinds of RoPE, each with the last length in tokens that uses short frequencies; none
    for most models."""

    bounds: tuple[tuple[str, int], ...]

    @classmethod
    def from_config(cls, config: PretrainedConfig) -> "RopeLengths":
        """Returns the RoPEs of a model's configuration; its layers may be of several types with a RoPE each."""
        text: Any = config.get_text_config()
        rope = getattr(text, "rope_parameters", None) or {}
        each = [value for value in rope.values() if isinstance(value, dict) and "rope_type" in value] or [rope]
        bounds = set()
        for parameters in each:
            kind = parameters.get("rope_type") or "default"
            if "dynamic" in kind:
                bounds.add((kind, text.max_position_embeddings))
            elif kind == "longrope":
                bounds.add((kind, parameters["original_max_position_embeddings"]))
        return cls(tuple(sorted(bounds)))

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def regime(self, prompt: int, new: int) -> Regime:
        """Returns a key that prompts of one batch must share so that each gets the same answer as alone, for a prompt
        of that many tokens and an answer of up to `new`.

        Short ones may be batched, and so may those beyond the bound from the start, if they all have the same
        frequencies then. The frequencies of others change with each token, so only equal lengths are batched.
        """
        parts = []
        for kind, bound in self.bounds:
            is_long = kind == "longrope" and prompt > bound
            parts.append(0 if prompt + new <= bound else -1 if is_long else prompt)
        return tuple(parts)

    def why_not_forced(self, lengths: Iterable[tuple[int, int]]) -> str:
        """Says why prompts with answers of these `lengths` cannot be read at once; empty if they can.

        They can if frequencies stay the same throughout, for all of them: each is short, or each is long.
        """
        regimes = {self.regime(prompt, new) for prompt, new in lengths} if self else set()
        if len(regimes) <= 1 and max(chain(*regimes), default=0) <= 0:
            return ""
        kind, bound = self.bounds[0]
        return (
            f"its RoPE ({kind}) changes with the length beyond {bound} tokens: an answer read in one pass with its "
            "prompt then differs from a generated one"
        )


def forget_lengths(model: PreTrainedModel) -> None:
    """Resets dynamic RoPE to its short frequencies, whatever the model has read before."""
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        for prefix, kind in {"": kinds}.items() if isinstance(kinds, str) else (kinds or {}).items():
            if "dynamic" in kind:
                name = f"{prefix}_" if prefix else ""
                setattr(module, f"{name}inv_freq", getattr(module, f"{name}original_inv_freq"))
                setattr(module, f"{name}max_seq_len_cached", module.original_max_seq_len)
