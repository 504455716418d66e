"""A scaled model's forward pass and decoding against the unscaled one's; with --heads, what Ms-PoE costs.

    python benchmarks/scaled_inference.py [--quick] [--write]
    python benchmarks/scaled_inference.py --heads [--quick] [--write]

All are the same Llama with the same weights, measured in turns. Factors of one must give the unscaled logits bit for
bit. The last line is JSON: {"forward_ratio": ..., "decode_ratio": ..., "identical": ...}; with --heads, for each of
`ms-poe` and `ms-poe-static` and each length a `..._forward_ratio` and a `..._decode_ratio`, and `differ`: whether the
logits of each are other ones than the unscaled model's.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from report import conclude
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from posgap.foundation.tables import markdown
from posgap.mitigations.in_force import apply_mitigation, scale_model

LAYERS, HEADS, WIDTH = 6, 12, 768
STEPS_PER_TURN = 15
LENGTHS = (1024, 3000)
BY_HEAD = [1.2 + 0.6 * head / HEADS for head in range(HEADS)]  # the paper's steps, in every layer
WAYS = {
    "once": "each key turned once and cached (`ms-poe-static`)",
    "ranked": "so too, heads ranked at each prompt (`ms-poe`)",
}


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
            max_position_embeddings=4096,
        )
    ).eval()


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the very same weights: others, elsewhere in memory, would be read at another speed."""
    copied = copy.deepcopy(model)
    copied.load_state_dict(model.state_dict(), assign=True)
    return copied


def forward(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Seconds of reading the prompt, into a cache."""
    started = time.perf_counter()
    model(input_ids=ids, use_cache=True, logits_to_keep=1)
    return time.perf_counter() - started


def decode(model: PreTrainedModel, cache: DynamicCache) -> float:
    """Seconds of one decoding step behind the prompt in `cache`, which is left as it was."""
    token = torch.tensor([[5]])
    started = time.perf_counter()
    model(input_ids=token, past_key_values=cache)
    seconds = time.perf_counter() - started
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


def measured(
    models: dict[str, PreTrainedModel], ids: torch.Tensor, turns: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Seconds of each model's reading of the prompt and of its decoding steps, turn by turn."""
    caches = {name: model(input_ids=ids, use_cache=True).past_key_values for name, model in models.items()}
    forwards = take_turns(turns, {name: partial(forward, model, ids) for name, model in models.items()})
    steps = take_turns(
        STEPS_PER_TURN * turns, {name: partial(decode, model, caches[name]) for name, model in models.items()}
    )
    return forwards, steps


def layers(quick: bool, prompt: int, write: bool) -> None:
    """A model scaled by layer against the unscaled one."""
    unscaled, ids = llama(), torch.randint(3, 2048, (1, prompt))
    ones = scale_model(twin(unscaled), [1.0] * LAYERS)
    identical = torch.equal(ones(input_ids=ids).logits, unscaled(input_ids=ids).logits)
    models = {
        "unscaled": unscaled,
        "scaled": scale_model(twin(unscaled), [1 + i / LAYERS for i in range(LAYERS)]),
    }
    forwards, steps = measured(models, ids, 20 if quick else 60)
    lines = [
        f"{name:>8}: forward {middle(forwards, name):.4f} s, decoding step {middle(steps, name):.5f} s"
        for name in models
    ]
    figures = {"forward_ratio": ratios(forwards)["scaled"], "decode_ratio": ratios(steps)["scaled"]}
    conclude("scaled-inference", LAYERS_TEXT, lines, figures | {"identical": identical}, write)


def heads(quick: bool, write: bool) -> None:
    """Ms-PoE two ways against the unscaled model, at lengths at which the cache costs little and much."""
    before = os.getloadavg()[0]
    unscaled = llama()
    models = {
        "unscaled": unscaled,
        "once": scale_model(twin(unscaled), [BY_HEAD] * LAYERS),
        "ranked": twin(unscaled),
    }
    apply_mitigation(models["ranked"], "ms-poe", {"first_layer": 0})
    head, base, differ = ["keys"], ["unscaled, its seconds"], True
    rows = [[said] for said in WAYS.values()]
    figures: dict[str, float | bool] = {}
    for length in (256,) if quick else LENGTHS:
        ids = torch.randint(3, 2048, (1, length))
        differ = differ and all(answers_differ(models[way], unscaled, ids) for way in WAYS)
        forwards, steps = measured(models, ids, 4 if quick else 12)
        for what, name, turns in (("forward", "prompt", forwards), ("decode", "a token after it", steps)):
            head.append(f"{name}, {length:,} tokens")
            base.append(f"{middle(turns, 'unscaled'):.3f} s")
            for row, way in zip(rows, WAYS):
                row.append(f"{ratios(turns)[way]:.2f}")
                figures[f"{way}_{length}_{what}_ratio"] = ratios(turns)[way]
    lines = markdown(head, [base, *rows]).splitlines()
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} after"
    text = HEADS_TEXT.replace("{load}", load).replace("{cores}", str(os.cpu_count()))
    conclude("head-scaled-inference", text, lines, figures | {"differ": differ}, write)


def answers_differ(one: PreTrainedModel, other: PreTrainedModel, ids: torch.Tensor) -> bool:
    """Whether two models disagree on the logits of a prompt's last token, and on those of one after it."""

    def logits(model: PreTrainedModel) -> list[torch.Tensor]:
        read = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return [read.logits, model(input_ids=torch.tensor([[5]]), past_key_values=read.past_key_values).logits]

    return not any(torch.allclose(*pair, atol=1e-3) for pair in zip(logits(one), logits(other)))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heads", action="store_true", help="Ms-PoE, in place of factors of layers")
    parser.add_argument("--quick", action="store_true", help="fewer turns: under a minute")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for one another would drown a percent
    if arguments.heads:
        heads(arguments.quick, arguments.write)
    else:
        layers(arguments.quick, arguments.prompt, arguments.write)


LAYERS_TEXT = """\
## Inference of a scaled model against the unscaled one

Written by `benchmarks/scaled_inference.py --write` on {date}, one CPU thread of a machine at other work, float32. A
Llama of 6 layers, width 768, reads 256 tokens of prompt, the same weights in memory for all, measured in turns. Figures
are medians of times, and of their ratios within a turn. `identical`: factors of one give the unscaled logits bit for
bit.
"""

HEADS_TEXT = """\
## What Ms-PoE costs

Written by `benchmarks/scaled_inference.py --heads --write` on {date}, one thread, float32, of a machine with {cores}
cores at other work (load {load}): the Llama of the section above, all layers with factors by head.
Multiples of the unscaled model's time, measured in turns; medians of the ratios within a turn.
"""


if __name__ == "__main__":
    main()
