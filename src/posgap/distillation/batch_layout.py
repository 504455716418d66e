"""How the rows of a step are read: each by itself, or in bundles that share what they have in common."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

from posgap.distillation.branches import in_common
from posgap.distillation.micro_batches import MicroBatch, in_groups

# What a prompt in a bundle costs beside its own tokens, in tokens: attention is computed for it alone, for which the
# keys and values of what it shares are laid out once more (a quarter of a token's memory, at most). Prompts that have
# less in common are not bundled.
TOKENS_A_BRANCH = 64
A_SHARED_TOKEN = 1 / 4


@dataclass(frozen=True)
class BatchLayout:
    """How the rows of a step are read: `groups` of micro-batches, as the engine needs them, of `bundles` of rows.

    Bundles hold indices of rows, and micro-batches those of bundles. If `shared`, the rows of a bundle share what they
    have in common, and each micro-batch is one sequence; else bundles are single rows.
    """

    bundles: list[tuple[int, ...]]
    groups: list[list[MicroBatch]]
    shared: bool

    @property
    def parts(self) -> list[MicroBatch]:
        """All micro-batches."""
        return [part for group in self.groups for part in group]

    @property
    def tokens(self) -> int:
        """The tokens that a process reads forwards, a backward pass counted as two: all but the last micro-batch of a
        group are read forwards twice."""
        return sum(3 * part.tokens for part in self.parts) + sum(p.tokens for group in self.groups for p in group[:-1])

    def rows(self, part: MicroBatch, rank: int, world: int) -> list[int]:
        """The rows of a micro-batch that process `rank` of `world` reads, in its order, without copies."""
        return [row for bundle in part.rows[rank::world] for row in self.bundles[bundle]]

    def is_least(self, part: MicroBatch) -> bool:
        """Whether no process reads more than one row of a micro-batch, so that it cannot be divided."""
        return part.is_least and all(len(self.bundles[bundle]) == 1 for bundle in part.rows)


def without_sharing(
    together: Sequence[Hashable | None], lengths: Sequence[int], world: int, most_tokens: int
) -> BatchLayout:
    """Every row by itself, padded to those beside it; `together` has the keys of rows that are weighed together."""
    return BatchLayout([(row,) for row in range(len(lengths))], in_groups(together, lengths, world, most_tokens), False)


def with_shared_prefixes(
    together: Sequence[Hashable | None],
    examples: Sequence[Hashable],
    prompts: Sequence[Sequence[int]],
    world: int,
    most_tokens: int,
) -> BatchLayout:
    """The rows of one of `examples` in bundles of at most `most_tokens` tokens; those without a key in `together` are
    beside the others of their example, or not, whichever takes fewer tokens in all."""
    ways = []
    for apart in (False, True):
        kinds = [(example, apart and key is None) for example, key in zip(examples, together)]
        bundles, lengths = _bundles(kinds, prompts, most_tokens)
        groups = in_groups(_keys(together, bundles), lengths, world, most_tokens, padded=False)
        ways.append(BatchLayout(bundles, groups, True))
    return min(ways, key=lambda way: way.tokens)


def _bundles(
    kinds: Sequence[Hashable], prompts: Sequence[Sequence[int]], most_tokens: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Bundles of rows of the same kind, and the tokens of each. Beside each other in order of their tokens, rows have
    as much in common as they can."""
    number = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
    ordered = sorted(range(len(prompts)), key=lambda row: (number[kinds[row]], list(prompts[row])))
    bundles: list[list[int]] = []
    lengths: list[int] = []
    for _, rows in groupby(ordered, key=lambda row: kinds[row]):
        before: Sequence[int] = ()
        for row in rows:
            shared, cost = in_common(before, prompts[row]), len(prompts[row]) + TOKENS_A_BRANCH
            beside = cost - round((1 - A_SHARED_TOKEN) * shared)
            if shared > TOKENS_A_BRANCH and lengths[-1] + beside <= most_tokens:
                bundles[-1].append(row)
                lengths[-1] += beside
            else:
                bundles.append([row])
                lengths.append(cost)
            before = prompts[row]
    return list(map(tuple, bundles)), lengths


def _keys(together: Sequence[Hashable | None], bundles: Sequence[Sequence[int]]) -> list[Hashable | None]:
    """For each bundle a key, the same for those whose rows are weighed together, if only through other bundles; `None`
    if the weights of its rows depend on no loss."""
    of_bundles = [{together[row] for row in bundle} for bundle in bundles]
    if any(None in keys and len(keys) > 1 for keys in of_bundles):
        # What has no key may be added to no gradient that is multiplied later: so all others come at once.
        return [None if keys == {None} else "by loss" for keys in of_bundles]
    linked: dict[Hashable | None, Hashable | None] = {key: key for key in together}

    def root(key: Hashable | None) -> Hashable | None:
        while linked[key] != key:
            key = linked[key]
        return key

    for first, *rest in map(list, of_bundles):
        for key in rest:
            linked[root(key)] = root(first)
    return [root(next(iter(keys))) for keys in of_bundles]
