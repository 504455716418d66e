"""What a step of training reads, and the tensors it becomes."""

from collections import Counter
from dataclasses import fields, replace
from math import ceil

import pytest
import torch
from examples import answered
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.distillation.batches import (
    Batch,
    TrainingPrompt,
    drawable_placements,
    pair_up,
    plan_steps,
    replace_by_gold,
    teacher_prompts,
)
from posgap.distillation.objectives import R1
from posgap.foundation.errors import BadOption, PosgapError
from posgap.tasks.placements import Placement

TRIVIAL = [(2,), (3,), (4,), (5,)]
AT_FIRST = [(1,)] * 1000  # where the responses of as many pairs were sampled


PINNED = [
    TrainingPrompt(2, (1,)),
    TrainingPrompt(2, (3,)),
    TrainingPrompt(0, (1,)),
    TrainingPrompt(0, (2,)),
    TrainingPrompt(1, (1,)),
    TrainingPrompt(1, (2,)),
]
PROMPTS = R1(AT_FIRST, "none", anchoring=1.0).draw_prompts  # those of each draw, and that at the advantageous position


def planned(n=12, k=2, epochs=1, batch=12, seed=0, places=TRIVIAL):
    return plan_steps([places] * n, PROMPTS, k, epochs, batch, seed)


@settings(deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 20), st.integers(1, 3), st.integers(1, 40), st.integers(0, 9), st.data(),
)  # fmt: skip
def test_the_plan_takes_every_pair_once_an_epoch_at_k_placements(n, n_places, epochs, batch, seed, data):
    places = [(i,) for i in range(2, n_places + 2)]
    k = data.draw(st.integers(0, n_places))
    steps, each = planned(n, k, epochs, batch, seed, places), k + 1
    rows, sizes = [row for step in steps for row in step], list(map(len, steps))
    learnt = len(rows) // epochs
    for epoch in range(epochs):
        placed = [(row.pair, row.positions) for row in rows[epoch * learnt : (epoch + 1) * learnt]]
        assert len(set(placed)) == len(placed) and {positions for _, positions in placed} <= {(1,), *places}
        of_pairs, at_best = Counter(pair for pair, _ in placed), sum(positions == (1,) for _, positions in placed)
        assert of_pairs == dict.fromkeys(range(n), each) and at_best == n
    assert all(len(step) == each * len({row.pair for row in step}) for step in steps)
    wanted = min(ceil(n * each / batch), n)
    sizes = [size // each for size in sizes]
    assert len(sizes) == epochs * wanted and max(sizes) <= ceil(n / wanted) and max(sizes) - min(sizes) <= 1
    assert steps == planned(n, k, epochs, batch, seed, places)


def test_a_newer_version_cuts_an_epoch_into_the_same_steps():
    """A run goes on from its checkpoint by the plan."""
    assert [len(step) for step in planned(10, 1, 1, 8)] == [6, 8, 6]
    assert [len(step) for step in planned(9, 1, 2, 4)] == [4, 4, 2, 4, 4] * 2
    assert planned(3, 1, 1, 6) == [PINNED]


def test_order_and_placements_are_drawn_anew_each_epoch_and_for_each_seed():
    def passes(seed):
        rows = [row for step in planned(epochs=2, seed=seed) for row in step]
        return rows[:36], rows[36:]

    drawn = [*passes(0), *passes(1)]
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])
    assert len({tuple(row.pair for row in rows) for rows in drawn}) == 4
    assert len({tuple(sorted(rows)) for rows in drawn}) == 4


def test_every_placement_is_as_likely():
    drawn = Counter(row.positions for step in planned(1000, epochs=2, batch=300) for row in step)
    assert drawn.pop((1,)) == 2000 and sorted(drawn) == TRIVIAL
    assert all(abs(count - 1000) < 100 for count in drawn.values())  # five standard deviations are 112


def test_no_pair_is_drawn_where_its_teacher_reads():
    teachers = [(1,), (5,), (3,)] * 40
    placements = [[place for place in [(1,), *TRIVIAL] if place != own] for own in teachers]
    rows = R1(teachers, "paper", 1.0).draw_prompts
    steps = plan_steps(placements, rows, 3, 2, 60, seed=0)
    placed = Counter((row.pair, row.positions) for step in steps for row in step)
    assert sum(placed.values()) == 120 * 2 * (3 + 1)
    assert all(placed[pair, own] == 2 for pair, own in enumerate(teachers))  # the anchors, once an epoch
    drawn = Counter((teachers[pair], positions) for pair, positions in placed.elements() if positions != teachers[pair])
    assert len(drawn) == 3 * 4 and min(drawn.values()) > 40
    with pytest.raises(BadOption, match="k=5: .* 4 "):
        plan_steps(placements, rows, 5, 1, 60, seed=0)


def test_a_pair_is_drawn_among_its_own_documents_and_never_at_its_anchor():
    pairs = answered()[:2]
    pairs[1] = replace(pairs[1], response=pairs[1].response.model_copy(update={"n_docs": 3, "placement": [3]}))
    assert drawable_placements(pairs, [(1,), (3,)]) == [TRIVIAL, [(1,), (2,)]]
    assert drawable_placements(pairs, None) == [[(1,), *TRIVIAL], [(1,), (2,), (3,)]]


def test_more_placements_than_there_are_is_refused():
    assert len(planned(10, 4, 1, 20)) == 3
    with pytest.raises(BadOption, match="k=5: .* 4 "):
        planned(10, 5)


def test_responses_are_paired_with_their_examples_whatever_the_order(pairs):
    examples, responses = [p.example for p in pairs], [p.response for p in reversed(pairs)]
    assert pair_up(examples, responses) == pairs[::-1]
    assert pair_up(examples, responses[1:3]) == pairs[::-1][1:3]  # not every example has a response


def test_responses_to_other_examples_are_refused(pairs):
    examples, responses = [p.example for p in pairs], [p.response for p in pairs]
    with pytest.raises(PosgapError, match="^1 .* kv-3; "):
        pair_up(examples[:3], responses)
    with pytest.raises(PosgapError, match="^2 .* kv-0; "):
        pair_up(examples[2:], responses)


def test_the_gold_answer_takes_the_response_s_place_and_nothing_else_changes(pairs, collate, tokenizer):
    changed = replace_by_gold(pairs[2], collate.builder)
    assert changed.example == pairs[2].example
    *answer, end = changed.response.token_ids
    assert tokenizer.decode(answer).strip() == pairs[2].example.value and end == tokenizer.eos_token_id
    assert changed.response.model_copy(update={"token_ids": pairs[2].response.token_ids}) == pairs[2].response


def test_the_teacher_reads_each_pair_where_its_response_was_given():
    pairs = answered()
    pairs[1] = type(pairs[1])(pairs[1].example, pairs[1].response.model_copy(update={"placement": [4]}))
    assert teacher_prompts(pairs) == [
        TrainingPrompt(0, (1,)),
        TrainingPrompt(1, (4,)),
        TrainingPrompt(2, (1,)),
        TrainingPrompt(3, (1,)),
    ]


def test_a_batch_predicts_the_response_from_the_last_prompt_token_on(pairs, collate):
    rows = [TrainingPrompt(0, (1,)), TrainingPrompt(1, (4,)), TrainingPrompt(2, (2,))]
    batch = collate(rows)
    assert batch.rows == rows and batch.lengths.tolist() == [2, 3, 1]
    targets, columns = (each.split(batch.lengths.tolist()) for each in (batch.targets, batch.columns))
    widths = []
    for i, row in enumerate(rows):
        response = pairs[row.pair].response.token_ids
        prompt = collate.builder(pairs[row.pair].example, Placement(row.positions, 5))
        read = prompt + response[:-1]
        widths.append(len(read))
        assert batch.input_ids[i, : len(read)].tolist() == read
        assert set(batch.input_ids[i, len(read) :].tolist()) <= {collate.builder.tokenizer.pad_token_id}
        start = i * batch.input_ids.shape[1]
        assert columns[i].tolist() == list(range(start + len(prompt) - 1, start + len(read)))
        assert targets[i].tolist() == response
    assert batch.input_ids.shape == (3, max(widths)) and len(set(widths)) > 1


def test_a_row_s_key_is_that_of_what_is_read_there(pairs, collate, tokenizer):
    rows = [TrainingPrompt(pair, positions) for pair in range(len(pairs)) for positions in [(1,), *TRIVIAL]]
    keys = [collate.digest(row) for row in rows]
    assert len(set(keys)) == len(rows)
    again = type(collate)(pairs[::-1], collate.builder)
    assert [again.digest(TrainingPrompt(len(pairs) - 1 - row.pair, row.positions)) for row in rows] == keys
    longer = type(collate)(answered(lengths=(3, 3, 2, 3)), collate.builder)
    assert longer.digest(rows[0]) != keys[0] and longer.digest(rows[5]) == keys[5]


def test_a_batch_moves_to_a_device_as_a_whole(collate):
    batch = collate.collate_shared([[TrainingPrompt(0, (1,)), TrainingPrompt(0, (4,))]])
    moved = batch.to(torch.device("meta"))
    assert moved.rows == batch.rows and moved.branches is batch.branches
    for field in fields(Batch)[1:-1]:
        before, after = getattr(batch, field.name), getattr(moved, field.name)
        assert after.device.type == "meta" and (after.shape, after.dtype) == (before.shape, before.dtype)
    assert torch.equal(batch.to(torch.device("cpu")).targets, batch.targets)
