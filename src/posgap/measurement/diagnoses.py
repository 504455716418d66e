"""The diagnosis file: `diagnosis.json`, what `posgap.diagnosis` finds out about a sweep."""

from pathlib import Path

import numpy as np
from pydantic import Field

from posgap.files import Record, read_model

DIAGNOSIS_FILE = "diagnosis.json"


class TokenShift(Record):
    """A wrong answer, read token by token beside the right one.

    `tokens [T]` are the advantageous response's, `kl [T]` the divergence at each, in nats. At index
    `turning` from 0 the trivial reading would have said `instead`; given the right token it said
    `corrected`, which is right where `recovered`. `settled`: the tokens up to there answer already.
    """

    id: str
    placement: list[int]
    response: str
    prediction: str
    tokens: list[str]
    kl: list[float]
    turning: int
    instead: str
    corrected: str
    recovered: bool
    settled: bool


class TokenFigures(Record):
    """Token shifts in numbers; rates are percentages, divergences medians in nats.

    `unsettled` counts the shifts whose right token did not complete the answer by itself: only of
    those can the model be said to recover.
    """

    wrong: int
    diagnosed: int
    recovery_rate: float | None
    unsettled: int
    unsettled_recovery_rate: float | None
    kl_turning: float | None
    kl_elsewhere: float | None
    turning_is_peak: float | None
    shifts: list[TokenShift]


class AttentionFigures(Record):
    """Attention in percent, means over examples.

    `gold [P][L]` is what the last prompt token gives the gold documents in each layer at each placement,
    `sink [P][L]` what it gives the first token. `answer_gold`, `answer_sink` are the same from the
    answer's own tokens, a mean over those; a placement's row is empty where no answer has two tokens.
    `even [P]` is the gold documents' share of the prompt's tokens.
    """

    n_examples: int
    gold: list[list[float]]
    sink: list[list[float]]
    even: list[float]
    answer_gold: list[list[float]] = Field([])
    answer_sink: list[list[float]] = Field([])

    @property
    def views(self) -> list[tuple[str, list[list[float]], list[list[float]]]]:
        """From where, gold and sink: the last prompt token, and the answer's tokens if every placement has some."""
        views = [("the last prompt token", self.gold, self.sink)]
        if self.answer_gold and all(self.answer_gold):
            views.append(("the answer's tokens", self.answer_gold, self.answer_sink))
        return views


class Diagnosis(Record):
    """Why a model errs where it does; `tokens` and `attention` are None where they were not asked for."""

    label: str
    placements: list[list[int]]
    advantageous: list[int]
    tokens: TokenFigures | None
    attention: AttentionFigures | None
    examples_digest: str
    model_digest: str
    prompt_digest: str


def summarize_shifts(shifts: list[TokenShift], wrong: int) -> TokenFigures:
    """The figures of `shifts`, out of `wrong` answers that were there to be diagnosed."""
    unsettled = [shift for shift in shifts if not shift.settled]
    elsewhere = [kl for shift in shifts for t, kl in enumerate(shift.kl) if t != shift.turning]
    return TokenFigures(
        wrong=wrong,
        diagnosed=len(shifts),
        recovery_rate=_percent([shift.recovered for shift in shifts]),
        unsettled=len(unsettled),
        unsettled_recovery_rate=_percent([shift.recovered for shift in unsettled]),
        kl_turning=_median([shift.kl[shift.turning] for shift in shifts]),
        kl_elsewhere=_median(elsewhere),
        turning_is_peak=_percent([shift.kl[shift.turning] == max(shift.kl) for shift in shifts]),
        shifts=shifts,
    )


def _percent(outcomes: list[bool]) -> float | None:
    return 100 * sum(outcomes) / len(outcomes) if outcomes else None


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def read_diagnosis(path: Path) -> Diagnosis:
    """Reads a diagnosis from the folder the stage wrote, or from its `diagnosis.json`."""
    return read_model(Diagnosis, path, DIAGNOSIS_FILE)
