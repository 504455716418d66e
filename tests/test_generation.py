"""The Generator interface, transformers backend."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator, batches

PROMPTS = [[1, 4, 5, 9 + i, 10 + i % 7, 30] + [8, 12, 13] * (i % 4) for i in range(11)]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_batches_hold_every_prompt_once_and_keep_the_budget(lengths, budget):
    groups = list(batches(lengths, budget))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_padding_and_batching_do_not_change_greedy_answers(model, tokenizer):
    sampling = Sampling(max_new_tokens=5)
    together = list(TransformersGenerator(model, tokenizer, 10_000).generate(PROMPTS, sampling))
    alone = list(TransformersGenerator(model, tokenizer, 1).generate(PROMPTS, sampling))
    by_hand = []
    for prompt in PROMPTS:
        ids = list(prompt)
        while len(ids) < len(prompt) + 5 and ids[-1] != tokenizer.eos_token_id:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        by_hand.append(ids[len(prompt) :])
    assert [c.token_ids for c in together] == [c.token_ids for c in alone] == by_hand
    assert [c.text for c in together] == [c.text for c in alone]


def test_responses_end_with_their_end_token(model, tokenizer):
    generator = TransformersGenerator(model, tokenizer, 100)
    completion = generator._completion([34, tokenizer.eos_token_id, 33, 33])
    assert completion.token_ids == [34, tokenizer.eos_token_id]
    assert completion.text == tokenizer.decode([34]).strip()


def test_equal_seeds_sample_equally_and_others_do_not(model, tokenizer):
    generator = TransformersGenerator(model, tokenizer, 10_000)
    sample = lambda seed: [  # noqa: E731
        c.token_ids for c in generator.generate(PROMPTS, Sampling(5, temperature=1.0, seed=seed))
    ]
    assert sample(1) == sample(1) != sample(2)


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
