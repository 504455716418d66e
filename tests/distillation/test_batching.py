"""How a step's rows are divided into what is read at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from posgap.distillation.batching import MAX_PADDING, MicroBatch, divide_rows, group_micro_batches

steps = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([None, "a", "b", "c", "d", "e"])), min_size=1, max_size=40
)


def calls(part: MicroBatch, world: int) -> list[list[list[int]]]:
    return [list(part.calls(rank, world)) for rank in range(world)]


@given(steps, st.integers(1, 4), st.integers(1, 200))
def test_every_row_is_read_in_calls_that_all_processes_make_and_that_fit(step, world, most_tokens):
    lengths, keys = [length for length, _ in step], [key for _, key in step]
    groups = group_micro_batches(keys, lengths, world, most_tokens)
    parts = [part for group in groups for part in group]
    assert sorted(row for part in parts for row in part.items) == list(range(len(step)))
    for part in parts:
        by_rank = calls(part, world)
        assert len({tuple(map(len, own)) for own in by_rank}) == 1  # ZeRO-3 waits for ever otherwise
        assert {row for own in by_rank for call in own for row in call} == set(part.items)
        read = [sum(len(call) * max(lengths[row] for row in call) for call in own) for own in by_rank]
        assert max(read) == part.tokens and (part.tokens <= most_tokens or part.is_least)
        assert part.is_least == (len(part.items) <= world)
        for call in by_rank[0]:
            assert min(lengths[row] for row in call) >= (1 - MAX_PADDING) * max(lengths[row] for row in call)


@given(steps, st.integers(1, 4), st.integers(1, 200))
def test_rows_that_are_weighed_together_are_in_one_group_and_the_others_in_the_last(step, world, most_tokens):
    lengths, keys = [length for length, _ in step], [key for _, key in step]
    groups = group_micro_batches(keys, lengths, world, most_tokens)
    keys_of = [{keys[row] for part in group for row in part.items} for group in groups]
    assert all(count == 1 for count in Counter(key for group in keys_of for key in group - {None}).values())
    free = [None in group for group in keys_of]
    assert free == sorted(free) and all(group == {None} for group, after in zip(keys_of[1:], free) if after)
    for *full, last in groups:
        for part in full:
            (key,) = {keys[row] for row in part.items}
            assert key in {keys[row] for row in last.items}


def test_padding_counts_towards_what_fits():
    assert [part.items for part in divide_rows([0, 1], [100, 96], 1, 199)] == [(0,), (1,)]
    assert [part.items for part in divide_rows([0, 1], [100, 96], 1, 200)] == [(0, 1)]
    assert [part.items for part in divide_rows([0, 1], [100, 96], 1, 196, padded=False)] == [(0, 1)]


def test_groups_are_padded_or_not_as_their_micro_batches_are():
    for key in ("a", None):
        for padded, rows in ((True, [(0,), (1,)]), (False, [(0, 1)])):
            groups = group_micro_batches([key, key], [100, 96], 1, 196, padded)
            assert [part.items for group in groups for part in group] == rows


@given(steps, st.integers(1, 4), st.integers(1, 200), st.booleans())
def test_a_micro_batch_has_as_many_of_the_longest_rows_as_fit(step, world, most_tokens, padded):
    lengths = [length for length, _ in step]
    left, twin = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)), []
    while left:
        fits = [
            count
            for count in range(1, len(left) + world, world)
            if MicroBatch.plan(left[: count + world - 1], lengths, world, padded).tokens <= most_tokens
        ]
        taken = max(fits, default=1) + world - 1
        twin.append(tuple(left[:taken]))
        left = left[taken:]
    parts = divide_rows(range(len(lengths)), lengths, world, most_tokens, padded)
    assert [part.items for part in parts] == twin
    for part in parts:
        own = [lengths[row] for row in part.items[::world]]
        assert padded or (part.sizes == (len(own),) and part.tokens == sum(own))


def test_the_largest_rests_are_packed_first_each_where_there_is_room():
    keys = ["a", "b", "b", "c", "c", "d"]
    packed = group_micro_batches(keys, [1] * 6, 1, 3)
    assert [[part.items for part in group] for group in packed] == [[(0, 1, 2)], [(3, 4, 5)]]
    # By the number of rows, which is what leaves room; and the first group with room takes them.
    keys = ["a", "a", "a", "b", "b", "b", "c", "d"]
    packed = group_micro_batches(keys, [1] * 8, 1, 4)
    assert [[part.items for part in group] for group in packed] == [[(0, 1, 2, 6)], [(3, 4, 5, 7)]]
    # Three short rows before a long one; and what has no key is in the last groups, though the first had room.
    packed = group_micro_batches(["a", "b", "b", "b", None], [10, 2, 2, 2, 2], 1, 10)
    assert [[part.items for part in group] for group in packed] == [[(1, 2, 3)], [(0,)], [(4,)]]
    # What fits exactly fits; one token less, and it does not.
    assert (
        len(group_micro_batches(["a", "b"], [2, 2], 1, 4)) == 1
        and len(group_micro_batches(["a", "b"], [2, 2], 1, 3)) == 2
    )
    # Full micro-batches come before the one that others share.
    (group,) = group_micro_batches(["a", "b", "b", "b"], [1] * 4, 1, 2)
    assert [part.items for part in group] == [(1, 2), (0, 3)]
    assert group_micro_batches([None, None], [1, 1], 1, 1) == [[part] for part in divide_rows([0, 1], [1, 1], 1, 1)]


def test_small_positions_share_a_micro_batch_and_the_anchors_fill_it_up():
    keys = ["a", "b", "b", None, "c", None]
    assert [[part.items for part in group] for group in group_micro_batches(keys, [10] * 6, 1, 40)] == [
        [(0, 1, 2, 4)],
        [(3, 5)],
    ]
    assert [[part.items for part in group] for group in group_micro_batches(keys, [10] * 6, 1, 60)] == [
        [(0, 1, 2, 3, 4, 5)]
    ]
    # A position that is too large by itself, and one that its rest has room for.
    assert [part.items for part in group_micro_batches(keys, [10] * 6, 1, 10)[1]] == [(1,), (2,)]
    keys = ["a", "b", "b", "b", None]
    assert [[part.items for part in group] for group in group_micro_batches(keys, [10] * 5, 1, 20)] == [
        [(1, 2), (0, 3)],
        [(4,)],
    ]


def test_prompts_of_like_length_are_read_together_longest_first():
    (part,) = divide_rows(range(5), [50, 100, 96, 49, 90], 1, 1000)
    assert list(part.calls(0, 1)) == [[1, 2, 4], [0, 3]] and part.tokens == 400
    first, second = divide_rows(range(5), [50, 100, 96, 49, 90], 2, 150)
    assert calls(first, 2) == [[[1]], [[2]]] and first.tokens == 100
    assert calls(second, 2) == [[[4], [3]], [[0], [3]]] and second.tokens == 139  # the last row fills up


@given(st.integers(1, 20), st.integers(1, 6))
def test_processes_share_a_micro_batch_evenly(count, world):
    micro_batch, rows = MicroBatch.plan(range(count), [1] * count, world), list(range(count))
    shared = [[row for call in own for row in call] for own in calls(micro_batch, world)]
    assert len(set(map(len, shared))) == 1
    interleaved = [row for column in zip(*shared) for row in column]
    assert interleaved[:count] == rows and len(interleaved) < count + world
    assert all(row == rows[-1] for row in interleaved[count:])
