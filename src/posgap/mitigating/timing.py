"""What a mitigation takes beside the model as it is: time to read a prompt and to write a token, and memory."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from posgap.foundation.files import Record
from posgap.measurement.mitigated import Question
from posgap.mitigating.trials import BASE, Asking
from posgap.mitigations.mitigation import Settings
from posgap.models.rope_lengths import RopeLengths, forget_lengths
from posgap.tasks.examples import AnyExample
from posgap.tasks.prompts import Prompt

TOKENS, ROUNDS, QUESTIONS = 8, 3, 2
_SLOW = 1.0  # a prompt of as many seconds is not told apart by whether caches are warm


class Cost(Record):
    """What an answer takes with a mitigation as a multiple of what it takes without: `prefill` until the first token,
    and `decode` for each further one, of all the prompts that the answer takes, medians of measurements side by side;
    `answer` for a prompt and `TOKENS` tokens together. `memory` at its peak, on a GPU alone."""

    prefill: float
    decode: float
    answer: float
    memory: float | None = None


class _Taken:
    """Seconds and bytes that the prompts of a question take."""

    def __init__(self) -> None:
        self.prefill, self.decode, self.memory = 0.0, 0.0, 0


def calls(asking: Asking, name: str, settings: Settings, example: AnyExample) -> int:
    """How many prompts an answer takes."""
    if not (by := asking.mitigated(name, settings)):
        return 1
    return len(by.asked(Question(example, asking.placements[0])).prompts)


@torch.inference_mode()
def cost(asking: Asking, name: str, settings: Settings, examples: Sequence[AnyExample], seconds: float) -> Cost:
    """What a mitigation costs on some questions with the gold in the middle, asked with it and without in turns until
    these seconds are over, and at least once."""
    middle = asking.placements[len(asking.placements) // 2]
    ratios, began = list[tuple[float, float, float, float]](), _now()
    for example in examples[:QUESTIONS]:
        for turn in range(ROUNDS + 1):
            if ratios and _now() - began > seconds:
                break
            with_it = _taken(asking, name, settings, Question(example, middle))
            without = _taken(asking, BASE, None, Question(example, middle))
            if not turn and without.prefill < _SLOW:
                continue  # what is read first warms up caches
            both = with_it.prefill + with_it.decode, without.prefill + without.decode
            memory = with_it.memory / without.memory if without.memory else np.nan
            ratios.append(
                (with_it.prefill / without.prefill, with_it.decode / without.decode, both[0] / both[1], memory)
            )
    prefill, decode, answer, memory = np.median(ratios, axis=0).round(3).tolist()
    return Cost(prefill=prefill, decode=decode, answer=answer, memory=None if np.isnan(memory) else memory)


def _taken(asking: Asking, name: str, settings: Settings | None, question: Question) -> _Taken:
    """What the prompts of a question take, one after the other."""
    taken = _Taken()
    with asking.under(name, settings):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if by := asking.mitigated(name, settings):
            prompts = by.asked(question).prompts
        else:
            prompts = [asking.build.prompt(question.example, question.placement)]
        for prompt in prompts:
            _read(asking, prompt, taken)
        if torch.cuda.is_available():
            taken.memory = torch.cuda.max_memory_allocated()
    return taken


def _read(asking: Asking, prompt: Prompt, taken: _Taken) -> None:
    model, _ = asking.in_memory
    if RopeLengths.of(model.config):
        forget_lengths(model)
    ids = torch.tensor([list(prompt.token_ids)], device=model.device)
    began = _now()
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    taken.prefill += _now() - began
    began = _now()
    for _ in range(TOKENS):
        token = out.logits[:, -1:].argmax(-1)
        out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
    taken.decode += _now() - began


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
