"""The last token's rollout by scans against products of attention matrices.

    python benchmarks/rollout.py [--quick] [--tokens 2048] [--layers 32] [--heads 32]

Both sides predict the same ALiBi architecture with a content score per layer and head, and must
agree. They differ in how they get there:

- products (how public implementations do it): an N x N softmax per head and layer, averaged over
  heads, then the product of the layers' N x N matrices, of which the last row is read.
- ours: `posgap.rollout`: the last row is carried down through linear recurrences.

`--quick` runs both at a smaller size. The last line is JSON: `speed_ratio` (products / ours),
`max_error` (of any entry), `long_seconds` and `long_tokens` (ours alone, where no matrix would fit).
"""

import argparse
import time

import numpy as np
from report import conclude

from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.encodings import alibi_slopes


def architecture(n: int, n_layers: int, n_heads: int) -> Architecture:
    rng = np.random.default_rng(0)
    lambdas = np.linspace(0.5, 0.05, n_layers)
    content = rng.normal(size=(n_layers, n_heads))
    return Architecture(n, Mask.causal(n), lambdas, alibi_slopes(n_heads)[None], diagonal=content)


def by_products(described: Architecture) -> np.ndarray:
    """The last row of the product of all layers' matrices."""
    n = described.n
    distance = np.subtract.outer(np.arange(n), np.arange(n)).astype(float)
    hidden = distance < 0
    rollout = np.eye(n)
    for strength, diagonal in zip(described.lambdas, described.diagonal):
        mean = np.zeros((n, n))
        for slope, content in zip(described.slopes[0], diagonal):
            scores = -slope * distance
            scores[hidden] = -np.inf
            scores[np.diag_indices(n)] += content
            np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
            mean += scores / scores.sum(axis=1, keepdims=True)
        rollout = ((1 - strength) * np.eye(n) + strength * mean / len(diagonal)) @ rollout
    return rollout[-1]


def timed(work) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1024 tokens, 8 layers: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    for name, default in {"tokens": 2048, "layers": 32, "heads": 32, "long-tokens": 100_000, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.layers = 1024, 8
    size = f"N = {options.tokens}, L = {options.layers}, H = {options.heads}"
    described = architecture(options.tokens, options.layers, options.heads)
    slow, expected = timed(lambda: by_products(described))
    quick, carried = min((timed(described.rollout) for _ in range(options.repeats)), key=lambda run: run[0])
    error = float(np.abs(carried - expected).max())
    assert error <= 1e-9, error
    long, row = timed(architecture(options.long_tokens, options.layers, options.heads).rollout)
    assert abs(row.sum() - 1) < 1e-9
    lines = [
        f"products of matrices, {size}: {slow:8.3f} s",
        f"scans,                {size}: {quick:8.3f} s",
        f"scans, N = {options.long_tokens}: {long:8.3f} s",
    ]
    figures = {"speed_ratio": round(slow / quick, 1), "max_error": error}
    figures |= {"long_seconds": round(long, 2), "long_tokens": options.long_tokens}
    conclude("rollout", TEXT, lines, figures, options.write)


TEXT = """\
## The last token's rollout against products of matrices

Written by `benchmarks/rollout.py --write` on {date}, one CPU thread a side or more as NumPy likes. ALiBi heads, a
residual strength and a diagonal content a layer, the same architecture on both sides; `max_error` is the greatest
difference of any entry of the last row.
"""


if __name__ == "__main__":
    main()
