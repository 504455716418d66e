"""Measures the influence of each part of a prompt on its last token: of sinks, the prompt's frame and the question, and
of each document as a share of all documents.

In shapes, E counts prompts, n the documents of a prompt, N its tokens, L layers and H heads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from posgap.measurement.shape import regions
from posgap.measurement.statistics import EACH_END, LEVEL, flatness_p
from posgap.measurement.summary import p_value
from posgap.rollout.distributions import mean_interval
from posgap.tasks.document_spans import Span

SINK_TIMES = 30  # the first token is a sink, and so is one that draws more than this many times an even share
MIN_DOCUMENTS = 1e-3  # the least share that is worth dividing among documents
PARTS = ("sinks", "template", "instruction", "documents", "question", "last token")
SHAPES = {
    (1, 1): "U-shaped",
    (1, 0): "primacy",
    (1, -1): "primacy",
    (0, 1): "recency",
    (-1, 1): "recency",
    (-1, -1): "greatest in the middle",
    (-1, 0): "lowest at the beginning",
    (0, -1): "lowest at the end",
    (0, 0): "of no certain shape",
}


class MeasuredPrompt(NamedTuple):
    """A prompt of an example: the gold document's position, counted from 1; the columns [first, after the last) of each
    document's tokens, and of the task's text, around which the chat template stands."""

    id: str
    position: int
    spans: tuple[Span, ...]
    text: Span


def is_sink(row: np.ndarray, asked: MeasuredPrompt) -> np.ndarray:
    """Which tokens of a distribution `row [N]` are sinks: the first one, and those that draw more than `SINK_TIMES` an
    even share. The gold document's tokens are none, since what draws there may be the answer, nor is the last token,
    which keeps itself through the residual connections."""
    sinks = row > SINK_TIMES / len(row)
    first, after = asked.spans[asked.position - 1]
    sinks[first:after] = False
    sinks[0], sinks[-1] = True, False
    return sinks


def by_part(row: np.ndarray, asked: MeasuredPrompt) -> np.ndarray:
    """Returns how much of a distribution `row [N]` falls on each of `PARTS`; together it is all of it.

    The instruction is the task's text before and between the documents, the question its text behind them.
    """
    part = np.full(len(row), PARTS.index("template"))
    part[slice(*asked.text)] = PARTS.index("question")
    part[asked.text[0] : asked.spans[-1][1]] = PARTS.index("instruction")
    for span in asked.spans:
        part[slice(*span)] = PARTS.index("documents")
    part[-1] = PARTS.index("last token")
    part[is_sink(row, asked)] = PARTS.index("sinks")
    return np.bincount(part, row, len(PARTS))


def by_document(row: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Returns how much of `row [..., N]` falls on each document, [..., n]."""
    sums = np.concatenate([np.zeros_like(row[..., :1]), np.cumsum(row, axis=-1)], axis=-1)
    return np.stack([sums[..., after] - sums[..., first] for first, after in spans], axis=-1)


def among_documents(row: np.ndarray, asked: MeasuredPrompt) -> np.ndarray:
    """Returns each document's share [n] of the documents' part of a distribution `row [N]`, without sinks; nan if that
    part is 0."""
    shares = by_document(np.where(is_sink(row, asked), 0.0, row), asked.spans)
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), np.nan)


def summarize_documents(
    asked: Sequence[MeasuredPrompt], influence: Mapping[str, Sequence[np.ndarray]], attention: np.ndarray, seed: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the documents' entry in `measurement.json`, and each prompt's shares among documents [E, n] by measure,
    from each prompt's distributions [N] by measure and the last token's `attention [E, L, H, n]`.

    By measure: the mean share of each of `PARTS` in the whole influence, with a 95 % interval over prompts; the mean
    share of each document among the documents, with its interval, and the shape of these shares (`shape_of`); and for
    each tested gold position the gold document's mean share among documents with its interval. By layer: the last
    token's attention to the gold document, averaged over heads.
    """
    positions = np.array([each.position for each in asked])
    there = np.unique(positions)
    rng = np.random.default_rng(seed)
    by_layer = np.take_along_axis(attention.mean(axis=2), (positions - 1)[:, None, None], axis=2)[..., 0]
    measures = {}
    shares = {}
    for name, rows in influence.items():
        parts = np.stack([by_part(row, prompt) for row, prompt in zip(rows, asked)])
        among = np.stack([among_documents(row, prompt) for row, prompt in zip(rows, asked)])
        if parts[:, PARTS.index("documents")].mean() < MIN_DOCUMENTS or not np.isfinite(among).all():
            continue  # without residual connections nearly all of it can be on the first token
        gold = np.take_along_axis(among, (positions - 1)[:, None], axis=1)[:, 0]
        groups = [gold[positions == position] for position in there]
        shares[name] = among
        measures[name] = {
            "parts": dict(zip(PARTS, parts.mean(axis=0).tolist())),
            "parts_ci95": {part: mean_interval(of, rng) for part, of in zip(PARTS, parts.T)},
            "documents": among.mean(axis=0).tolist(),
            "documents_ci95": [mean_interval(of, rng) for of in among.T],
            **shape_of(among),
            "gold": [float(group.mean()) for group in groups],
            "gold_ci95": [mean_interval(group, rng) for group in groups],
        }
    described = {
        "n_docs": attention.shape[-1],
        "positions": there.tolist(),
        "prompts": np.unique(positions, return_counts=True)[1].tolist(),
        "measures": measures,
        "attention_to_gold": [by_layer[positions == position].mean(axis=0).tolist() for position in there],
        "asked": [[each.id, each.position] for each in asked],
    }
    return described, shares


def shape_of(shares: np.ndarray) -> dict[str, Any]:
    """Returns the shape of the documents' `shares [E, n]` in their order, tested over prompts; nothing for fewer than
    three documents or two prompts.

    `flatness_p` is the probability of shares that differ this much if position makes no difference (sign flips,
    `statistics.flatness_p`). Below 5 % the shape is named after two differences: the first third minus the middle, and
    the last third minus the middle. The name states what their t-intervals show for certain (95 %, each by itself).
    """
    if shares.shape[1] < 3 or len(shares) < 2:
        return {}
    first, middle, last = regions([[i] for i in range(shares.shape[1])]).values()
    p = flatness_p(shares)
    of_middle = shares[:, middle].mean(axis=1)
    before, first_side = _difference(shares[:, first].mean(axis=1) - of_middle)
    after, last_side = _difference(shares[:, last].mean(axis=1) - of_middle)
    return {
        "shape": SHAPES[(first_side, last_side) if p < LEVEL else (0, 0)],
        "flatness_p": p,
        "first_minus_middle_ci95": before,
        "last_minus_middle_ci95": after,
    }


def _difference(values: np.ndarray) -> tuple[list[float], int]:
    """The 95 % t-interval of the mean of `values [E]`, and the sign that it leaves no doubt about, or 0."""
    half = student.isf(EACH_END, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    low = float(values.mean() - half)
    high = float(values.mean() + half)
    return [low, high], int(low > 0) - int(high < 0)


def documents_text(documents: Mapping[str, Any], measure: str = "rollout") -> str:
    """Says what draws the influence, and the documents' part of it by position, in one sentence."""
    measured = documents["measures"].get(measure)
    if not measured:
        return f"the documents draw nothing of the {measure}"
    parts = measured["parts"]
    gold = measured["gold"]
    positions = documents["positions"]
    said = ", ".join(f"{name} {100 * parts[name]:.1f} %" for name in PARTS)
    least = int(np.argmin(gold))
    most = int(np.argmax(gold))
    shape = f"; by position the documents' shares are {measured['shape']}" if "shape" in measured else ""
    tested = f" ({p_value(measured['flatness_p'])} if position has no effect)" if shape else ""
    return (
        f"of the {measure}: {said}{shape}{tested}; of what all documents draw, the gold one draws "
        f"{100 * gold[least]:.1f} % (at position {positions[least]}) to {100 * gold[most]:.1f} % "
        f"(at {positions[most]}), against an even {100 / documents['n_docs']:.1f} %"
    )
