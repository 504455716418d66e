"""The diagnosis file, `diagnosis.json`: the results of `posgap.diagnosis` on a sweep."""

from pathlib import Path

import numpy as np
from pydantic import Field

from posgap.foundation.files import Record, read_model

DIAGNOSIS_FILE = "diagnosis.json"


class TokenShift(Record):
    """A wrong answer, read token by token beside the right one."""

    id: str = Field(description="of the example")
    placement: list[int] = Field(description="where it was answered wrongly")
    response: str = Field(description="the right response, from the best placement")
    prediction: str = Field(description="the wrong one")
    tokens: list[str] = Field(description="[T] of the right response")
    kl: list[float] = Field(description="[T] divergence at each, in nats")
    turning: int = Field(description="index, from 0, of the first token that the model would not have said")
    instead: str = Field(description="what it would have said")
    corrected: str = Field(description="its response with that token corrected")
    recovered: bool = Field(description="whether that is right")
    settled: bool = Field(description="whether the corrected token completes the answer by itself")


class TokenFigures(Record):
    """Token shifts in numbers: rates in percent, divergences as medians in nats."""

    wrong: int = Field(description="answers wrong at a placement, of examples right at the advantageous one")
    diagnosed: int = Field(description="how many were read again")
    recovery_rate: float | None = Field(description="right once the turning token alone is corrected")
    unsettled: int = Field(description="shifts whose corrected token does not complete the answer")
    unsettled_recovery_rate: float | None = Field(description="the recovery rate of these alone")
    kl_turning: float | None = Field(description="divergence at turning tokens")
    kl_elsewhere: float | None = Field(description="divergence at the others")
    turning_is_peak: float | None = Field(description="turning tokens with the response's greatest divergence")
    unclean: int = Field(0, description="wrong answers that repeat the prompt or were cut")
    shifts: list[TokenShift] = Field(description="a row for each answer read")


class AttentionFigures(Record):
    """Shares of attention in percent, as means over examples."""

    n_examples: int = Field(description="number of examples")
    gold: list[list[float]] = Field(description="[P, L] of the last prompt token, on the gold documents")
    sink: list[list[float]] = Field(description="[P, L] of the last prompt token, on the first token")
    even: list[float] = Field(description="[P] what even attention would give the gold documents")
    answer_gold: list[list[float]] = Field([], description="[P, L] of the answer's own tokens, on the gold documents")
    answer_sink: list[list[float]] = Field([], description="[P, L] of the answer's own tokens, on the first token")
    preamble: str = Field("", description="words after which the model answers; empty where it answers at once")

    @property
    def views(self) -> list[tuple[str, list[list[float]], list[list[float]]]]:
        """The views to show as (attending tokens, gold, sink): the last prompt token's, and the answer's tokens' if
        every placement has some."""
        views = [("the last prompt token", self.gold, self.sink)]
        if self.answer_gold and all(self.answer_gold):
            views.append(("the answer's tokens", self.answer_gold, self.answer_sink))
        return views


class Diagnosis(Record):
    """A sweep's diagnosis by tokens and by attention."""

    label: str = Field(description="of the model")
    placements: list[list[int]] = Field(description="those of the sweep")
    advantageous: list[int] = Field(description="the best one")
    tokens: TokenFigures | None = Field(description="token shifts; null where they were not asked for")
    attention: AttentionFigures | None = Field(description="attention; null where it was not asked for")
    examples_digest: str = Field(description="the sweep's")
    model_digest: str = Field(description="the sweep's")
    prompt_digest: str = Field(description="the sweep's")


def summarize_shifts(shifts: list[TokenShift], wrong: int, unclean: int = 0) -> TokenFigures:
    """The figures of `shifts`, which were drawn from `wrong` answers that could be diagnosed; `unclean` of them are of
    answers that repeat the prompt or were cut."""
    unsettled = [shift for shift in shifts if not shift.settled]
    elsewhere = []
    for shift in shifts:
        elsewhere += [*shift.kl[: shift.turning], *shift.kl[shift.turning + 1 :]]
    return TokenFigures(
        wrong=wrong,
        diagnosed=len(shifts),
        recovery_rate=_percent([shift.recovered for shift in shifts]),
        unsettled=len(unsettled),
        unsettled_recovery_rate=_percent([shift.recovered for shift in unsettled]),
        kl_turning=_median([shift.kl[shift.turning] for shift in shifts]),
        kl_elsewhere=_median(elsewhere),
        turning_is_peak=_percent([shift.kl[shift.turning] == max(shift.kl) for shift in shifts]),
        unclean=unclean,
        shifts=shifts,
    )


def _percent(outcomes: list[bool]) -> float | None:
    return 100 * sum(outcomes) / len(outcomes) if outcomes else None


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def read_diagnosis(path: Path) -> Diagnosis:
    """Reads a diagnosis from the folder that the stage wrote, or from its `diagnosis.json`."""
    return read_model(Diagnosis, path, DIAGNOSIS_FILE)
