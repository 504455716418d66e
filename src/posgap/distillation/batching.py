"""How the rows of a step are read: which share a sequence, and which are in memory at the same time.

A row is one prompt with its response. A step's rows are read in micro-batches of a given number of tokens: either one
by one, beside rows of similar length, or in bundles that share a prefix. Every process makes the same layout from the
rows' lengths, so all call the model equally often, as ZeRO-3 needs.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from posgap.distillation.branches import count_common_tokens

# The largest share of padding in a row of one call of the model.
MAX_PADDING = 1 / 8
# The extra cost of a prompt in a bundle, in tokens: its attention is computed alone, and the shared keys and values are
# laid out once more for it (a quarter of a token's memory, at most). Prompts with less in common are not bundled.
TOKENS_A_BRANCH = 64
A_SHARED_TOKEN = 1 / 4


@dataclass(frozen=True)
class MicroBatch:
    """Items (rows or bundles), by index, whose activations are held at the same time; processes take turns.

    `items` are ordered by falling length. `sizes` has the number of items in each call of the model by a process, and
    `tokens` the tokens that a process reads in these calls, padding included.
    """

    items: tuple[int, ...]
    sizes: tuple[int, ...]
    tokens: int

    @classmethod
    def plan(cls, items: Sequence[int], lengths: Sequence[int], world: int, padded: bool = True) -> "MicroBatch":
        """Returns the micro-batch of `items` on `world` processes; `lengths` covers all items of the step.

        Unless `padded`, a process reads all its items in one call.
        """
        ordered = sorted(sorted(items), key=lambda item: lengths[item], reverse=True)
        own = [lengths[item] for item in ordered[::world]]
        if not padded:
            return cls(tuple(ordered), (len(own),), sum(own))
        widths = padded_widths(own)
        sizes = Counter(widths)  # which fall, so that equal ones stand together
        return cls(tuple(ordered), tuple(sizes.values()), sum(widths))

    @property
    def is_least(self) -> bool:
        """Whether no process reads more than one item, so that this cannot be divided."""
        return sum(self.sizes) == 1

    def calls(self, rank: int, world: int) -> Iterator[list[int]]:
        """Yields the items of each call of the model on process `rank` of `world`.

        Processes have equally many: if the items cannot be dealt out evenly, copies of the last one fill up the end.
        """
        own = list(self.items[rank::world])
        own += [self.items[-1]] * (sum(self.sizes) - len(own))
        start = 0
        for size in self.sizes:
            yield own[start : start + size]
            start += size


@dataclass(frozen=True)
class BatchLayout:
    """How the rows of a step are read: `groups` of micro-batches, as the engine needs them, of `bundles` of rows.

    Bundles hold indices of rows, and micro-batches hold indices of bundles. If `shared`, the rows of a bundle share
    their common tokens, and each micro-batch is one sequence; else bundles are single rows.
    """

    bundles: list[tuple[int, ...]]
    groups: list[list[MicroBatch]]
    shared: bool

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """All micro-batches."""
        return list(chain(*self.groups))

    @property
    def cost(self) -> int:
        """The tokens that a process reads forwards, a backward pass counted as two: all but the last micro-batch of a
        group are read forwards twice."""
        total = 0
        for group in self.groups:
            total += 4 * sum(micro_batch.tokens for micro_batch in group)
            total -= group[-1].tokens
        return total

    def rows_of_rank(self, micro_batch: MicroBatch, rank: int, world: int) -> list[int]:
        """The rows of a micro-batch that process `rank` of `world` reads, in its order, without copies."""
        return [row for bundle in micro_batch.items[rank::world] for row in self.bundles[bundle]]

    def is_least(self, micro_batch: MicroBatch) -> bool:
        """Whether no process reads more than one row of a micro-batch, so that it cannot be divided."""
        return micro_batch.is_least and max(len(self.bundles[bundle]) for bundle in micro_batch.items) == 1


def padded_widths(lengths: Sequence[int]) -> list[int]:
    """Returns each row's padded width. Rows come longest first; a new call of the model starts when padding would
    exceed MAX_PADDING.
    """
    widths: list[int] = []
    for length in lengths:
        begins = not widths or length < (1 - MAX_PADDING) * widths[-1]
        widths.append(length if begins else widths[-1])
    return widths


def divide_rows(
    rows: Sequence[int], lengths: Sequence[int], world: int, most_tokens: int, padded: bool = True
) -> list[MicroBatch]:
    """Divides `rows` into micro-batches of at most `most_tokens` tokens a process, longest rows first.

    A longer row is read by itself.
    """
    rest = sorted(sorted(rows), key=lambda row: lengths[row], reverse=True)
    micro_batches = []
    while rest:
        widths = [lengths[row] for row in rest[::world]]
        widths = padded_widths(widths) if padded else widths
        count = world * max(1, bisect_right(list(accumulate(widths)), most_tokens))
        micro_batches.append(MicroBatch.plan(rest[:count], lengths, world, padded))
        rest = rest[count:]
    return micro_batches


def group_micro_batches(
    weight_groups: Sequence[Hashable | None],
    lengths: Sequence[int],
    world: int,
    most_tokens: int,
    padded: bool = True,
) -> list[list[MicroBatch]]:
    """Divides a step's rows into groups of micro-batches, so that rows of one of `weight_groups` are in one group.

    If the rows of a weight group do not fit into a micro-batch, some fill micro-batches of their own, and the rest is
    in the group's last one, which may have all rows of other weight groups. Rows with a fixed weight (`None`) are in
    the last groups.
    """
    by_key: dict[Hashable | None, list[int]] = {}
    for row, key in enumerate(weight_groups):
        by_key.setdefault(key, []).append(row)
    fixed = by_key.pop(None, [])
    # The largest rest first: so they leave the least room unused.
    by_size: dict[int, list[list[MicroBatch]]] = {}
    for rows in by_key.values():
        divided = divide_rows(rows, lengths, world, most_tokens, padded)
        by_size.setdefault(len(divided[-1].items), []).append(divided)
    groups: list[list[MicroBatch]] = []
    for size in sorted(by_size, reverse=True):
        for *full, rest in by_size[size]:
            for group in groups:
                both = MicroBatch.plan((*group[-1].items, *rest.items), lengths, world, padded)
                if both.tokens <= most_tokens:
                    group[:] = [*full, *group[:-1], both]
                    break
            else:
                groups.append([*full, rest])
    if groups and fixed:
        both = MicroBatch.plan((*groups[-1][-1].items, *fixed), lengths, world, padded)
        if both.tokens <= most_tokens:
            groups[-1][-1] = both
            return groups
    return groups + [[micro_batch] for micro_batch in divide_rows(fixed, lengths, world, most_tokens, padded)]


def lay_out_alone(
    weight_groups: Sequence[Hashable | None], lengths: Sequence[int], world: int, most_tokens: int
) -> BatchLayout:
    """Returns the layout that reads every row by itself, padded to its neighbours' length."""
    groups = group_micro_batches(weight_groups, lengths, world, most_tokens)
    return BatchLayout(list(zip(range(len(lengths)))), groups, False)


def lay_out_shared(
    weight_groups: Sequence[Hashable | None],
    examples: Sequence[Hashable],
    prompts: Sequence[Sequence[int]],
    world: int,
    most_tokens: int,
) -> BatchLayout:
    """Packs the rows of each of `examples` into bundles of at most `most_tokens` tokens.

    Tries rows of fixed weight (`None`) inside and outside the bundles of the others, and keeps the cheaper layout.
    """
    layouts = []
    for apart in (False, True):
        kinds = [(example, apart and key is None) for example, key in zip(examples, weight_groups)]
        bundles, lengths = _bundle_rows(kinds, prompts, most_tokens)
        groups = group_micro_batches(_link_groups(weight_groups, bundles), lengths, world, most_tokens, padded=False)
        layouts.append(BatchLayout(bundles, groups, True))
    inside, outside = layouts
    return outside if outside.cost < inside.cost else inside


def _bundle_rows(
    kinds: Sequence[Hashable], prompts: Sequence[Sequence[int]], most_tokens: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns bundles of rows of one kind, and the tokens of each.

    Rows in order of their tokens have as much in common with the one before as they can.
    """
    first = [kinds.index(kind) for kind in kinds]  # each kind's first row: kinds keep this order
    ordered = sorted(zip(first, map(list, prompts), range(len(kinds))))
    bundles: list[list[int]] = []
    lengths: list[int] = []
    before: tuple[int, Sequence[int]] = (-1, ())
    for kind, prompt, row in ordered:
        shared = count_common_tokens(before[1], prompt) if before[0] == kind else 0
        cost = len(prompt) + TOKENS_A_BRANCH
        beside = cost - round((1 - A_SHARED_TOKEN) * shared)
        if shared > TOKENS_A_BRANCH and lengths[-1] + beside <= most_tokens:
            bundles[-1].append(row)
            lengths[-1] += beside
        else:
            bundles.append([row])
            lengths.append(cost)
        before = kind, prompt
    return [tuple(bundle) for bundle in bundles], lengths


def _link_groups(weight_groups: Sequence[Hashable | None], bundles: Sequence[Sequence[int]]) -> list[Hashable | None]:
    """Merges weight groups that share a bundle, and returns one group per bundle; `None` if all its weights are
    fixed."""
    of_bundles = [{weight_groups[row] for row in bundle} for bundle in bundles]
    if any(None in keys and len(keys) > 1 for keys in of_bundles):
        # A fixed-weight row must not enter a gradient that is rescaled later, so all these rows come together.
        return [None if keys == {None} else "by loss" for keys in of_bundles]
    merged = dict(zip(weight_groups, weight_groups))
    for keys in of_bundles:
        first, *others = {merged[key] for key in keys}
        for key, group in merged.items():
            if group in others:
                merged[key] = first
    return [merged[next(iter(keys))] for keys in of_bundles]
