"""Diagnoses a sweep's wrong answers token by token."""

import numpy as np

from posgap.diagnosis.swept import Swept
from posgap.diagnosis.token_shifts import Readings, corrected, token_shifts
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.diagnoses import TokenFigures, TokenShift, summarize_shifts


def diagnose_tokens(
    swept: Swept, generator: TransformersGenerator, most: int, batch_tokens: int, seed: int
) -> TokenFigures:
    """Diagnoses at most `most` wrong answers, drawn at random with `seed`.

    They are wrong at a trivial placement while their example is answered correctly at the advantageous one, so that
    only the position can explain the error.
    """
    wrong = np.argwhere((swept.correct < 1) & (swept.correct[:, [swept.best]] == 1))
    drawn = np.sort(np.random.default_rng(seed).permutation(len(wrong))[:most])
    cases = [(swept.examples[e], swept.placements[p]) for e, p in wrong[drawn]]
    if not cases:
        return summarize_shifts([], wrong=0)
    build, advantageous = swept.build, swept.placements[swept.best]
    prompts = [build.prompt(example, advantageous) for example, _ in cases]
    sampling = Sampling.of(build)
    responses = complete(generator, prompts, sampling)
    streams = [
        Readings(list(prompt.token_ids), build(example, placement), response.token_ids)
        for prompt, (example, placement), response in zip(prompts, cases, responses)
    ]
    token_by_token = token_shifts(generator.model, streams, build.tokenizer.pad_token_id, batch_tokens)
    # Without a turning token the answer is not wrong here: in the sweep, rounding in another batch made it wrong.
    turned = [
        (case, r, shift, shift.turning)
        for case, r, shift in zip(cases, streams, token_by_token)
        if shift.turning is not None
    ]

    def decode(ids: list[int]) -> str:
        stream = ResponseStream(build.tokenizer, generator.end_ids, sampling)
        stream.read(ids)
        return stream.completion().text

    mended = corrected(
        generator, [r for _, r, _, _ in turned], [at for _, _, _, at in turned], build.max_new_tokens, decode
    )
    said = {(row["id"], tuple(row["placement"])): row for row in swept.predictions}
    shifts = [
        TokenShift(
            id=example.id,
            placement=list(placement.positions),
            response=decode(r.response),
            prediction=said[example.id, placement.positions]["response"],
            tokens=[build.tokenizer.decode([token]) for token in r.response],
            kl=shift.kl,
            turning=at,
            instead=build.tokenizer.decode([shift.greedy[at]]),
            corrected=text,
            recovered=swept.score(text, example, placement) == 1,
            settled=swept.score(decode(r.response[: at + 1]), example, placement) == 1,
        )
        for ((example, placement), r, shift, at), text in zip(turned, mended)
    ]
    rows = [said[shift.id, tuple(shift.placement)] for shift in shifts]
    return summarize_shifts(shifts, len(wrong), sum(row.get("cut") or row.get("echo") or False for row in rows))
