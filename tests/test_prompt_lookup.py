"""Drafts of responses: where they are looked up, how long they are, and that they change no answer."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_generation import answers, by_hand, groups_of, llama
from transformers import DynamicCache

from posgap.generation.generator import Sampling
from posgap.generation.prefix_cache import without_gaps
from posgap.generation.prompt_lookup import MAX_DRAFT, MAX_RESPONSES, MAX_RUN, MIN_RUN, PromptLookup, continuation
from posgap.generation.transformers import TransformersGenerator
from posgap.tasks.prompts import Prompt

REPEATED = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 5, 6]  # 7 and so on follow


@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=30), st.integers(0, 5))
def test_a_continuation_is_what_followed_the_longest_run_where_it_stood_last(before, limit):
    text = [*before, -1, 0, 1]

    def run(end):  # how many tokens up to this one, which is not the last, are those at the text's end
        return next((n for n in range(MAX_RUN) if n > end or text[end - n] != text[-1 - n]), MAX_RUN)

    best = max(range(len(text) - 1), key=lambda end: (run(end), end))
    followed = text[best + 1 : best + 1 + limit] if run(best) >= MIN_RUN else []
    expected = followed[: followed.index(-1)] if -1 in followed else followed
    assert continuation(np.array(text), limit) == expected


def test_other_responses_are_searched_and_those_to_the_same_group_come_first():
    lookup, prompt = PromptLookup(), [1, 2, 3]
    assert lookup.text(0, prompt).tolist() == [-1, 1, 2, 3]
    lookup.add(0, prompt, [20, 21, 22])
    lookup.add(1, prompt, [30, 31, 32])
    (draft,) = lookup.drafts([lookup.text(0, prompt)], [3])
    assert draft == [20, 21, 22]
    (draft,) = lookup.drafts([lookup.text(2, prompt)], [2])
    assert draft == [30, 31]
    for number in range(MAX_RESPONSES):
        lookup.add(3, [4], [number + 40])
    assert lookup.drafts([lookup.text(0, prompt)], [3]) == [[]]


def test_drafts_are_as_long_as_pays():
    lookup = PromptLookup()
    repeated, unknown = np.array(REPEATED), np.arange(40)
    (alone,) = lookup.drafts([repeated], [40])
    beside, *others = lookup.drafts([repeated] * 2 + [unknown] * 2, [40] * 4)
    assert alone == list(range(7, 7 + len(alone))) and 0 < len(beside) < len(alone) < MAX_DRAFT
    assert others == [beside, [], []]
    assert lookup.drafts([repeated] + [unknown] * 40, [40] * 41) == [[]] * 41
    assert lookup.drafts([repeated, repeated], [1, 0]) == [[7], []]


def test_drafts_that_are_wrong_become_shorter_and_end():
    lookup, lengths = PromptLookup(), []
    for _ in range(300):
        (draft,) = lookup.drafts([np.array(REPEATED)], [40])
        lengths.append(len(draft))
        lookup.count(len(draft), 0)
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[30] > lengths[-1] == 0
    lookup, before = PromptLookup(), lengths[0]
    for _ in range(60):
        lookup.count(8, 8)
    assert before < len(lookup.drafts([np.array(REPEATED)], [40])[0])


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4), st.data())
def test_columns_without_tokens_are_dropped(masks, data):
    mask = torch.tensor(masks).long()
    rows = data.draw(st.lists(st.integers(0, len(masks) - 1), min_size=1, unique=True).map(sorted))
    held = (torch.arange(mask.numel()).view(mask.shape) + 1.0)[:, None, :, None]
    states = DynamicCache()
    states.update(held, -held, 0)
    kept = without_gaps(states, mask, rows)
    keys, values = states.layers[0].keys[:, 0, :, 0], states.layers[0].values[:, 0, :, 0]
    assert keys.shape == kept.shape == (len(rows), min(7, 1 + max(sum(masks[row]) for row in rows)))
    for at, row in enumerate(rows):
        assert keys[at][kept[at].bool()].tolist() == held[row, 0, :, 0][mask[row].bool()].tolist()
    assert values.tolist() == (-keys).tolist()


@pytest.mark.parametrize("budget", [1, 100, 300, 10_000])
def test_drafts_change_no_answer(tokenizer, budget):
    """Prompts that stand in their group three times are answered alike, so that drafts are right there."""
    model, groups = llama(), [group[:3] * 3 for group in groups_of(tokenizer, examples=4)]
    expected = [[by_hand(model, tokenizer, prompt, 24) for prompt in group] for group in groups]
    assert len({len(ids) for group in expected for ids in group}) > 2
    assert answers(model, tokenizer, groups, budget, new_tokens=24) == expected


def test_a_response_that_was_given_before_takes_few_forward_passes(tokenizer, monkeypatch):
    model, ((prompt, *_), *_) = llama(), groups_of(tokenizer)
    generator, passes, forward = TransformersGenerator(model, tokenizer, 1), [], model.forward

    def counting(input_ids, **rest):
        passes.append(input_ids.shape[1])
        return forward(input_ids=input_ids, **rest)

    monkeypatch.setattr(model, "forward", counting)
    taken = []
    for _, _, completion in generator.generate([[prompt] * 2], Sampling(16)):
        taken.append((len(passes), completion.token_ids))
    (first, ids), (both, again) = taken
    assert ids == again and len(ids) == 16
    assert first <= 16 and both - first <= 4


def test_drafts_are_for_precisions_in_which_rounding_decides_nothing(tokenizer):
    looks_up = [
        TransformersGenerator(llama().to(dtype), tokenizer, 1).looks_up
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    ]
    assert looks_up == [True, True, False, False]
    assert not TransformersGenerator(llama(), tokenizer, 1, reuse=False).looks_up


def test_a_prompt_of_one_token_is_answered_too(tokenizer):
    model, prompt = llama(), Prompt("", [1])
    assert answers(model, tokenizer, [[prompt, prompt]], 100) == [[by_hand(model, tokenizer, prompt)] * 2]
