"""Activations that are computed again: the same gradients."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posgap.demo.tiny_model import untrained
from posgap.models.checkpointing import checkpoint_activations

IDS = torch.arange(40).view(2, 20)
ATTENTION, PRODUCT = "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::mm"


class Counted(TorchDispatchMode):
    """Counts the operations that are computed, by name."""

    def __init__(self):
        super().__init__()
        self.times = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.times[func.name().partition(".")[0]] += 1
        return func(*args, **kwargs or {})


def trained(*, checkpointing=False):
    """The gradients of a model after a backward pass, and the operations."""
    model = untrained(0).train()
    if checkpointing:
        checkpoint_activations(model)
    with Counted() as counted:
        model(input_ids=IDS, labels=IDS).loss.backward()
    return [parameter.grad for parameter in model.parameters()], counted.times


def test_activations_are_computed_again_to_the_same_gradients():
    layers = untrained(0).config.num_hidden_layers
    (expected, kept), (again, twice) = trained(), trained(checkpointing=True)
    assert [times[ATTENTION] for times in (kept, twice)] == [layers, 2 * layers]
    assert kept[PRODUCT] < twice[PRODUCT]
    torch.testing.assert_close(again, expected, rtol=0, atol=0)
