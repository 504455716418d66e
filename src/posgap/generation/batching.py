"""Groups prompts into batches and orders them, so that little is read twice."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from posgap.tasks.prompts import Prompt

Group = Sequence[Prompt]
BATCH_TOKENS = 32768  # of a batch, by default
LOOK_AHEAD = 4  # batches of groups that are held in memory, to sort them by length


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yields batches of indices of nearly equal lengths, each with at most `max_tokens` tokens after padding.

    The longest come first, so that a batch that does not fit in memory fails at once. A prompt longer than
    `max_tokens` is a batch by itself.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def group_batches(groups: Iterable[Group], new_tokens: int, max_tokens: int) -> Iterator[list[tuple[int, Group]]]:
    """Yields batches of (index, group); one prompt of each of their groups fits in `max_tokens` together.

    As many groups as make several batches are read ahead, so that groups of similar lengths share a batch.
    """
    window: list[tuple[int, Group]] = []
    lengths: list[int] = []
    for index, group in enumerate(groups):
        window.append((index, group))
        lengths.append(max((len(prompt.token_ids) for prompt in group), default=0) + new_tokens)
        if sum(lengths) >= LOOK_AHEAD * max_tokens:
            for batch in batches(lengths, max_tokens):
                yield [window[at] for at in batch]
            window = []
            lengths = []
    for batch in batches(lengths, max_tokens):
        yield [window[at] for at in batch]


def shared_lengths(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """The number of tokens in the common beginning of each two prompts, `[P, P]`."""
    tokens = np.full((len(prompts), max(map(len, prompts)) + 1), -1)
    for row, prompt in zip(tokens, prompts):
        row[: len(prompt)] = prompt
    shared = []
    for row, prompt in zip(tokens, prompts):  # one at a time: a mitigation asks hundreds of prompts of an example
        differ = tokens != row
        shared.append(np.where(differ.any(axis=1), differ.argmax(axis=1), len(prompt)))
    return np.stack(shared)


def reading_order(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the order of reading prompts in which a cache of the previous prompt saves the most.

    It is a depth-first walk through the tree of the prompts' beginnings: each next prompt shares as much with the
    previous one as with any that was read before, so every branch is read once. The walk starts with the prompt that
    shares the most. Later prompts then branch off earlier and earlier, and the rows of a batch stay aligned.
    """
    if not prompts:
        return []
    shared = shared_lengths(prompts)
    order = [int(shared.sum(axis=1).argmax())]
    left = set(range(len(prompts)))
    left.remove(order[0])
    while left:
        order.append(max(sorted(left), key=lambda i: shared[order[-1], i]))
        left.remove(order[-1])
    return order
