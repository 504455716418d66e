"""Activations that are computed again: the same gradients, and with `keep_attention` attention is computed once."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posgap.cli.main import main
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


def trained(*how, passes=1):
    """The gradients of a model after some backward passes through one forward pass, and the operations."""
    model = untrained(0).train()
    if how:
        checkpoint_activations(model, *how)
    with Counted() as counted:
        loss = model(input_ids=IDS, labels=IDS).loss
        for left in reversed(range(passes)):
            loss.backward(retain_graph=left > 0)
    return [parameter.grad for parameter in model.parameters()], counted.times


def test_attention_that_is_kept_is_computed_once_and_all_else_again():
    layers = untrained(0).config.num_hidden_layers
    (expected, kept), (again, twice), (keeping, once) = trained(), trained(False), trained(True)
    assert [times[ATTENTION] for times in (kept, twice, once)] == [layers, 2 * layers, layers]
    assert kept[PRODUCT] < twice[PRODUCT] == once[PRODUCT]
    torch.testing.assert_close(again, expected, rtol=0, atol=0)
    torch.testing.assert_close(keeping, expected, rtol=0, atol=0)


def test_a_second_backward_pass_computes_attention_as_it_must():
    (expected, _), (keeping, times) = trained(passes=2), trained(True, passes=2)
    assert times[ATTENTION] == 2 * untrained(0).config.num_hidden_layers
    torch.testing.assert_close(keeping, expected, rtol=0, atol=0)


def test_keeping_attention_is_refused_where_all_is_kept(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "distill",
                "--keep-attention",
                "--model",
                "m",
                "--examples",
                "e",
                "--responses",
                "r",
                "--out",
                str(tmp_path),
            ]
        )
    assert stopped.value.code == 2 and "`keep_attention`: without `gradient_checkpointing`" in capsys.readouterr().err
