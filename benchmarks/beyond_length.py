"""Pretrained SmolLM2 beyond its trained length: does a scaled RoPE read there what the model as it is does not?

    python benchmarks/beyond_length.py [--tokens 16384] [--texts 1] [--factor 2]

The texts are posgap's own pages, which no model has learned. Each stretch ends with a copy of its first 256 tokens. The
loss by place says how well a model reads on, and that of the copy how well it finds what stands at the whole length's
distance. The four passes take half an hour on one slow core.
"""

import argparse
from datetime import date

import numpy as np
import real_models
import torch
from report import ROOT, machine, write_table
from transformers import AutoTokenizer, PreTrainedModel

from posgap.foundation.tables import markdown
from posgap.mitigations.in_force import apply, load_model, remove
from posgap.mitigations.registry import MITIGATIONS

COPIED, PLACE = 256, 2048  # tokens of the copy, and of a place whose losses make one figure
_CHUNK = 1024  # tokens whose logits are in memory together


@torch.inference_mode()
def losses(model: PreTrainedModel, ids: torch.Tensor) -> np.ndarray:
    """The nats `[T - 1]` that each token of `ids [1, T]` after the first takes."""
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
    head = model.get_output_embeddings()
    parts = [
        torch.nn.functional.cross_entropy(head(rows), right, reduction="none")
        for rows, right in zip(hidden.split(_CHUNK), ids[0, 1:].split(_CHUNK))
    ]
    return torch.cat(parts).float().numpy()


def stretches(name: str, tokens: int, texts: int) -> list[torch.Tensor]:
    """Stretches `[1, tokens]` of posgap's pages, which end as they begin."""
    pages = "\n\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs").glob("*.md")))
    ids = torch.tensor(AutoTokenizer.from_pretrained(real_models.folder(name))(pages)["input_ids"])
    made = list(ids[: texts * (tokens - COPIED)].view(texts, tokens - COPIED))
    return [torch.cat([each, each[:COPIED]])[None] for each in made]


def row(name: str, model: PreTrainedModel, texts: list[torch.Tensor]) -> list[str]:
    """The mean losses by place and of the copy."""
    found = np.stack([losses(model, ids) for ids in texts]).mean(axis=0)
    own, copy = found[:-COPIED], found[-COPIED // 2 :]  # where the copy begins nothing says that it is one
    figures = [own[start : start + PLACE].mean() for start in range(0, len(own), PLACE)]
    cells = [name, *(f"{nats:.2f}" for nats in (*figures, copy.mean()))]
    print(*cells, flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--texts", type=int, default=1)
    parser.add_argument("--factor", type=float, default=2, help="by which RoPE is scaled")
    options = parser.parse_args()
    model = load_model(real_models.folder("smollm2"), "float32")
    texts = stretches("smollm2", options.tokens, options.texts)
    rows = [row("as it is", model, texts)]
    for name in ("linear", "ntk", "yarn"):
        apply(model, name, MITIGATIONS[name].settings(factor=options.factor))
        rows.append(row(f"`{name}`, {options.factor:g}", model, texts))
        remove(model, name)
    ends = [min(start + PLACE, options.tokens) for start in range(0, options.tokens - COPIED, PLACE)]
    heads = ["nats a token", *(f"to {end:,}" for end in ends), "the copy"]
    how = f"`benchmarks/beyond_length.py` on {date.today()} ({machine()}), `--texts {options.texts}`"
    write_table("beyond-length", f"{markdown(heads, rows, left=1)}\n\nWritten by {how}.")


if __name__ == "__main__":
    main()
