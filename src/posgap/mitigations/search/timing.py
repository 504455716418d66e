"""Measures a mitigation's cost beside the unmodified model: time to read a prompt and to write a token, and memory."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from posgap.measurement.prompt_mitigator import Question
from posgap.mitigations.mitigation import Settings
from posgap.mitigations.search.compared_model import BASE, ComparedModel
from posgap.mitigations.search.report import Cost
from posgap.models.rope_lengths import RopeLengths, forget_lengths
from posgap.tasks.examples import AnyExample
from posgap.tasks.prompts import Prompt

TOKENS, ROUNDS, QUESTIONS = 8, 3, 2
_SLOW = 1.0  # a prompt of as many seconds is not told apart by whether caches are warm


class _QuestionCost:
    """Seconds and bytes that the prompts of a question take."""

    def __init__(self) -> None:
        self.prefill, self.decode, self.memory = 0.0, 0.0, 0


@torch.inference_mode()
def measure_cost(
    model: ComparedModel, name: str, settings: Settings, examples: Sequence[AnyExample], seconds: float
) -> Cost:
    """Measures a mitigation's cost on some questions with the gold in the middle, with it and without in turns until
    these seconds are over, and at least once."""
    ratios = list[tuple[float, float, float, float]]()
    began = _now()
    for example in examples[:QUESTIONS]:
        for turn in range(ROUNDS + 1):
            if ratios and _now() - began > seconds:
                break
            with_it = _measure_once(model, name, settings, Question(example, model.middle))
            without = _measure_once(model, BASE, None, Question(example, model.middle))
            if not turn and without.prefill < _SLOW:
                continue  # the first reading warms up caches
            both = with_it.prefill + with_it.decode, without.prefill + without.decode
            memory = with_it.memory / without.memory if without.memory else np.nan
            ratios.append(
                (with_it.prefill / without.prefill, with_it.decode / without.decode, both[0] / both[1], memory)
            )
    prefill, decode, answer, memory = np.median(ratios, axis=0).round(3).tolist()
    return Cost(prefill=prefill, decode=decode, answer=answer, memory=None if np.isnan(memory) else memory)


def _measure_once(model: ComparedModel, name: str, settings: Settings | None, question: Question) -> _QuestionCost:
    """Measures what the prompts of a question take, one after the other."""
    spent = _QuestionCost()
    mitigated = model.prompt_mitigator(name, settings)
    prompts: Sequence[Prompt] = [model.builder.prompt(question.example, question.placement)]
    if mitigated:
        prompts = mitigated.build_variants(question).prompts
    with model.with_mitigation(name, settings):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for prompt in prompts:
            _time_prompt(model, prompt, spent)
        if torch.cuda.is_available():
            spent.memory = torch.cuda.max_memory_allocated()
    return spent


def _time_prompt(compared: ComparedModel, prompt: Prompt, spent: _QuestionCost) -> None:
    model = compared.in_memory
    assert model is not None
    if RopeLengths.from_config(model.config):
        forget_lengths(model)
    ids = torch.tensor([list(prompt.token_ids)], device=model.device)
    began = _now()
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    spent.prefill += _now() - began
    began = _now()
    for _ in range(TOKENS):
        token = out.logits[:, -1:].argmax(-1)
        out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
    spent.decode += _now() - began


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
