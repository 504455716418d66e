"""Token-shifting and token recovery (Pos2Distill, section 2.2).

A response that is right with the gold document at the advantageous position, but wrong at a trivial one, is read after
both prompts, token by token. Errors often depend on a few tokens: if the first wrong one is corrected, the model
often completes the right answer by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from posgap.diagnosis.diagnosed_sweep import DiagnosedSweep
from posgap.distillation.head import Head
from posgap.distillation.losses import token_kl
from posgap.generation.batching import batches
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Generator, Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.diagnoses import TokenFigures, TokenShift, summarize_shifts
from posgap.tasks.prompts import Prompt


@dataclass(frozen=True)
class Readings:
    """One response, and the two prompts it is read after, all as token ids."""

    advantageous: list[int]
    trivial: list[int]
    response: list[int]


@dataclass(frozen=True)
class Shift:
    """How the model's two readings of one response of T tokens differ.

    `kl [T]` is KL(advantageous || trivial) between the distributions of each token, in nats. `greedy [T]` is the token
    that the model finds likeliest there after the trivial prompt. `turning` is the index, counted from 0, of the first
    token of the response that is not the likeliest one there; None if all are.
    """

    kl: list[float]
    greedy: list[int]
    turning: int | None


@torch.inference_mode()
def token_shifts(model: PreTrainedModel, readings: Sequence[Readings], pad: int, batch_tokens: int) -> list[Shift]:
    """The shift of each pair of readings, by one forward pass for each prompt, in batches of at most `batch_tokens`
    tokens, padding included."""
    head, shifts = Head.from_model(model), {}
    lengths = [max(len(each.advantageous), len(each.trivial)) + len(each.response) for each in readings]
    for batch in batches(lengths, batch_tokens):
        rows = [readings[i] for i in batch]
        responses = [row.response for row in rows]
        advantageous = _response_states(model, [row.advantageous for row in rows], responses, pad)
        trivial = _response_states(model, [row.trivial for row in rows], responses, pad)
        for i, teacher, student in zip(batch, advantageous, trivial):
            # One row at a time: logits of the whole batch, [tokens, vocabulary], could exhaust the memory.
            logits = head(student)
            greedy = logits.to(student.dtype).argmax(-1).tolist()  # as the model itself rounds them
            turning = next((at for at, own in enumerate(greedy) if own != readings[i].response[at]), None)
            # Rounding can leave a divergence just below 0.
            shifts[i] = Shift(token_kl(head(teacher), logits).clamp_min(0).tolist(), greedy, turning)
    return [shifts[i] for i in range(len(readings))]


def _response_states(
    model: PreTrainedModel, prompts: Sequence[list[int]], responses: Sequence[list[int]], pad: int
) -> list[Tensor]:
    """The final hidden states `[T, D]` of each row that predict its response's tokens."""
    read = [prompt + response[:-1] for prompt, response in zip(prompts, responses)]
    # Padding is on the right, so causal attention never reaches it and needs no mask for it.
    ids = pad_sequence(list(map(torch.tensor, read)), batch_first=True, padding_value=pad).to(model.device)
    rows = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    states = []
    for row, prompt, response in zip(rows, prompts, responses):
        states.append(row[len(prompt) - 1 : len(prompt) - 1 + len(response)])
    return states


def generate_corrected(
    generator: Generator,
    readings: Sequence[Readings],
    turnings: Sequence[int],
    max_new_tokens: int,
    decode: Callable[[list[int]], str],
) -> list[str]:
    """The response to each trivial prompt after its turning token has been corrected.

    Up to the turning token both readings agree, so the model gets the right response up to and including that token,
    and then generates greedily, up to `max_new_tokens` tokens in all.
    """
    corrected, prompts, longest = list[list[int]](), dict[int, Prompt](), 0
    for reading, turning in zip(readings, turnings):
        prefix = reading.response[: turning + 1]
        if len(prefix) < len(reading.response):
            prompts[len(corrected)] = Prompt("", reading.trivial + prefix)
            longest = max(longest, max_new_tokens - len(prefix))
        corrected.append(prefix)
    if prompts:
        completions = complete(generator, list(prompts.values()), Sampling(longest))
        for at, completion in zip(prompts, completions):
            corrected[at] = corrected[at] + completion.token_ids
    return [decode(ids[:max_new_tokens]) for ids in corrected]


def diagnose_tokens(
    swept: DiagnosedSweep, generator: TransformersGenerator, most: int, batch_tokens: int, seed: int
) -> TokenFigures:
    """Diagnoses at most `most` wrong answers, drawn at random with `seed`.

    They are wrong at a trivial placement while their example is answered correctly at the advantageous one, so that
    only the position can explain the error.
    """
    wrong = np.argwhere((swept.correct < 1) & (swept.correct[:, [swept.best_index]] == 1))
    drawn = np.sort(np.random.default_rng(seed).permutation(len(wrong))[:most])
    cases = [(swept.examples[example], swept.placements[placement]) for example, placement in wrong[drawn]]
    if not cases:
        return summarize_shifts([], wrong=0)
    builder, advantageous = swept.builder, swept.placements[swept.best_index]
    prompts = [builder.prompt(example, advantageous) for example, _ in cases]
    sampling = Sampling.for_builder(builder)
    responses = complete(generator, prompts, sampling)
    streams = []
    for prompt, (example, placement), response in zip(prompts, cases, responses):
        streams.append(Readings(list(prompt.token_ids), builder(example, placement), response.token_ids))
    token_by_token = token_shifts(generator.model, streams, builder.tokenizer.pad_token_id, batch_tokens)
    turned, turned_streams, turnings = [], [], []
    for case, stream, shift in zip(cases, streams, token_by_token):
        # Without a turning token the answer is not wrong here: in the sweep, rounding in another batch made it wrong.
        if shift.turning is not None:
            turned.append((case, stream, shift, shift.turning))
            turned_streams.append(stream)
            turnings.append(shift.turning)

    def decode(ids: list[int]) -> str:
        stream = ResponseStream(builder.tokenizer, generator.end_ids, sampling)
        stream.take_all(ids)
        return stream.completion().text

    mended = generate_corrected(generator, turned_streams, turnings, builder.max_new_tokens, decode)
    rows = {(row["id"], tuple(row["placement"])): row for row in swept.predictions}
    shifts, unclean = [], 0
    for ((example, placement), stream, shift, at), text in zip(turned, mended):
        row, right = rows[example.id, placement.positions], stream.response
        unclean += bool(row.get("cut") or row.get("echo"))
        shifts.append(
            TokenShift(
                id=example.id,
                placement=list(placement.positions),
                response=decode(right),
                prediction=row["response"],
                tokens=[builder.tokenizer.decode([token]) for token in right],
                kl=shift.kl,
                turning=at,
                instead=builder.tokenizer.decode([shift.greedy[at]]),
                corrected=text,
                recovered=swept.score_response(text, example, placement) == 1,
                settled=swept.score_response(decode(right[: at + 1]), example, placement) == 1,
            )
        )
    return summarize_shifts(shifts, len(wrong), unclean)
