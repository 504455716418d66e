"""What can be predicted of a model before it is changed: the figures `rollout-advice` of docs/results.md.

    python benchmarks/rollout_advice.py --data FILE [--seeds 0 1 2] [--write] [--out runs/advice]

FILE is the lost-in-the-middle key-value file (300 lines). On the tiny models of two and of eight layers, as they are
in posgap's cache: `posgap rollout advise`; and whether attention fitted on some texts foretells the rollout of others,
at that length and twice it.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from report import write_section
from torch import Tensor, nn

from posgap.data.config import ImportConfig
from posgap.data.verbs import import_examples
from posgap.demo import tiny_model
from posgap.foundation.files import read_model
from posgap.foundation.tables import markdown
from posgap.generation.setup import prompt_builder
from posgap.mitigations.in_force import load_model
from posgap.rollout.advice import ADVICE_FILE, Advice, flattest
from posgap.rollout.config import RolloutAdviseConfig
from posgap.rollout.decoders import Decoder
from posgap.rollout.distributions import spearman
from posgap.rollout.documents import by_document
from posgap.rollout.texts import read_prompts
from posgap.stages.rollout_advise import rollout_advise
from posgap.tasks.placements import spaced_positions

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import tiny_recipes

POSITIONS = 10
FIT, JUDGED = 60, 200  # prompts whose attention is fitted, and others on which it is judged
KINDS = ("standard", "deep")
SAID = {"standard": "two layers", "deep": "eight layers"}
TERMS = ("distance", "first token", "the key's token", "query and key alike", "the query's and the key's token")


def examples(data: Path, folder: Path) -> tuple[Path, Path]:
    """200 examples of the file's first 100 lines, and one of each other line."""
    cut = {"input": data, "key_digits": tiny_model.KEY_DIGITS, "value_digits": tiny_model.VALUE_DIGITS, "force": True}
    folder.mkdir(parents=True, exist_ok=True)
    some = import_examples(ImportConfig(out=folder / "some.jsonl.gz", last=100, queries=2, **cut))
    others = import_examples(ImportConfig(out=folder / "others.jsonl.gz", first=101, **cut))
    return Path(some), Path(others)


def advised(kind: str, seed: int, n_docs: int, data: Path, folder: Path) -> Advice:
    config = RolloutAdviseConfig(
        examples=data,
        model=str(tiny_recipes.kept(kind, seed)),
        task="kv",
        n_docs=n_docs,
        positions=spaced_positions(n_docs, POSITIONS),
        check=8,
        out=folder / f"{kind}-{seed}-{n_docs}",
        label=f"{SAID[kind]}, seed {seed}, n = {n_docs}",
    )
    return read_model(Advice, rollout_advise(config), ADVICE_FILE)


def advice_row(advice: Advice) -> list[str]:
    gap, mean = float(np.ptp(advice.accuracy)), float(np.mean(advice.accuracy))
    agreed = [f"{value:.2f}" if value is not None else "–" for value in advice.agreement.values()]
    row = [advice.label, *agreed, f"{gap:.1f}", f"{mean:.1f}"]
    if not (best := flattest(advice.changes)) or not (measured := best.measured):
        return [*row, "none for certain", "", ""]
    low, high = measured.accuracy_gap_ci95
    lower, upper = measured.accuracy_mean_ci95
    changed = f"{measured.accuracy_gap:+.1f} ({low:+.1f} to {high:+.1f})"
    return [*row, best.name, changed, f"{measured.accuracy_mean:+.1f} ({lower:+.1f} to {upper:+.1f})"]


class Seen(NamedTuple):
    """Prompts `ids [E, N]`, where their documents stand, their attention `[L, E, H, N, N]`, the residual strengths
    `[L, E]`."""

    ids: Tensor
    spans: list
    attention: Tensor
    strengths: Tensor


def seen(kind: str, seed: int, n_docs: int, data: Path, limit: int) -> Seen:
    folder = str(tiny_recipes.kept(kind, seed))
    sequences = read_prompts(data, prompt_builder("kv", folder, 0), n_docs, 0, limit)
    ids = torch.cat(list(sequences.batches(4096, "prompts")))
    decoder, (rows, n) = Decoder(load_model(folder, "float32")), ids.shape
    attention = torch.zeros(decoder.n_layers, rows, decoder.n_heads, n, n)
    strengths = torch.zeros(decoder.n_layers, rows)
    with decoder.capturing():
        for at in range(0, rows, 10):
            calls = decoder.read(ids[at : at + 10])
            for layer in reversed(range(decoder.n_layers)):
                kept = attention[layer, at : at + 10]

                def take(first: int, weights: Tensor, *more: Any, kept: Tensor = kept) -> None:
                    kept[:, :, first : first + weights.shape[2]] = weights

                strengths[layer, at : at + 10] = decoder.attend(layer, calls.pop(), take).strengths.mean(dim=1)
    return Seen(ids, [asked.spans for asked in sequences.asked], attention, strengths)


class Fitted(nn.Module):
    """Scores of one layer's heads as a sum of terms: of the distance; of the first token; of the key's token; of
    whether the query's token is the key's, or one of the three before it; of both tokens. The likeliest parameters for
    the attention that was seen are found by L-BFGS; the problem is convex."""

    def __init__(self, n_heads: int, n: int, vocabulary: int, terms: int):
        super().__init__()
        self.terms = terms
        shapes = [(n_heads, n), (n_heads, 1), (n_heads, vocabulary), (n_heads, 4), (n_heads, vocabulary, vocabulary)]
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes[:terms])

    def forward(self, ids: Tensor) -> Tensor:
        """The logarithms of attention [E, H, N, N]."""
        n = ids.shape[1]
        at = torch.arange(n)
        # Beyond the greatest distance that was seen, its score goes on.
        distance = (at[:, None] - at).clamp(0, self.parts[0].shape[1] - 1)
        scores = self.parts[0][:, distance][None]
        if self.terms > 1:
            scores = scores + self.parts[1][..., None] * ((at == 0) & (at[:, None] > 0))
        if self.terms > 2:
            scores = scores + self.parts[2][:, ids].transpose(0, 1)[:, :, None]
        if self.terms > 3:
            alike = (ids[:, :, None] == ids[:, None]).float()
            shifted = [nn.functional.pad(alike, (back, 0))[..., :n] for back in range(4)]
            scores = scores + torch.einsum("hf,efij->ehij", self.parts[3], torch.stack(shifted, dim=1))
        if self.terms > 4:
            scores = scores + self.parts[4][:, ids[:, :, None], ids[:, None]].transpose(0, 1)
        return scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).log_softmax(-1)


def fitted(layer: Tensor, ids: Tensor, vocabulary: int, terms: int) -> Fitted:
    """`layer [E, H, N, N]` is the attention to fit."""
    model = Fitted(layer.shape[1], layer.shape[2], vocabulary, terms)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logs = model(ids)
        unlikely = -(layer * logs.masked_fill(logs == -torch.inf, 0)).sum(-1).mean()
        total = unlikely + 1e-4 * sum(part.square().mean() for part in model.parameters())
        total.backward()
        return total

    optimizer.step(loss)
    return model


def rolled_out(attention: Iterator[Tensor], strengths: Tensor, shape: torch.Size) -> np.ndarray:
    """The last token's rollout [E, N], from each layer's attention averaged over heads `[E, N, N]`, the last layer
    first, and `strengths [L, E]`."""
    row = torch.zeros(shape)
    row[:, -1] = 1
    for mean, strength in zip(attention, strengths.flip(0)):
        row = (1 - strength)[:, None] * row + strength[:, None] * (row[:, None] @ mean)[:, 0]
    return row.numpy()


def fitted_rows(kind: str, seed: int, some: Path, others: Path) -> list[list[str]]:
    """How well a fitted attention orders the documents by their share of the rollout, on other prompts; beside two
    halves of those prompts, of which the one is measured to foretell the other."""
    source = seen(kind, seed, 20, some, FIT)
    judged = {n: seen(kind, seed, n, others, JUDGED) for n in (20, 40)}
    vocabulary, strength = 1 + max(int(each.ids.max()) for each in (source, *judged.values())), source.strengths.mean(1)
    true = {n: by_document(measured(each), each.spans) for n, each in judged.items()}
    rows = []
    for terms in range(1, len(TERMS) + 1):
        layers = [fitted(layer, source.ids, vocabulary, terms) for layer in source.attention]
        row = [f"{SAID[kind]}, seed {seed}", ", ".join(TERMS[:terms])]
        for n, each in judged.items():
            with torch.no_grad():
                means = (layer(each.ids).exp().mean(dim=1) for layer in reversed(layers))
                strengths = strength[:, None].expand(-1, len(each.ids))
                shares = by_document(rolled_out(means, strengths, each.ids.shape), each.spans)
            row.append(f"{float(spearman(shares.mean(0), true[n].mean(0))):.2f}")
        rows.append(row)
    # Gold positions are taken in turn, so that each half, but not every other prompt, has them all.
    parts = [np.array_split(shares, 2) for shares in true.values()]
    halves = [float(spearman(first.mean(0), second.mean(0))) for first, second in parts]
    return [*rows, [f"{SAID[kind]}, seed {seed}", "measured on the other half", *(f"{value:.2f}" for value in halves)]]


def measured(each: Seen) -> np.ndarray:
    return rolled_out((layer.mean(dim=1) for layer in each.attention.flip(0)), each.strengths, each.ids.shape)


HEADS = """
The effect of each head's gate on the log-probability of right responses is predicted by its gradient, on 100 prompts
at each position. Then 16 changes are made, and measured on 100 others. The table has Spearman's correlation of both,
for the change of the mean over positions and of the gap between the best and the worst. Beside it stands the flattest
change that is for certain flatter and has no mean that is for certain lower, in points of accuracy with 95 % intervals.
"""
FITS = """
Scores of every head are fitted as a sum of terms, the likeliest for the attention of {fit} prompts of 20 records. What
they foretell is compared with {judged} other prompts, of 20 records and of 40. The table has Spearman's correlation,
over documents, with the measured share of the rollout. Measured shares of the first half of those prompts foretell the
second's as well as the last rows say: by so much prompts themselves differ.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/advice"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{arguments.out.resolve()}/mlflow.db")
    some, others = examples(arguments.data, arguments.out)
    first = arguments.seeds[0]
    cases = [(kind, seed, 20) for kind in KINDS for seed in arguments.seeds] + [
        ("standard", first, 40),
        *[("deep", seed, 40) for seed in arguments.seeds],
    ]
    heads = [advice_row(advised(*case, some, arguments.out)) for case in cases]
    fits = [row for kind in KINDS for row in fitted_rows(kind, first, some, others)]
    columns = ["model", "mean", "gap", "gap as it is", "mean as it is", "flattest change", "its gap", "its mean"]
    text = [
        "## What can be predicted of a change\n",
        f"Written by `benchmarks/rollout_advice.py` on {date.today()}; key-value retrieval on lines of the public "
        f"file, {POSITIONS} gold positions, float32.\n\n### Heads: `posgap rollout advise`",
        HEADS,
        markdown(columns, heads),
        "\n### Fitted attention",
        FITS.format(fit=FIT, judged=JUDGED),
        markdown(["model", "terms", "n = 20", "n = 40"], fits, left=2),
    ]
    if arguments.write:
        write_section("results", "rollout-advice", "\n".join(text))
    else:
        print("\n".join(text))


if __name__ == "__main__":
    main()
