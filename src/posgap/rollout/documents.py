"""The influence of each document of a prompt: shares by document and gold position, and whether a share tells that the
answer will be right.

In shapes, E counts prompts, n the documents of a prompt, N its tokens, L layers and H heads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from posgap.rollout.distributions import RESAMPLES, mean_interval, percentile_interval
from posgap.tasks.document_spans import Span

BINS = 5  # groups of equally many prompts, by the gold document's share


class Asked(NamedTuple):
    """A prompt of an example: the gold document's position, counted from 1, and the columns [first, after the last) of
    each document's tokens. `cut` where documents lost tokens to the prompts' common length."""

    id: str
    position: int
    spans: tuple[Span, ...]
    cut: bool


def shortened(spans: Sequence[Span], lost: int) -> tuple[tuple[Span, ...], bool]:
    """Where documents stand in a prompt that has lost so many tokens right behind its first one, and whether any of
    those were theirs."""
    moved = tuple((max(1, first - lost), max(1, after - lost)) for first, after in spans)
    return moved, any(first - lost < 1 for first, _ in spans) and lost > 0


def by_document(rows: np.ndarray, spans: Sequence[Sequence[Span]]) -> np.ndarray:
    """What of the distributions `rows [E, ..., N]` falls on each document, [E, ..., n]."""
    sums = np.concatenate([np.zeros_like(rows[..., :1]), np.cumsum(rows, axis=-1)], axis=-1)
    return np.stack(
        [
            np.stack([own[..., after] - own[..., first] for first, after in each], axis=-1)
            for own, each in zip(sums, spans)
        ]
    )


def summary(
    asked: Sequence[Asked],
    shares: Mapping[str, np.ndarray],
    attention: np.ndarray,
    seed: int,
) -> dict[str, Any]:
    """What `measurement.json` holds of documents, from each prompt's `shares [E, n]` by measure and the last token's
    `attention [E, L, H, n]`.

    For each gold position that was asked: how many prompts; by measure the mean share of every document, and of the
    gold one its 95 % bootstrap interval over prompts; and by layer the last token's attention to the gold document,
    averaged over heads. A share is of the whole influence, of which other tokens of the prompt have the rest.
    """
    positions = np.array([each.position for each in asked])
    there = np.unique(positions)
    rng = np.random.default_rng(seed)
    by_layer = np.take_along_axis(attention.mean(axis=2), (positions - 1)[:, None, None], axis=2)[..., 0]
    measures = {}
    for name, values in shares.items():
        gold = gold_shares(values, positions)
        groups = [gold[positions == position] for position in there]
        measures[name] = {
            "documents": [values[positions == position].mean(axis=0).tolist() for position in there],
            "gold": [float(group.mean()) for group in groups],
            "gold_ci95": [mean_interval(group, rng) for group in groups],
        }
    return {
        "n_docs": attention.shape[-1],
        "positions": there.tolist(),
        "prompts": [int((positions == position).sum()) for position in there],
        "cut": sum(each.cut for each in asked),
        "measures": measures,
        "attention_to_gold": [by_layer[positions == position].mean(axis=0).tolist() for position in there],
        "asked": [[each.id, each.position] for each in asked],
    }


def gold_shares(shares: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The gold document's share of each prompt, [E], from `shares [E, n]` and its `positions [E]`, counted from 1."""
    return np.take_along_axis(shares, (positions - 1)[:, None], axis=1)[:, 0]


def joined(
    asked: Iterable[Sequence[Any]],
    shares: Mapping[str, np.ndarray],
    answers: Mapping[tuple[str, int], float],
    seed: int,
) -> dict[str, Any]:
    """Whether the gold document's share of a prompt tells that its answer is right: by measure, `shares [E, n]`.

    `asked` has each prompt's example and gold position, `answers` their scores from 0 to 1 in a sweep; prompts that the
    sweep did not ask are left out. `auc` is the chance that of a right and a wrong answer the right one's share is
    greater (0.5: it tells nothing), `auc_ci95` its bootstrap interval over prompts, `auc_within_position` the same
    among prompts with one gold position, so that it is no matter of position alone. `calibration` has groups of equally
    many prompts, from the least shares to the greatest: mean share, and accuracy in percent.
    """
    kept = [(at, answers[tuple(each)]) for at, each in enumerate(map(tuple, asked)) if tuple(each) in answers]
    if not kept:
        return {"prompts": 0, "measures": {}}
    rows, right = np.array([at for at, _ in kept]), np.array([score for _, score in kept]) > 0.5
    positions = np.array([position for _, position in asked])[rows]
    rng, told = np.random.default_rng(seed), {}
    for name, values in shares.items():
        gold = gold_shares(values[rows], positions)
        groups = [group for group in np.array_split(np.argsort(gold, kind="stable"), BINS) if len(group)]
        told[name] = {
            "auc": auc(gold, right),
            "auc_ci95": _auc_interval(gold, right, rng),
            "auc_within_position": auc(gold, right, positions),
            "calibration": [
                {"share": float(gold[g].mean()), "accuracy": 100 * float(right[g].mean()), "prompts": len(g)}
                for g in groups
            ],
        }
    return {"prompts": len(rows), "accuracy": 100 * float(right.mean()), "measures": told}


def auc(values: np.ndarray, right: np.ndarray, groups: np.ndarray | None = None) -> float | None:
    """The chance that the value of one that is `right` [E] exceeds that of one that is not (Mann and Whitney; a tie
    counts half), among pairs of one of the `groups` [E]; None without such a pair."""
    wins, pairs = 0.0, 0
    for group in [np.full(len(values), True)] if groups is None else [groups == each for each in np.unique(groups)]:
        own, good = values[group], right[group]
        n_good, n_bad = int(good.sum()), int((~good).sum())
        if n_good and n_bad:
            wins += float(rankdata(own)[good].sum()) - n_good * (n_good + 1) / 2
            pairs += n_good * n_bad
    return wins / pairs if pairs else None


def _auc_interval(values: np.ndarray, right: np.ndarray, rng: np.random.Generator) -> list[float] | None:
    drawn = rng.integers(len(values), size=(RESAMPLES // 4, len(values)))
    areas = [area for each in drawn if (area := auc(values[each], right[each])) is not None]
    return percentile_interval(np.array(areas)) if len(areas) == len(drawn) else None


def summary_text(documents: Mapping[str, Any], measure: str = "rollout") -> str:
    """One sentence on the gold document's share by its position."""
    gold, positions = documents["measures"][measure]["gold"], documents["positions"]
    least, most = int(np.argmin(gold)), int(np.argmax(gold))
    even = 100 / documents["n_docs"]
    said = (
        f"by document, the gold one draws from {100 * gold[least]:.1f} % of the {measure} (at position "
        f"{positions[least]}) to {100 * gold[most]:.1f} % (at {positions[most]}); evenly it were at most {even:.1f} %"
    )
    if documents["cut"]:
        said += f"; {documents['cut']} prompts lost tokens of their first documents to the common length"
    return said


def joined_summary(told: Mapping[str, Any], label: str, measure: str = "rollout") -> str:
    """One sentence on what `joined` found."""
    if not told["prompts"]:
        return f"{label} asked none of the measured examples at the same position, so shares are not joined to answers"
    figures = told["measures"][measure]
    if figures["auc"] is None:
        return (
            f"{label} answered all of the {told['prompts']} measured prompts alike, so no share can tell a right answer"
        )
    interval, within = figures["auc_ci95"], figures["auc_within_position"]
    between = f", {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
    alone = f"; among prompts of one gold position {within:.2f}" if within is not None else ""
    least, most = figures["calibration"][0], figures["calibration"][-1]
    return (
        f"on {told['prompts']} of the measured prompts the gold document's share of the {measure} tells right answers "
        f"of {label} from wrong ones with AUC {figures['auc']:.2f}{between}{alone}; accuracy is "
        f"{least['accuracy']:.0f} % in the fifth with the least shares and {most['accuracy']:.0f} % in that with the "
        "most"
    )
