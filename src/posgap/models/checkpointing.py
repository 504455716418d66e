"""Keeping less of a forward pass: activations are computed again in the backward pass."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The operations of attention, on CPUs and GPUs, whose results are all that its backward pass needs beside its inputs.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
}


def checkpoint_activations(model: "PreTrainedModel", keep_attention: bool = False) -> None:
    """From now on the model's layers keep what they read alone, and compute the rest again in the backward pass.

    With `keep_attention` they keep what attention gives too: one number more for each token and unit of width, and the
    one cost that grows with the square of a prompt's length is not paid twice.
    """
    arguments: dict[str, Any] = {"use_reentrant": False}
    if keep_attention:
        arguments["context_fn"] = _keeping
    # transformers 5.19, which vLLM 0.32 wants, knows only the older name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(arguments)


def _keeping() -> tuple["_Attention", "_Attention"]:
    """The contexts of a layer's forward pass, and of computing it again."""
    results: deque[Any] = deque()
    return _Attention(results, again=False), _Attention(results, again=True)


class _Attention(TorchDispatchMode):
    """Within it the results of attention are kept; `again`, they are given back in their order, and attention is
    computed where there are none left, as in a second backward pass.

    torch's own `create_selective_checkpoint_contexts` asks that all other operations are the same ones when they are
    computed again. They are not where parameters are gathered in between, as by DeepSpeed, each time another way.
    """

    def __init__(self, results: deque[Any], again: bool) -> None:
        super().__init__()
        self.results, self.again = results, again

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_attention = operation.name().partition(".")[0] in _ATTENTION
        if is_attention and self.again and self.results:
            return self.results.popleft()
        out = operation(*args, **(kwargs or {}))
        if is_attention and not self.again:
            # Detached, since `out` gets a place in the graph, which in turn leads here.
            self.results.append(tree_map_only(Tensor, Tensor.detach, out))
        return out

    def __exit__(self, *raised: Any) -> None:
        if self.again:
            self.results.clear()
        super().__exit__(*raised)
