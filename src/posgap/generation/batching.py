"""Which prompts are read together, and in which order, so that little is read twice."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from posgap.tasks.prompts import Prompt

Group = Sequence[Prompt]
LOOK_AHEAD = 4  # batches of groups that are held in memory


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Groups indices of nearly equal lengths so that no padded batch exceeds `max_tokens`.

    Longest first, so that what does not fit in memory fails at once. A prompt longer than
    `max_tokens` is a batch of its own.
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
    """Batches of (index, group) of which one prompt each fits in `max_tokens` together.

    Some batches' worth of groups are read ahead, to put equal lengths together.
    """
    window: list[tuple[int, Group]] = []
    lengths: list[int] = []
    for indexed in enumerate(groups):
        window.append(indexed)
        lengths.append(max((len(prompt.token_ids) for prompt in indexed[1]), default=0) + new_tokens)
        if sum(lengths) >= LOOK_AHEAD * max_tokens:
            yield from ([window[i] for i in batch] for batch in batches(lengths, max_tokens))
            window, lengths = [], []
    yield from ([window[i] for i in batch] for batch in batches(lengths, max_tokens))


def shared_lengths(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """How many tokens each two prompts have in common from the first on, `[P, P]`."""
    tokens = np.full((len(prompts), max(map(len, prompts)) + 1), -1)
    for row, prompt in zip(tokens, prompts):
        row[: len(prompt)] = prompt
    differing = [tokens != row for row in tokens]
    return np.stack([np.where(d.any(axis=1), d.argmax(axis=1), len(p)) for d, p in zip(differing, prompts)])


def reading_order(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The order in which a cache of the prompt before saves the most.

    A depth-first walk through the tree of the prompts' beginnings: each next prompt shares with
    the one before as much as with any that was read, so every branch is read once. It begins
    with the prompt that shares the most: what follows branches off ever earlier, and the rows of
    a batch stay aligned.
    """
    if not prompts:
        return []
    shared = shared_lengths(prompts)
    order, left = [int(shared.sum(axis=1).argmax())], set(range(len(prompts)))
    left.remove(order[0])
    while left:
        order.append(max(sorted(left), key=lambda i: shared[order[-1], i]))
        left.remove(order[-1])
    return order
