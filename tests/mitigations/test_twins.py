"""Each mitigation of models against a twin in 64 bits, written from its paper: every pair of tokens by itself.

A twin is the family's own model with other attentions: they turn the query of each pair by the pair's distance, from
frequencies that are computed anew, and have none of posgap's code nor of transformers' rotary tables and masks. It is
tried on Llama, on Qwen2 with grouped queries, and on Gemma 3 with its two RoPEs and windows; where a mitigation refuses
these, test_families.py holds the reason.
"""

import copy
import math
import sys
from collections.abc import Callable

import pytest
import torch
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.mitigations.in_force import apply_mitigation

# Of the logits' deviation: in a model of 64 bits rotary tables are of 32.
CLOSE = 1e-4
LENGTH = 40
IDS = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(3))
SETTINGS = {
    "llama": {},
    "qwen2": {"num_key_value_heads": 2},
    "gemma3_text": {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
ALL = ["llama", "qwen2", "gemma3_text"]


def built(family: str) -> torch.nn.Module:
    return families.build_family(family, **SETTINGS[family]).double()


class Twin:
    """What an attention computes, a pair at a time; a mitigation's twin overrides what it changes."""

    def __init__(self, model):
        self.model = copy.deepcopy(model)
        self.kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * len(model.model.layers)
        for layer, block in enumerate(self.model.model.layers):
            block.self_attn.forward = lambda hidden_states, layer=layer, attention=block.self_attn, **_: self.attention(
                layer, attention, hidden_states
            )

    def logits(self, ids=IDS) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(input_ids=ids, use_cache=False).logits

    def base(self, layer: int) -> float:
        parameters = self.model.config.rope_parameters
        return parameters.get(self.kinds[layer], parameters)["rope_theta"]

    def frequencies(self, layer: int, size: int) -> torch.Tensor:
        return self.base(layer) ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def sharp(self, layer: int) -> float:
        return 1.0

    def distances(self, layer, i, j, plain, seen) -> torch.Tensor:
        """How far apart the pairs stand, `[n, n]` or `[H, n, n]`; `plain` are the scores of unturned pairs."""
        return i - j

    def scores(self, layer, attention, states):
        shape, norms = (len(states), -1, attention.head_dim), ("q_norm", "k_norm")
        q, k = (part(states).view(shape) for part in (attention.q_proj, attention.k_proj))
        q, k = (getattr(attention, norm, lambda x: x)(x).transpose(0, 1) for norm, x in zip(norms, (q, k)))
        k = k.repeat_interleave(len(q) // len(k), 0)
        i, j = torch.arange(len(states))[:, None], torch.arange(len(states))
        seen = j <= i
        if self.kinds[layer] == "sliding_attention":
            seen = seen & (i - j < self.model.config.sliding_window)
        plain = (q @ k.transpose(1, 2) * attention.scaling).masked_fill(~seen, -torch.inf)
        distance = self.distances(layer, i, j, plain, seen).double()
        angle = distance[..., None] * self.frequencies(layer, attention.head_dim)
        a, b = q[:, :, None].chunk(2, -1)
        turned = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
        scores = (turned * k[:, None]).sum(-1) * attention.scaling * self.sharp(layer)
        return scores.masked_fill(~seen, -torch.inf)

    def attention(self, layer, attention, hidden_states):
        states = hidden_states[0]
        weights = self.scores(layer, attention, states).softmax(-1)
        value = attention.v_proj(states).view(len(states), -1, attention.head_dim).transpose(0, 1)
        out = (weights @ value.repeat_interleave(len(weights) // len(value), 0)).transpose(0, 1)
        return attention.o_proj(out.flatten(1))[None], None


def far(model, wanted: torch.Tensor) -> float:
    """The largest difference to the twin's logits, in standard deviations of these."""
    with torch.inference_mode():
        return float((model(input_ids=IDS, use_cache=False).logits - wanted).abs().max() / wanted.std())


def held(family: str, name: str, settings: dict, twin: Callable[[torch.nn.Module], torch.Tensor]) -> None:
    """The model with a mitigation computes what its twin does, and what the model as it is does not."""
    model = built(family)
    wanted = twin(model)
    assert far(model, wanted) > 0.01
    apply_mitigation(model, name, settings)
    apart = far(model, wanted)
    print(f"{name} {family} {apart:.1e}")
    assert apart < CLOSE


@pytest.mark.parametrize("family", ALL)
def test_a_twin_without_a_change_is_the_model(family):
    model = built(family)
    assert far(model, Twin(model).logits()) < CLOSE


class Scaled(Twin):
    """`linear`, `ntk` and `yarn` of the layers with full attention; the others of Gemma 3 keep their RoPE."""

    factor, kind, original = 3.0, "linear", 24

    def frequencies(self, layer, size):
        own = super().frequencies(layer, size)
        if self.kinds[layer] != "full_attention":
            return own
        if self.kind == "linear":
            return own / self.factor
        if self.kind == "ntk":
            base = self.base(layer) * self.factor ** (size / (size - 2))
            return base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        # The ramp between 32 turns and 1 within the length trained for is linear in a frequency's index, as in the
        # authors' code, from the index below to that above.
        turns = [size * math.log(self.original / (n * 2 * math.pi)) / (2 * math.log(self.base(layer))) for n in (32, 1)]
        low, high = max(math.floor(turns[0]), 0), min(math.ceil(turns[1]), size - 1)
        slow = ((torch.arange(size // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
        return slow * own / self.factor + (1 - slow) * own

    def sharp(self, layer):
        is_sharp = self.kind == "yarn" and self.kinds[layer] == "full_attention"
        return (0.1 * math.log(self.factor) + 1) ** 2 if is_sharp else 1.0


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("name", ["linear", "ntk", "yarn"])
def test_scalings_of_rope(family, name):
    def twin(model):
        scaled = Scaled(model)
        scaled.kind = name
        return scaled.logits()

    settings = {"factor": 3.0} | ({"original_max_position_embeddings": 24} if name == "yarn" else {})
    held(family, name, settings, twin)


class ByLayer(Twin):
    def distances(self, layer, i, j, plain, seen):
        return (i - j) / [1.0, 1.3, 1.7, 2.0][layer]


@pytest.mark.parametrize("family", ALL)
def test_factors_of_layers(family):
    held(family, "lpes", {"factors": [1.0, 1.3, 1.7, 2.0]}, lambda model: ByLayer(model).logits())


class MsPoe(Twin):
    """Section 3.3: the share of tokens with more than three times the mean attention of the last, without positions."""

    def distances(self, layer, i, j, plain, seen):
        if layer < 2:
            return i - j
        row, visible = plain[:, -1].softmax(-1), int(seen[-1].sum())
        sensitivity = ((row > 3 / visible) & seen[-1]).sum(-1) / visible
        sensitivity = sensitivity.view(self.model.config.num_key_value_heads, -1).mean(-1)
        ranks = sensitivity.argsort(descending=True, stable=True).argsort()
        factors = 1.2 + 0.6 * ranks / (len(ranks) - 1)
        return (i - j) / factors.repeat_interleave(len(plain) // len(ranks))[:, None, None]


@pytest.mark.parametrize("family", ALL)
def test_factors_of_heads_ranked_at_the_prompt(family):
    held(family, "ms-poe", {}, lambda model: MsPoe(model).logits())
