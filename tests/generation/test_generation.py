"""The Generator interface, transformers backend."""

from itertools import pairwise

import pytest
from examples import qa_example
from hypothesis import given
from hypothesis import strategies as st
from llamas import answers, by_hand, groups_of, llama, random_model
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from posgap.generation import transformers as transformers_backend
from posgap.generation.batching import LOOK_AHEAD, batches, group_batches, reading_order, shared_lengths
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Sampling, complete
from posgap.generation.prefix_cache import can_reuse_prefixes
from posgap.generation.transformers import TransformersGenerator
from posgap.tasks.placements import swept_placements
from posgap.tasks.prompts import Prompt, PromptBuilder
from posgap.tasks.registry import TASKS

PROMPTS = [Prompt("", [1, 4, 5, 9 + i, 10 + i % 7, 30] + [8, 12, 13] * (i % 4)) for i in range(11)]
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_batches_hold_every_prompt_once_and_keep_the_budget(lengths, budget):
    groups = list(batches(lengths, budget))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_groups_are_read_no_further_ahead_than_some_batches():
    made = []

    def groups():
        for i in range(1000):
            made.append(i)
            yield [Prompt("", [1] * 10)] * 3

    batches = group_batches(groups(), 0, 100)
    assert len(next(batches)) == 10
    assert len(made) == 10 * LOOK_AHEAD
    assert sorted([*range(10), *(i for batch in batches for i, _ in batch)]) == list(range(1000))


@given(st.lists(tokens, min_size=1, max_size=8))
def test_the_reading_order_reads_every_beginning_once(prompts):
    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    assert shared_lengths(prompts).tolist() == [[common(a, b) for b in prompts] for a in prompts]
    order = reading_order(prompts)
    assert sorted(order) == list(range(len(prompts)))
    walked = [prompts[i] for i in order]
    read = sum(len(p) for p in walked) - sum(common(a, b) for a, b in pairwise(walked))
    assert read == len({tuple(p[: i + 1]) for p in prompts for i in range(len(p))})  # the tree's edges


def test_padding_and_batching_do_not_change_greedy_answers(model, tokenizer):
    sampling = Sampling(max_new_tokens=5)
    together = list(complete(TransformersGenerator(model, tokenizer, 10_000), PROMPTS, sampling))
    alone = list(complete(TransformersGenerator(model, tokenizer, 1), PROMPTS, sampling))
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.token_ids for c in alone] == [by_hand(model, tokenizer, prompt) for prompt in PROMPTS]
    assert [c.text for c in together] == [c.text for c in alone]


@pytest.mark.parametrize(("attention", "budget"), [("sdpa", 1), ("sdpa", 160), ("sdpa", 10_000), ("eager", 160)])
def test_reuse_does_not_change_greedy_answers(tokenizer, budget, attention):
    model, groups = llama(attn_implementation=attention), groups_of(tokenizer)
    assert can_reuse_prefixes(model)
    expected = [[by_hand(model, tokenizer, prompt) for prompt in group] for group in groups]
    assert len({tuple(ids) for group in expected for ids in group}) > 5
    assert answers(model, tokenizer, groups, budget) == expected
    assert answers(model, tokenizer, groups, budget, reuse=False) == expected


@pytest.mark.parametrize("budget", [1, 160, 10_000])
def test_as_on_a_gpu_answers_are_the_same(tokenizer, budget, monkeypatch):
    monkeypatch.setattr(transformers_backend, "is_gpu", lambda device: True)
    model, groups = llama(), groups_of(tokenizer)
    expected = [[by_hand(model, tokenizer, prompt) for prompt in group] for group in groups]
    assert answers(model, tokenizer, groups, budget) == expected


def test_as_on_a_gpu_equal_rows_are_read_at_once_without_a_mask(tokenizer, monkeypatch):
    """One pass reads a batch, one a token writes it, and the host looks every few tokens."""
    monkeypatch.setattr(transformers_backend, "is_gpu", lambda device: True)
    model, passes, looks = llama(), [], []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append((kwargs["input_ids"].shape, kwargs.get("attention_mask") is None)),
        with_kwargs=True,
    )
    read_new = transformers_backend._Over.read_new
    monkeypatch.setattr(
        transformers_backend._Over, "read_new", lambda self, ids: (looks.append(ids.shape[1]), read_new(self, ids))[1]
    )
    groups = [[Prompt("", [1, 4, 5, 9 + i, 10 + at, 30]) for at in range(4)] for i in range(4)]
    generator = TransformersGenerator(model, tokenizer, 8 * (6 + 16))
    generator.end_ids.clear()  # so that responses are as long as they may be
    model.generation_config.eos_token_id = None
    assert len(list(generator.generate(groups, Sampling(16)))) == 16
    assert passes == 2 * ([((8, 6), True)] + 15 * [((8, 1), True)])
    assert len(looks) == 2 * 3  # after 8 tokens, after 16, and at the end


def test_penalties_in_the_model_s_generation_config_do_not_make_greedy_less_greedy(tokenizer):
    model, groups = llama(), groups_of(tokenizer)
    expected = [[by_hand(model, tokenizer, prompt) for prompt in group] for group in groups]
    for name, value in {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "top_k": 1}.items():
        setattr(model.generation_config, name, value)
    assert answers(model, tokenizer, groups, 160) == expected
    assert answers(model, tokenizer, groups, 160, reuse=False) == expected


def test_reuse_serves_pairs_and_documents_too(tokenizer):
    builder, model = PromptBuilder(TASKS["qa"], tokenizer, 512, 4), llama()
    chosen = ["1", "4", "2", "6"]
    groups = [[builder.prompt(qa_example(i, 6), p) for p in swept_placements(6, 1, chosen)] for i in (3, 44, 555)]
    assert answers(model, tokenizer, groups, 10_000) == answers(model, tokenizer, groups, 1, reuse=False)


@pytest.mark.parametrize(
    ("config", "options", "reused"),
    [
        (Qwen2Config, {}, True),
        (MistralConfig, {"sliding_window": None}, True),
        (MistralConfig, {"sliding_window": 16}, False),
        (Qwen2Config, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False),
        (LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, False),
    ],
)
def test_models_whose_cache_cannot_be_reused_answer_as_before(tokenizer, config, options, reused):
    model, groups = random_model(config, **options), groups_of(tokenizer)
    assert can_reuse_prefixes(model) == reused
    assert answers(model, tokenizer, groups, 10_000) == answers(model, tokenizer, groups, 1, reuse=False)


def test_reuse_reads_about_half(tokenizer, monkeypatch):
    model, (group,) = llama(), groups_of(tokenizer, n_docs=20, examples=1)
    read, forward = [], model.forward

    def counting(input_ids, **rest):
        read.append(input_ids.numel())
        return forward(input_ids=input_ids, **rest)

    monkeypatch.setattr(model, "forward", counting)
    answers(model, tokenizer, [group], 10_000, new_tokens=1, reuse=False)
    assert not TransformersGenerator(model, tokenizer, 1).reuse  # its signature is not to be seen any more
    monkeypatch.undo()
    generator = TransformersGenerator(model, tokenizer, 1)
    monkeypatch.setattr(model, "forward", counting)
    whole = sum(read)
    read.clear()
    list(generator.generate([group], Sampling(1)))
    assert whole == sum(len(prompt.token_ids) for prompt in group)
    assert sum(read) < 0.62 * whole


def read(tokenizer, ids):
    reading = ResponseStream(tokenizer, {tokenizer.eos_token_id}, Sampling(4))
    reading.take_all(ids)
    return reading.completion()


def test_responses_end_with_their_end_token(tokenizer):
    completion = read(tokenizer, [34, tokenizer.eos_token_id, 33, 33])
    assert completion.token_ids == [34, tokenizer.eos_token_id]
    assert completion.text == tokenizer.decode([34]).strip()


@pytest.mark.parametrize(
    ("ids", "outcome", "cut"),
    [([34, 2], "answered", False), ([34, 34], "answered", True), ([2], "empty", False), ([0, 0], "truncated", False)],
)
def test_the_outcome_of_a_local_answer_follows_from_its_tokens(tokenizer, ids, outcome, cut):
    completion = read(tokenizer, ids)
    assert (completion.outcome, completion.cut, bool(completion.reason)) == (outcome, cut, outcome != "answered")


def test_equal_seeds_sample_equally_and_others_do_not(model, tokenizer):
    generator = TransformersGenerator(model, tokenizer, 10_000)
    sample = lambda seed: [  # noqa: E731
        c.token_ids for c in complete(generator, PROMPTS, Sampling(5, temperature=1.0, seed=seed))
    ]
    assert sample(1) == sample(1) != sample(2)


def test_what_a_batch_samples_depends_on_no_other_batch(model, tokenizer):
    generator, sampling = TransformersGenerator(model, tokenizer, 40), Sampling(5, temperature=1.0, seed=3)
    batches = list(group_batches([[prompt] for prompt in PROMPTS], 5, 40))
    assert len(batches) > 3
    in_turn = list(complete(generator, PROMPTS, sampling))
    for number, batch in reversed(list(enumerate(batches))):
        answers = generator.answer_batch(number, [group for _, group in batch], sampling)
        assert {batch[row][0]: answer for row, _, answer in answers} == {index: in_turn[index] for index, _ in batch}


def test_no_prompts_no_answers(model, tokenizer):
    assert list(TransformersGenerator(model, tokenizer, 100).generate([], Sampling(5))) == []


@pytest.mark.parametrize("text", ['{"a5": "d",\n "9f": "7"}\n\nKey: "9f"\nCorresponding value:'])
def test_the_tiny_tokenizer_reads_the_real_prompt(tokenizer, text):
    prompt = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n" + text
    ids = tokenizer(prompt)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert len(ids) == 1 + 3 + 2 * 4 + 2
    # A record's value and the answer are one token, a key's digit another.
    assert tokenizer(prompt + ' "7"')["input_ids"][len(ids) :] == [ids[10]]
    assert tokenizer.decode([ids[10]]).strip() == "7"


def test_a_prompt_of_one_token_is_answered_too(tokenizer):
    model, prompt = llama(), Prompt("", [1])
    assert answers(model, tokenizer, [[prompt, prompt]], 100) == [[by_hand(model, tokenizer, prompt)] * 2]
