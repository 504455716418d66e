"""A scaled model's forward pass and decoding against the unscaled one's.

    python benchmarks/scaled_inference.py [--quick] [--write]

Both are the same Llama with the same weights, measured in turns. Factors of one must give the unscaled logits bit for
bit. The last line is JSON: {"forward_ratio": ..., "decode_ratio": ..., "identical": ...}.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from report import conclude
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from posgap.mitigations.in_force import scale_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, HEADS, WIDTH = (6, 12, 768) if DEVICE == "cpu" else (16, 16, 2048)
STEPS_PER_TURN = 15


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=8192,
        )
    ).to(DEVICE).eval()  # fmt: skip


def clock() -> float:
    """Seconds, when a GPU has done what it was told."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the very same weights: others, elsewhere in memory, would be read at another speed."""
    copied = copy.deepcopy(model)
    copied.load_state_dict(model.state_dict(), assign=True)
    return copied


def forward(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Seconds of reading the prompt, into a cache."""
    started = clock()
    model(input_ids=ids, use_cache=True, logits_to_keep=1)
    return clock() - started


def decode(model: PreTrainedModel, cache: DynamicCache) -> float:
    """Seconds of one decoding step behind the prompt in `cache`, which is left as it was."""
    token = torch.tensor([[5]], device=DEVICE)
    started = clock()
    model(input_ids=token, past_key_values=cache)
    seconds = clock() - started
    cache.crop(-1)
    return seconds


def take_turns(turns: int, sides: dict[str, Callable[[], float]]) -> list[dict[str, float]]:
    """Seconds of each side in each turn; who goes first changes, so that whatever drifts hits all alike."""
    names, taken = list(sides), []
    for turn in range(turns + 1):
        first = turn % len(names)
        taken.append({name: sides[name]() for name in names[first:] + names[:first]})
    return taken[1:]  # the first warms up


def middle(turns: list[dict[str, float]], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


def ratios(turns: list[dict[str, float]]) -> dict[str, float]:
    """Each model's seconds over the unscaled model's in the same turn, the median: best times vary by a percent."""
    return {name: round(statistics.median(turn[name] / turn["unscaled"] for turn in turns), 4) for name in turns[0]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns: under a minute")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for one another would drown a percent
    unscaled, ids = llama(), torch.randint(3, 2048, (1, arguments.prompt), device=DEVICE)
    ones = scale_model(twin(unscaled), [1.0] * LAYERS)
    identical = torch.equal(ones(input_ids=ids).logits, unscaled(input_ids=ids).logits)
    models = {"unscaled": unscaled, "scaled": scale_model(twin(unscaled), [1 + i / LAYERS for i in range(LAYERS)])}
    caches = {name: model(input_ids=ids, use_cache=True).past_key_values for name, model in models.items()}
    turns = 20 if arguments.quick else 60
    forwards = take_turns(turns, {name: partial(forward, model, ids) for name, model in models.items()})
    decoding = {name: partial(decode, model, caches[name]) for name, model in models.items()}
    steps = take_turns(STEPS_PER_TURN * turns, decoding)
    lines = [
        f"{name:>8}: forward {middle(forwards, name):.4f} s, decoding step {middle(steps, name):.5f} s"
        for name in models
    ]
    figures = {"forward_ratio": ratios(forwards)["scaled"], "decode_ratio": ratios(steps)["scaled"]}
    conclude("scaled-inference", TEXT, lines, figures | {"identical": identical}, arguments.write)


TEXT = """\
## Inference of a scaled model against the unscaled one

Written by `benchmarks/scaled_inference.py --write` on {date}, one CPU thread of a machine at other work, float32. A
Llama of 6 layers, width 768, reads 256 tokens of prompt, the same weights in memory for all, measured in turns. Figures
are medians of times, and of their ratios within a turn. `identical`: factors of one give the unscaled logits bit for
bit.
"""


if __name__ == "__main__":
    main()
