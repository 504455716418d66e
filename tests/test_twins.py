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
from conftest import ROOT
from test_pine import naive

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import apply
from posgap.models.layout import during_forward

# Of the logits' deviation: in a model of 64 bits rotary tables are of 32, and so are the logits of buckets.
CLOSE = 1e-4
LENGTH = 40
IDS = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(3))
PROMPT, SPANS, DUMMY = LENGTH, [(2, 9), (9, 20), (22, 34)], 7
SETTINGS = {
    "llama": {},
    "qwen2": {"num_key_value_heads": 2},
    "gemma3_text": {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma3_text, no windows": {"num_key_value_heads": 2, "layer_types": ["full_attention"] * 4},
}
ALL = ["llama", "qwen2", "gemma3_text"]


def built(family: str) -> torch.nn.Module:
    return families.build(family.partition(",")[0], **SETTINGS[family]).double()


class Twin:
    """What an attention computes, a pair at a time; a mitigation's twin overrides what it changes."""

    def __init__(self, model):
        self.model, self.maps = copy.deepcopy(model), {}
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

    def looks(self, layer, states) -> torch.Tensor:
        """The states of which the last query and what it sees are made."""
        return states

    def weights(self, layer, weights) -> torch.Tensor:
        return weights

    def out(self, layer, out) -> torch.Tensor:
        """What heads add, `[n, H, D]`."""
        return out

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
        scores = self.scores(layer, attention, states)
        scores[:, -1] = self.scores(layer, attention, self.looks(layer, states))[:, -1]
        weights = self.maps[layer] = self.weights(layer, scores.softmax(-1))
        value = attention.v_proj(states).view(len(states), -1, attention.head_dim).transpose(0, 1)
        out = (weights @ value.repeat_interleave(len(weights) // len(value), 0)).transpose(0, 1)
        return attention.o_proj(self.out(layer, out).flatten(1))[None], None


def far(model, wanted: torch.Tensor) -> float:
    """The largest difference to the twin's logits, in standard deviations of these."""
    with torch.inference_mode(), during_forward(model, SPANS, PROMPT):
        return float((model(input_ids=IDS, use_cache=False).logits - wanted).abs().max() / wanted.std())


def held(family: str, name: str, settings: dict, twin: Callable[[torch.nn.Module], torch.Tensor]) -> None:
    """The model with a mitigation computes what its twin does, and what the model as it is does not."""
    model = built(family)
    wanted = twin(model)
    assert far(model, wanted) > 0.01
    apply(model, name, settings)
    apart = far(model, wanted)
    print(f"{name} {family} {apart:.1e}")
    assert apart < CLOSE


@pytest.mark.parametrize("family", [*ALL, "gemma3_text, no windows"])
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

    together = False

    def distances(self, layer, i, j, plain, seen):
        if layer < 2:
            return i - j
        row, visible = plain[:, -1].softmax(-1), int(seen[-1].sum())
        sensitivity = ((row > 3 / visible) & seen[-1]).sum(-1) / visible
        if self.together:
            sensitivity = sensitivity.view(self.model.config.num_key_value_heads, -1).mean(-1)
        ranks = sensitivity.argsort(descending=True, stable=True).argsort()
        factors = 1.2 + 0.6 * ranks / (len(ranks) - 1)
        return (i - j) / factors.repeat_interleave(len(plain) // len(ranks))[:, None, None]


@pytest.mark.parametrize(
    ("family", "heads"), [*((family, "query") for family in ALL), ("qwen2", "key"), ("gemma3_text", "key")]
)
def test_factors_of_heads_ranked_at_the_prompt(family, heads):
    def twin(model):
        ranked = MsPoe(model)
        ranked.together = heads == "key"
        return ranked.logits()

    held(family, "ms-poe", {"heads": heads}, twin)


class Extended(Twin):
    """Figure 3: distances beyond the window are those of groups, moved so that they go on from it."""

    def distances(self, layer, i, j, plain, seen):
        return torch.where(i - j < 6, i - j, i // 4 - j // 4 + 6 - 6 // 4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_self_extend(family):
    held(family, "self-extend", {"group": 4, "window": 6}, lambda model: Extended(model).logits())


class Gated(Twin):
    def out(self, layer, out):
        return out * torch.tensor(GATES[layer], dtype=torch.float64)[:, None]


GATES = [[1.0, 0.5, 0.0, 1.5], [1.0] * 4, [0.7, 1.3, 0.9, 1.1], [0.0, 1.0, 1.0, 2.0]]


@pytest.mark.parametrize("family", ALL)
def test_head_gates(family):
    held(family, "head-gates", {"gates": GATES}, lambda model: Gated(model).logits())


class Channel(Twin):
    """Section 3.3: of the last token, its query and the keys that it sees are made of states with a scaled channel."""

    def looks(self, layer, states):
        if layer not in (1, 2):
            return states
        states = states.clone()
        states[:, 3] *= -1.0
        return states


@pytest.mark.parametrize("family", ALL)
def test_channel_scaling(family):
    settings = {"channel": 3, "factor": -1.0, "layers": [1, 2]}
    held(family, "channel-scaling", settings, lambda model: Channel(model).logits())


def per_token(maps: dict) -> torch.Tensor:
    """The attention of the last token to each document, a token of it, over layers and heads."""
    rows = torch.stack([maps[layer][:, -1] for layer in sorted(maps)]).mean((0, 1))
    return torch.stack([rows[start:end].mean() for start, end in SPANS])


class Calibrated(Twin):
    """Equations 2 to 6 of Hsieh et al.: what a dummy in a document's place gets is the bias of the place."""

    def __init__(self, model):
        super().__init__(model)
        plain, found = Twin(model), []
        plain.logits()
        own = per_token(plain.maps)
        for document, (start, end) in enumerate(SPANS):
            ids = IDS.clone()
            ids[:, start:end] = DUMMY
            plain.logits(ids)
            found.append(own[document] - per_token(plain.maps)[document])
        self.shares = (torch.stack(found) / 0.05).softmax(0)

    def weights(self, layer, weights):
        if layer < 2:
            return weights
        weights = weights.clone()
        row = weights[:, -1]
        in_all = sum(row[:, start:end].sum(-1) for start, end in SPANS)
        size = sum(float(share) * (end - start) for share, (start, end) in zip(self.shares, SPANS))
        for share, (start, end) in zip(self.shares.tolist(), SPANS):
            among = row[:, start:end] / row[:, start:end].sum(-1, keepdim=True)
            row[:, start:end] = among * (in_all * share * (end - start) / size)[:, None]
        return weights


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text, no windows"])
def test_calibration(family):
    settings = {"temperature": 0.05, "last_layers": 2, "dummy": DUMMY}
    held(family, "calibration", settings, lambda model: Calibrated(model).logits())


@pytest.mark.parametrize("family", ALL)
def test_attention_buckets(family):
    """Section 3.2 with the logits of the authors' code; Gemma 3's layers with windows keep their base."""
    bases = [1e4, 3e4, 1e5]

    def twin(model):
        made = []
        for base in bases:
            one = Twin(model)
            one.base = lambda layer, one=one, base=base: (
                base if one.kinds[layer] == "full_attention" else Twin.base(one, layer)
            )
            made.append(one.logits())
        sure = torch.stack([each.amax(-1, keepdim=True) for each in made]).softmax(0)
        return (sure * torch.stack(made)).sum(0)

    held(family, "attention-buckets", {"bases": bases}, twin)


@pytest.mark.parametrize("family", ALL)
def test_attention_sorting_goes_by_what_the_last_token_attends_to(family):
    """Of all layers and heads, summed over a document's tokens; Gemma 3's windows see no early document."""
    model = built(family)
    twin = Twin(model)
    twin.logits()
    row = torch.stack([twin.maps[layer][:, -1] for layer in range(4)]).mean((0, 1))
    wanted = torch.tensor([float(row[start:end].sum()) for start, end in SPANS])
    tokens = families.Words()
    shares = TransformersGenerator(model, tokens, 4096).attention(IDS[0].tolist(), SPANS)
    apart = float((torch.tensor(shares) - wanted).abs().max())
    print(f"attention-sorting {family} {apart:.1e}")
    assert apart < CLOSE


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_pine(family):
    """Section 3.3, in a layer: test_pine.py has the twin, which is of 64 bits here."""
    spans = [(2, 9), (9, 20), (20, 34)]  # what stands between documents would belong to the later one
    model = built(family)
    apply(model, "pine", {})
    layer, caught = model.model.layers[1].self_attn, []
    layer.register_forward_hook(lambda _, a, k, o: caught.append((k["hidden_states"][0], o[0][0])), with_kwargs=True)
    with torch.inference_mode(), during_forward(model, spans, PROMPT):
        model(input_ids=IDS, use_cache=False)
        ((states, out),) = caught
        frequencies = 1e4 ** (-torch.arange(0, layer.head_dim, 2, dtype=torch.float64) / layer.head_dim)
        wanted = layer.o_proj(naive(layer, states, spans, frequencies))
    apart = float((out - wanted).abs().max() / wanted.std())
    print(f"pine {family} {apart:.1e}")
    assert apart < CLOSE
