"""Times every mitigation of a model against the model without it: the figures `costs` of docs/results.md.

    python benchmarks/mitigation_costs.py               prints the table
    python benchmarks/mitigation_costs.py --write       writes it into build/results/
    python benchmarks/mitigation_costs.py ms-poe        only this one

The model is a Llama of eight layers with random weights; the prompt is of random tokens. Each
mitigation is timed by turns with the model as it is, on one thread; ratios are medians of those within a turn.
"""

import argparse
import os
import time
from datetime import date
from statistics import median

import torch
from report import write_section
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.mitigations.in_force import apply, remove
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn
from posgap.mitigations.registry import MITIGATIONS

VOCABULARY, DECODED = 1000, 24


def model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 8, "num_attention_heads": 8}
    config = LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=4096)
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def once(of: PreTrainedModel, ids: torch.Tensor) -> tuple[float, float]:
    """Seconds of reading the prompt, and of a token of the response."""
    started = time.perf_counter()
    out = of(input_ids=ids, use_cache=True, logits_to_keep=1)
    read, steps = time.perf_counter() - started, []
    for token in range(DECODED):
        started = time.perf_counter()
        of(input_ids=torch.tensor([[3 + token]]), past_key_values=out.past_key_values, use_cache=True)
        steps.append(time.perf_counter() - started)
    return read, median(steps)


def settings_of(mitigation: ModelMitigation, of: PreTrainedModel, ids: torch.Tensor) -> Settings:
    """The last of the settings that the mitigation tries, which cost most where they differ in cost."""
    return mitigation.tried(TriedOn(of, [ids[0].tolist()]))[-1]


def said(settings: Settings) -> str:
    """Settings in words; of lists that are one a layer or a head, only that there are some."""
    parts = [
        f"{name} {'by layer or head' if isinstance(value, list | tuple) and len(str(value)) > 80 else value}"
        for name, value in settings.model_dump(exclude_none=True).items()
    ]
    return ", ".join(parts) or "none"


def ratios(
    of: PreTrainedModel, mitigation: ModelMitigation, settings: Settings, ids: torch.Tensor, times: int
) -> tuple[float, float]:
    """How many times as long reading takes, and a token of the response."""
    taken = []
    for turn in range(times + 1):
        without = once(of, ids)
        apply(of, mitigation.name, settings)
        under = once(of, ids)
        remove(of, mitigation.name)
        if turn:  # the first warms up
            taken.append([more / less for more, less in zip(under, without)])
    read, step = map(median, zip(*taken))
    return read, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="mitigation", help="only these")
    parser.add_argument("--times", type=int, default=7, help="how often each is timed (7)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the prompt (1024)")
    parser.add_argument("--write", action="store_true", help="write it into build/results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ids = torch.randint(3, VOCABULARY, (1, arguments.length), generator=torch.Generator().manual_seed(1))
    rows, load = [], os.getloadavg()[0]
    for mitigation in MITIGATIONS:
        if not isinstance(mitigation, ModelMitigation) or (arguments.names and mitigation.name not in arguments.names):
            continue
        try:
            settings = settings_of(mitigation, made := model(), ids)
            read, step = ratios(made, mitigation, settings, ids, arguments.times)
        except PosgapError as error:
            print(f"{mitigation.name}: {error}", flush=True)
            continue
        rows.append(f"| `{mitigation.name}` | {said(settings)} | {read:.2f} | {step:.2f} | {mitigation.cost} |")
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            f"Written by `benchmarks/mitigation_costs.py --write` on {date.today()}: a random Llama of eight layers, "
            f"{arguments.length} tokens, one thread of a machine with {os.cpu_count()} cores, "
            f"at other work (load {load:.1f} before and {os.getloadavg()[0]:.1f} after). The table says how many times "
            "as long a mitigation takes as the model as it is, to read the prompt and to write a token: the median of "
            f"{arguments.times} ratios by turns.",
            "",
            "| mitigation | settings | read the prompt | write a token | what it pays, in words |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )
    if arguments.write:
        write_section("results", "costs", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
