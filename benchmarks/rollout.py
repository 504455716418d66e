"""The last token's rollout by scans against products of attention matrices.

    python benchmarks/rollout.py [--quick] [--tokens 2048] [--layers 32] [--heads 32]
    python benchmarks/rollout.py --memory [--quick] [--tokens 2048]

Both sides predict the same ALiBi architecture with a content score per layer and head, and must
agree. They differ in how they get there:

- products (how public implementations do it): an N x N softmax per head and layer, averaged over
  heads, then the product of the layers' N x N matrices, of which the last row is read.
- ours: `posgap.rollout`: the last row is carried down through linear recurrences.

`--memory` compares, in a process each, what measuring a model of 2 layers and 32 heads takes beyond the model: with all
its attention matrices asked for at once (`output_attentions`), and as `posgap rollout measure` does it, by blocks of
queries, which reads statistics and gradients too. Its last line has `memory_ratio` (ours / the matrices').

`--quick` runs both at a smaller size. The last line is JSON: `speed_ratio` (products / ours),
`max_error` (of any entry), `long_seconds` and `long_tokens` (ours alone, where no matrix would fit).
"""

import argparse
import json
import resource
import subprocess
import sys
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


MEMORY_LAYERS, MEMORY_HEADS = 2, 32


def measured_model(n: int, ours: bool) -> tuple[int, list[float]]:
    """Bytes beyond those of the model and what was imported, and the last token's rollout over `n` tokens [N]."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from posgap.models.loading import eager_attention
    from posgap.rollout.measurement import measure_influence

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_key_value_heads": MEMORY_HEADS, "vocab_size": 256}
    config = LlamaConfig(num_hidden_layers=MEMORY_LAYERS, num_attention_heads=MEMORY_HEADS, **sizes)
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(256, (1, n), generator=torch.Generator().manual_seed(1))
    short, none = ids[:, :16], np.zeros(MEMORY_HEADS)
    measure_influence(model, [short], 16, none, 0.2)  # what is loaded at the first use is of neither side
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if ours:
        row = measure_influence(model, [ids], n, none, 0.2).influence["rollout_without_residuals"][0]
    else:
        with eager_attention(model), torch.no_grad():
            matrices = model(input_ids=ids, use_cache=False, output_attentions=True).attentions
        row = np.eye(n)[-1]
        for layer in reversed(matrices):
            row = row @ layer[0].mean(0).double().numpy()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, row.tolist()


def memory(n: int, write: bool) -> None:
    """Compares both sides, each in a process of its own."""
    took: dict[str, int] = {}
    rows = []
    for side in ("matrices", "ours"):
        command = [sys.executable, __file__, "--tokens", str(n), "--side", side]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        took[side] = told["bytes"]
        rows.append(np.array(told["row"]))
    error = float(np.abs(rows[0] - rows[1]).max())
    assert error < 1e-6, error
    size = f"N = {n}, L = {MEMORY_LAYERS}, H = {MEMORY_HEADS}"
    words = {"matrices": "all matrices at once", "ours": "by blocks of queries"}
    lines = [f"{words[side]}, {size}: {number / 2**20:8.0f} MiB" for side, number in took.items()]
    figures = {"memory_ratio": round(took["ours"] / took["matrices"], 3), "max_error": error}
    conclude("rollout-memory", MEMORY, lines, figures, write)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1024 tokens, 8 layers: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    for name, default in {"tokens": 2048, "layers": 32, "heads": 32, "long-tokens": 100_000, "repeats": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", action="store_true", help="compare the memory of measuring instead")
    parser.add_argument("--side", choices=("matrices", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        took, row = measured_model(options.tokens, options.side == "ours")
        print(json.dumps({"bytes": took, "row": row}))
        return
    if options.memory:
        memory(1024 if options.quick else options.tokens, options.write)
        return
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

MEMORY = """\
## The memory of measuring a rollout

Written by `benchmarks/rollout.py --memory --write` on {date}: the greatest memory beyond the model, of one text, each
side in a process of its own. One side asks transformers for all attention matrices, the other is `posgap rollout
measure`, with its statistics and gradients. `max_error` is the greatest difference of any position's share.
"""


if __name__ == "__main__":
    main()
