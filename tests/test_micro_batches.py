"""How a step's rows are divided into what is read at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from posgap.distillation.micro_batches import MOST_PADDING, MicroBatch, in_groups, in_micro_batches

steps = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([None, "a", "b", "c", "d", "e"])), min_size=1, max_size=40
)


def calls(part: MicroBatch, world: int) -> list[list[list[int]]]:
    return [list(part.calls(rank, world)) for rank in range(world)]


@given(steps, st.integers(1, 4), st.integers(1, 200))
def test_every_row_is_read_in_calls_that_all_processes_make_and_that_fit(step, world, most_tokens):
    lengths, keys = [length for length, _ in step], [key for _, key in step]
    groups = in_groups(keys, lengths, world, most_tokens)
    parts = [part for group in groups for part in group]
    assert sorted(row for part in parts for row in part.rows) == list(range(len(step)))
    for part in parts:
        by_rank = calls(part, world)
        assert len({tuple(map(len, own)) for own in by_rank}) == 1  # ZeRO-3 waits for ever otherwise
        assert {row for own in by_rank for call in own for row in call} == set(part.rows)
        read = [sum(len(call) * max(lengths[row] for row in call) for call in own) for own in by_rank]
        assert max(read) == part.tokens and (part.tokens <= most_tokens or part.is_least)
        assert part.is_least == (len(part.rows) <= world)
        for call in by_rank[0]:
            assert min(lengths[row] for row in call) >= (1 - MOST_PADDING) * max(lengths[row] for row in call)


@given(steps, st.integers(1, 4), st.integers(1, 200))
def test_rows_that_are_weighed_together_are_in_one_group_and_the_others_in_the_last(step, world, most_tokens):
    lengths, keys = [length for length, _ in step], [key for _, key in step]
    groups = in_groups(keys, lengths, world, most_tokens)
    keys_of = [{keys[row] for part in group for row in part.rows} for group in groups]
    assert all(count == 1 for count in Counter(key for group in keys_of for key in group - {None}).values())
    free = [None in group for group in keys_of]
    assert free == sorted(free) and all(group == {None} for group, after in zip(keys_of[1:], free) if after)
    for *full, last in groups:
        for part in full:
            (key,) = {keys[row] for row in part.rows}
            assert key in {keys[row] for row in last.rows}


def test_small_positions_share_a_micro_batch_and_the_anchors_fill_it_up():
    keys = ["a", "b", "b", None, "c", None]
    assert [[part.rows for part in group] for group in in_groups(keys, [10] * 6, 1, 40)] == [[(0, 1, 2, 4)], [(3, 5)]]
    assert [[part.rows for part in group] for group in in_groups(keys, [10] * 6, 1, 60)] == [[(0, 1, 2, 3, 4, 5)]]
    # A position that is too large by itself, and one that its rest has room for.
    assert [part.rows for part in in_groups(keys, [10] * 6, 1, 10)[1]] == [(1,), (2,)]
    keys = ["a", "b", "b", "b", None]
    assert [[part.rows for part in group] for group in in_groups(keys, [10] * 5, 1, 20)] == [[(1, 2), (0, 3)], [(4,)]]


def test_prompts_of_like_length_are_read_together_longest_first():
    (part,) = in_micro_batches(range(5), [50, 100, 96, 49, 90], 1, 1000)
    assert list(part.calls(0, 1)) == [[1, 2, 4], [0, 3]] and part.tokens == 400
    first, second = in_micro_batches(range(5), [50, 100, 96, 49, 90], 2, 150)
    assert calls(first, 2) == [[[1]], [[2]]] and first.tokens == 100
    assert calls(second, 2) == [[[4], [3]], [[0], [3]]] and second.tokens == 139  # the last row fills up
