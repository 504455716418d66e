"""What a step of training reads, and the tensors it becomes."""

from collections import Counter
from dataclasses import fields
from math import ceil

import pytest
import torch
from conftest import answered
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.distillation.batches import (
    Batch,
    Row,
    advantageous_rows,
    chunks,
    pair_up,
    plan,
    share,
    with_gold,
)
from posgap.errors import PosgapError
from posgap.tasks.placements import Placement

TRIVIAL = [(2,), (3,), (4,), (5,)]


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(2, 20), st.integers(1, 3), st.integers(1, 8), st.integers(0, 9), st.data())
def test_the_plan_takes_every_pair_once_an_epoch_at_k_placements(n, n_places, epochs, batch, seed, data):
    places = [(i,) for i in range(1, n_places + 1)]
    k = data.draw(st.integers(0, n_places))
    steps = plan(n, places, k, epochs, batch, seed)
    draws = [draw for step in steps for draw in step]
    for epoch in range(epochs):
        assert sorted(d.pair for d in draws[epoch * n : (epoch + 1) * n]) == list(range(n))
    for draw in draws:
        assert len(set(draw.placements)) == len(draw.placements) == k
        assert set(draw.placements) <= set(places) and list(draw.placements) == sorted(draw.placements)
    sizes = list(map(len, steps))
    assert len(sizes) == epochs * ceil(n / batch) and max(sizes) <= batch and max(sizes) - min(sizes) <= 1
    assert steps == plan(n, places, k, epochs, batch, seed)


def test_a_newer_version_cuts_an_epoch_into_the_same_steps():
    """A run goes on from its checkpoint by the plan."""
    assert [len(step) for step in plan(10, TRIVIAL, 1, 1, 4, 0)] == [3, 4, 3]
    assert [len(step) for step in plan(9, TRIVIAL, 1, 2, 2, 0)] == [2, 2, 1, 2, 2] * 2


def test_order_and_placements_are_drawn_anew_each_epoch_and_for_each_seed():
    def passes(seed):
        draws = [draw for step in plan(12, TRIVIAL, 2, 2, 4, seed) for draw in step]
        return draws[:12], draws[12:]

    drawn = [*passes(0), *passes(1)]
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])
    assert len({tuple(draw.pair for draw in draws) for draws in drawn}) == 4
    assert len({tuple(draw.placements for draw in sorted(draws, key=lambda d: d.pair)) for draws in drawn}) == 4


def test_every_placement_is_as_likely():
    drawn = Counter(p for step in plan(1000, TRIVIAL, 2, 2, 100, 0) for draw in step for p in draw.placements)
    assert sorted(drawn) == TRIVIAL
    assert all(abs(count - 1000) < 100 for count in drawn.values())  # five standard deviations are 112


def test_more_placements_than_there_are_is_refused():
    assert len(plan(10, TRIVIAL, 4, 1, 4, 0)) == 3
    with pytest.raises(PosgapError, match="k=5: there are only 4 placements"):
        plan(10, TRIVIAL, 5, 1, 4, 0)


@given(st.lists(st.integers(), min_size=1, max_size=20), st.integers(1, 6))
def test_processes_share_a_step_evenly(rows, world):
    shared = [share(rows, rank, world) for rank in range(world)]
    assert len(set(map(len, shared))) == 1
    interleaved = [row for column in zip(*shared) for row in column]
    assert interleaved[: len(rows)] == rows and len(interleaved) < len(rows) + world
    assert all(row == rows[0] for row in interleaved[len(rows) :])


@given(st.lists(st.integers(), max_size=20), st.integers(1, 6))
def test_chunks_are_the_rows_in_runs_of_one_size_but_for_the_last(rows, size):
    parts = list(chunks(rows, size))
    assert [row for part in parts for row in part] == rows
    assert all(len(part) == size for part in parts[:-1]) and all(0 < len(part) <= size for part in parts[-1:])


def test_responses_are_paired_with_their_examples_whatever_the_order(pairs):
    examples, responses = [p.example for p in pairs], [p.response for p in reversed(pairs)]
    assert pair_up(examples, responses) == pairs[::-1]
    assert pair_up(examples, responses[1:3]) == pairs[::-1][1:3]  # not every example has a response


def test_responses_to_other_examples_are_refused(pairs):
    examples, responses = [p.example for p in pairs], [p.response for p in pairs]
    complaint = "responses belong to examples that are not in `examples`, the first to"
    with pytest.raises(PosgapError, match=f"1 {complaint} kv-3"):
        pair_up(examples[:3], responses)
    with pytest.raises(PosgapError, match=f"2 {complaint} kv-0"):
        pair_up(examples[2:], responses)


def test_the_gold_answer_takes_the_response_s_place_and_nothing_else_changes(pairs, collate, tokenizer):
    changed = with_gold(pairs[2], collate.build)
    assert changed.example == pairs[2].example
    *answer, end = changed.response.token_ids
    assert tokenizer.decode(answer).strip() == pairs[2].example.value and end == tokenizer.eos_token_id
    assert changed.response.model_copy(update={"token_ids": pairs[2].response.token_ids}) == pairs[2].response


def test_the_teacher_reads_each_pair_where_its_response_was_given():
    pairs = answered()
    pairs[1] = type(pairs[1])(pairs[1].example, pairs[1].response.model_copy(update={"placement": [4]}))
    assert advantageous_rows(pairs) == [Row(0, (1,)), Row(1, (4,)), Row(2, (1,)), Row(3, (1,))]


def test_a_batch_predicts_the_response_from_the_last_prompt_token_on(pairs, collate):
    rows = [Row(0, (1,)), Row(1, (4,)), Row(2, (2,))]
    batch = collate(rows)
    assert batch.predicts.dtype == torch.bool
    assert batch.rows == rows and batch.lengths.tolist() == [2, 3, 1]
    targets = batch.targets.split(batch.lengths.tolist())
    widths = []
    for i, row in enumerate(rows):
        response = pairs[row.pair].response.token_ids
        prompt = collate.build(pairs[row.pair].example, Placement(row.positions, 5))
        read = prompt + response[:-1]
        widths.append(len(read))
        assert batch.input_ids[i, : len(read)].tolist() == read
        assert set(batch.input_ids[i, len(read) :].tolist()) <= {collate.build.tokenizer.pad_token_id}
        assert batch.predicts[i].nonzero().flatten().tolist() == list(range(len(prompt) - 1, len(read)))
        assert targets[i].tolist() == response
    assert batch.input_ids.shape == batch.predicts.shape == (3, max(widths)) and len(set(widths)) > 1


def test_a_row_s_key_is_that_of_what_is_read_there(pairs, collate, tokenizer):
    rows = [Row(pair, positions) for pair in range(len(pairs)) for positions in [(1,), *TRIVIAL]]
    keys = [collate.key(row) for row in rows]
    assert len(set(keys)) == len(rows)
    again = type(collate)(pairs[::-1], collate.build)
    assert [again.key(Row(len(pairs) - 1 - row.pair, row.positions)) for row in rows] == keys
    longer = type(collate)(answered(lengths=(3, 3, 2, 3)), collate.build)
    assert longer.key(rows[0]) != keys[0] and longer.key(rows[5]) == keys[5]


def test_a_batch_moves_to_a_device_as_a_whole(collate):
    batch = collate([Row(0, (1,)), Row(1, (4,))])
    moved = batch.to(torch.device("meta"))
    assert moved.rows == batch.rows
    for field in fields(Batch)[1:]:
        before, after = getattr(batch, field.name), getattr(moved, field.name)
        assert after.device.type == "meta" and (after.shape, after.dtype) == (before.shape, before.dtype)
    assert torch.equal(batch.to(torch.device("cpu")).targets, batch.targets)
