"""Times every mitigation of a model against the model without it, and writes a section of docs/mitigations.md.

    python benchmarks/mitigation_costs.py               prints the table
    python benchmarks/mitigation_costs.py --write       writes it to docs/mitigations.md
    python benchmarks/mitigation_costs.py pine          only this one

The model is a Llama of eight layers with random weights; the prompt has twenty documents of equal length. Each
mitigation is timed by turns with the model as it is, on one thread, and the ratios are those of the medians.
"""

import argparse
import os
import time
from statistics import median

import torch
from report import write_section
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from posgap.choices import MITIGATIONS
from posgap.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, TriedOn
from posgap.models.in_force import apply, remove
from posgap.models.layout import reading

VOCABULARY, DOCUMENTS, BEFORE, BEHIND, DECODED = 1000, 20, 24, 40, 8


def model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8, "num_attention_heads": 8}
    config = LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=4096)
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def once(of: PreTrainedModel, ids: torch.Tensor) -> tuple[float, float]:
    """Seconds of reading the prompt, and of a token of the response."""
    length = ids.shape[1]
    size = (length - BEFORE - BEHIND) // DOCUMENTS
    spans = [(BEFORE + at * size, BEFORE + (at + 1) * size) for at in range(DOCUMENTS)]
    with reading(of, spans, length):
        started = time.perf_counter()
        out = of(input_ids=ids, use_cache=True, logits_to_keep=1)
        read, steps = time.perf_counter() - started, []
        for token in range(DECODED):
            started = time.perf_counter()
            of(input_ids=torch.tensor([[3 + token]]), past_key_values=out.past_key_values, use_cache=True)
            steps.append(time.perf_counter() - started)
    return read, median(steps)


def ratios(of: PreTrainedModel, mitigation: ModelMitigation, ids: torch.Tensor, times: int) -> tuple[float, float]:
    """How many times as long reading takes, and a token of the response."""
    settings = mitigation.tried(TriedOn(of, [ids[0].tolist()]))[-1]
    without, under = [], []
    once(of, ids)
    for _ in range(times):
        without.append(once(of, ids))
        apply(of, mitigation.name, settings)
        under.append(once(of, ids))
        remove(of, mitigation.name)
    read, step = (median(x[i] for x in under) / median(x[i] for x in without) for i in range(2))
    return read, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="mitigation", help="only these")
    parser.add_argument("--times", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the prompt (1024)")
    parser.add_argument("--write", action="store_true", help="write docs/mitigations.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ids = torch.randint(3, VOCABULARY, (1, arguments.length), generator=torch.Generator().manual_seed(1))
    rows = []
    for mitigation in MITIGATIONS:
        if not isinstance(mitigation, ModelMitigation) or (arguments.names and mitigation.name not in arguments.names):
            continue
        try:
            read, step = ratios(model(), mitigation, ids, arguments.times)
        except PosgapError as error:
            print(f"{mitigation.name}: {error}", flush=True)
            continue
        rows.append(f"| `{mitigation.name}` | {read:.2f} | {step:.2f} | {mitigation.cost} |")
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            f"Written by `benchmarks/mitigation_costs.py --write`: a random Llama of eight layers, {arguments.length} "
            f"tokens in {DOCUMENTS} documents, one thread of a machine with {os.cpu_count()} cores, median of "
            f"{arguments.times} by turns. How many times as long it takes to",
            "",
            "| mitigation | read the prompt | write a token | what it pays, in words |",
            "|---|---|---|---|",
            *rows,
        ]
    )
    if arguments.write:
        write_section("mitigations", "costs", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
