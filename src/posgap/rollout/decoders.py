"""Reads residual strengths and attention out of any transformers decoder: layers by structure, values by hooks."""

import inspect
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from posgap.errors import PosgapError
from posgap.rollout.encodings import alibi_slopes

Call = tuple[tuple, dict]  # positional and keyword arguments of a layer


class Decoder:
    """The layers [L] of a causal language model, and their attention modules.

    It assumes that a layer reads the residual stream, that its attention returns (output, matrices), and that the
    output of the attention's last linear map is added to the stream, in some families after a normalisation.
    """

    def __init__(self, model: PreTrainedModel):
        self.model = model
        config = model.config.get_text_config()
        self.n_layers, self.n_heads = config.num_hidden_layers, config.num_attention_heads
        self.multiplier = getattr(config, "residual_multiplier", 1.0)  # Granite's
        self.layers, self.attentions = self._layers()

    def _layers(self) -> tuple[list[nn.Module], list[nn.Module]]:
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.n_layers:
                attentions = [attention for layer in module if (attention := _attention(layer))]
                if len(attentions) == self.n_layers:
                    return list(module), attentions
        raise PosgapError(
            f"{type(self.model).__name__}: no list of {self.n_layers} layers that each have an attention module, so "
            "there is nothing to measure; rollout measure reads decoders of transformers' usual structure"
        )

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[list[Call], Tensor]:
        """Reads `ids [B, N]` and returns the arguments each layer was called with, and residual strengths [L, B, N].

        The strength at a token is |a| / (|x| + |a|), with x the residual stream before the layer and a the vector
        that the attention adds to it.
        """
        calls, streams, added = [], [], []
        latest: list[Tensor] = [ids]  # a reference, so that no later tensor reuses its memory and looks the same

        def before(layer: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append((args, kwargs))
            stream = args[0] if args else kwargs["hidden_states"]
            streams.append(stream.float().norm(dim=-1))
            added.append(streams[-1])

        def mapped(module: nn.Module, args: tuple, output: Tensor) -> None:
            latest[0], added[-1] = output, self.multiplier * output.float().norm(dim=-1)

        def normalised(module: nn.Module, args: tuple, output: Tensor) -> None:
            if args and args[0].data_ptr() == latest[0].data_ptr() and args[0].shape == latest[0].shape:
                mapped(module, args, output)

        with ExitStack() as hooks:
            for layer, attention in zip(self.layers, self.attentions):
                hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
                within = set(attention.modules())
                for module in layer.modules():
                    if module in within and isinstance(module, nn.Linear | Conv1D):
                        hooks.callback(module.register_forward_hook(mapped).remove)
                    elif module not in within and "Norm" in type(module).__name__:
                        hooks.callback(module.register_forward_hook(normalised).remove)
            self.model.base_model(input_ids=ids, use_cache=False)
        return calls, torch.stack([a / (x + a) for a, x in zip(added, streams)])

    @torch.no_grad()
    def attention(self, layer: int, call: Call) -> Tensor:
        """The attention matrices [B, H, N, N] of one layer, which is called again with the arguments `read` saw."""
        matrices: list[Tensor] = []

        def keep(module: nn.Module, args: tuple, output: tuple) -> None:
            matrices.extend(part for part in output if isinstance(part, Tensor) and part.ndim == 4)

        handle = self.attentions[layer].register_forward_hook(keep)
        try:
            args, kwargs = call
            if "output_attentions" in inspect.signature(self.layers[layer].forward).parameters:
                kwargs = kwargs | {"output_attentions": True}
            self.layers[layer](*args, **kwargs)
        finally:
            handle.remove()
        if not matrices:
            raise PosgapError(
                f"{type(self.attentions[layer]).__name__}: returns no attention matrices, so there is nothing to "
                "measure; its model cannot be read by rollout measure"
            )
        return matrices[0].float()


def _attention(layer: nn.Module) -> nn.Module | None:
    return next((m for m in layer.modules() if type(m).__name__.endswith("Attention")), None)


def position_encoding(config: PretrainedConfig) -> dict:
    """A model's position encoding as `predict` takes it: its `kind` and, for ALiBi or RoPE, the parameters."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    nested = getattr(config, "attn_config", None)
    if config.model_type == "bloom" or getattr(config, "alibi", False) or getattr(nested, "alibi", False):
        # Falcon divides its biases by sqrt(d), together with the scores.
        divisor = np.sqrt(size) if config.model_type == "falcon" else 1.0
        return {"kind": "alibi", "slopes": (alibi_slopes(heads) / divisor).tolist()}
    if rope := getattr(config, "rope_parameters", None):
        by_layer_type = next(iter(rope.values())) if isinstance(next(iter(rope.values())), dict) else rope
        share = by_layer_type.get("partial_rotary_factor", 1.0)
        return {"kind": "rope", "theta": float(by_layer_type["rope_theta"]), "head_size": int(share * size) // 2 * 2}
    if size := getattr(config, "rotary_dim", None):  # GPT-J, CodeGen
        return {"kind": "rope", "theta": 10000.0, "head_size": size}
    return {"kind": "learned"}
