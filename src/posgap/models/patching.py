"""What changes of a loaded model share: its name in messages, temporary replacements of attributes, what its forward
pass knows, and a pass over a few tokens that shows the effect of a change."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_CACHES = ("past_key_values", "layer_past")


def name_of(model: "PreTrainedModel") -> str:
    """Returns the name of a model in messages: its folder or name on the hub, else its class."""
    return model.name_or_path or type(model).__name__


def replace_attribute(module: "nn.Module", name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute of a module, and returns what restores it.

    It restores nothing if the attribute was meanwhile replaced for good, as by layer scaling.
    """
    before = vars(module).get(name)
    vars(module)[name] = value

    def undo() -> None:
        if vars(module).get(name) is not value:
            return
        if before is None:
            del vars(module)[name]
        else:
            vars(module)[name] = before

    return undo


def undo_all(undone: "list[Callable[[], None]]") -> Callable[[], None]:
    """Takes several changes back, the last one first."""

    def undo() -> None:
        for each in reversed(undone):
            each()

    return undo


def last_logits(model: "PreTrainedModel", n: int) -> dict[str, int]:
    """The argument of `forward` for the logits of the last `n` tokens alone; empty for a family that knows none."""
    return {"logits_to_keep": n} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def forward_few_tokens(module: Any, n: int = 3) -> Any:
    """The output of a model, or of its decoder, for `n` tokens: without dropout, gradients and cache."""
    import torch

    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return module(input_ids=torch.arange(n, device=module.device)[None], use_cache=False)
    finally:
        module.train(training)


def without_cache(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass that neither looks into a cache nor adds to it."""
    return {**kwargs, **dict.fromkeys(set(kwargs) & set(_CACHES))}


def cached_length(kwargs: Mapping[str, Any], layer: int) -> int:
    """Returns the number of tokens in a layer's cache before a forward pass with these arguments."""
    cache = next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)
    return cache.get_seq_length(layer) if cache is not None else 0
