"""What is kept of a row's last prompt, and which models it may be kept for."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CLIPVisionConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    Phi3Config,
    RwkvConfig,
)

from posgap.generation.generator import Sampling, complete
from posgap.generation.prefix_cache import PrefixCache, can_reuse_prefixes
from posgap.generation.transformers import TransformersGenerator
from posgap.models.rope_lengths import RopeLengths
from posgap.tasks.prompts import Prompt

CPU, PAD, GENERATED = torch.device("cpu"), 9, 7
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def shared(old, new, outputs):
    """How many tokens two prompts begin with alike, less those whose outputs are asked for."""
    alike = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    return max(0, min(alike, len(new) - outputs))


def read_on(cache, ids):
    """A stand-in for the model: the "key" of a token is the token, and two generated ones follow."""
    known = cache.states.get_seq_length()
    fresh = torch.cat([ids[:, known:], torch.full((len(ids), 2), GENERATED, device=CPU)], 1)[:, None, :, None].double()
    cache.states.update(fresh, fresh, 0)
    cache.forget_responses()
    return cache.states.layers[0].keys[:, 0, :, 0]


@given(st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 3))
def test_a_row_s_columns_hold_its_prompt_and_what_it_shares_is_not_read_again(groups, outputs):
    cache, before, rows = PrefixCache(len(groups), CPU), [[] for _ in groups], list(range(len(groups)))
    for turn in range(max(map(len, groups))):
        going_on = [i for i, row in enumerate(rows) if turn < len(groups[row])]
        cache.select(going_on)
        rows, before = [rows[i] for i in going_on], [before[i] for i in going_on]
        prompts = [groups[row][turn] for row in rows]
        ids, mask = cache.advance(prompts, PAD, outputs)
        rest = [prompt[shared(old, prompt, outputs) :] for old, prompt in zip(before, prompts)]
        assert ids.shape == mask.shape and ids.shape[1] - cache.states.get_seq_length() == max(map(len, rest))
        assert ids.dtype == mask.dtype == torch.long
        assert ids.tolist() == [[PAD] * (ids.shape[1] - len(r)) + r for r in rest]
        held = read_on(cache, ids)
        assert held.shape == mask.shape
        assert [row[m.bool()].tolist() for row, m in zip(held, mask)] == prompts
        before = prompts


def test_one_output_is_asked_for_unless_more_are():
    cache = PrefixCache(1, CPU)
    for prompt, kept in [([1, 2, 3], 0), ([1, 2, 3], 2), ([1, 2, 3, 4], 3), ([2], 0)]:
        ids, _ = cache.advance([prompt], PAD)
        assert cache.states.get_seq_length() == kept
        read_on(cache, ids)


def test_everything_is_made_on_the_device_that_is_asked_for():
    """Where tensors that name no device would land on another one."""
    with torch.device("meta"):
        cache = PrefixCache(2, CPU)
        for prompts in ([[1, 2], [1, 2, 3]], [[1, 3], [1, 2, 4]]):
            ids, mask = cache.advance(prompts, PAD)
            held = read_on(cache, ids)
            assert ids.device == mask.device == CPU
        cache.select([1])
        assert cache.states.layers[0].keys[0, 0, :, 0].tolist() == held[1].tolist()
        ids, mask = cache.advance([[1, 2, 3]], PAD)
        assert ids.device == mask.device == CPU
        assert ids[mask.bool()].tolist() == [PAD, PAD, 3]


SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LONG |= {"original_max_position_embeddings": 8}
FULL = {"layer_types": ["full_attention"] * 2, "head_dim": 8}
MIXED = FULL | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}


def per_kind(rope_type):
    plain, other = (
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": rope_type, "rope_theta": 1e4, "factor": 2.0},
    )
    return {"full_attention": other, "sliding_attention": plain}


@pytest.mark.parametrize(
    ("config", "reused"),
    [
        (LlamaConfig(**SIZES), True),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), True),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), False),
        (LlamaConfig(**SIZES, rope_parameters=LONG), False),
        (Gemma3TextConfig(**SIZES, **FULL, rope_parameters=per_kind("linear")), True),
        (Gemma3TextConfig(**SIZES, **FULL, rope_parameters=per_kind("dynamic")), False),
        (Gemma3TextConfig(**SIZES, **MIXED, rope_parameters=per_kind("linear")), False),  # one layer forgets
        (MistralConfig(**SIZES, sliding_window=8), False),
        (GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2), True),  # no rotary positions at all
        (BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=2), False),  # counts positions by column
    ],
)
def test_what_is_kept_must_serve_another_prompt(config, reused):
    assert can_reuse_prefixes(AutoModelForCausalLM.from_config(config)) == reused


@pytest.mark.parametrize(("rope_type", "reused"), [("linear", True), ("dynamic", False)])
def test_of_a_model_that_sees_too_the_language_model_decides(rope_type, reused):
    text = LlamaConfig(**SIZES, rope_parameters={"rope_type": rope_type, "factor": 2.0, "rope_theta": 1e4})
    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=2)
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=39)
    assert can_reuse_prefixes(LlavaForConditionalGeneration(config)) == reused


@pytest.mark.parametrize(
    ("rope", "family"),
    [
        ({**LONG, "original_max_position_embeddings": 12, "long_factor": [4.0, 3.0, 2.0, 6.0]}, Phi3Config),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, LlamaConfig),
    ],
)
def test_rope_that_follows_the_length_answers_in_any_batch_as_alone(rope, family, tokenizer):
    """Prompts on both sides of 12 tokens, and some that cross it; alone means in a model that has read nothing yet."""
    torch.manual_seed(0)
    bound = {"max_position_embeddings": 12} if family is LlamaConfig else {"original_max_position_embeddings": 12}
    config = family(**SIZES, **bound, rope_parameters=rope, pad_token_id=0, bos_token_id=1, initializer_range=0.8)
    model = AutoModelForCausalLM.from_config(config).eval().double()
    prompts = [torch.randint(3, 40, (n,)).tolist() for n in (20, 5, 30, 10, 13, 6, 25, 12, 11, 30)]

    def answers(budget, order):
        generator = TransformersGenerator(copy.deepcopy(model), tokenizer, budget)
        asked = [Prompt("", prompts[i]) for i in order]
        return dict(zip(order, (c.token_ids for c in complete(generator, asked, Sampling(4)))))

    forwards, backwards = range(len(prompts)), range(len(prompts) - 1, -1, -1)
    alone = {i: answers(1, [i])[i] for i in forwards}
    assert len({tuple(answer) for answer in alone.values()}) > 5
    for budget, order in [(1, forwards), (10_000, forwards), (90, backwards)]:
        assert answers(budget, order) == alone
    rope_lengths = RopeLengths.from_config(config)
    assert not rope_lengths.why_not_forced([(6, 4), (8, 4)])
    assert bool(rope_lengths.why_not_forced([(20, 4), (30, 4)])) == (family is LlamaConfig)
    assert "changes with the length beyond 12 tokens" in rope_lengths.why_not_forced([(10, 4)])
    assert rope_lengths.why_not_forced([(6, 4), (20, 4)])


def test_a_model_that_heeds_no_mask_reads_its_prompts_one_by_one(tokenizer):
    torch.manual_seed(0)
    config = RwkvConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, initializer_range=0.5)
    model = AutoModelForCausalLM.from_config(config).eval()
    prompts = [Prompt("", torch.randint(3, 40, (n,)).tolist()) for n in (9, 4, 7)]
    batch, alone = (
        [c.token_ids for c in complete(TransformersGenerator(model, tokenizer, budget), prompts, Sampling(4))]
        for budget in (1000, 1)
    )
    assert batch == alone
