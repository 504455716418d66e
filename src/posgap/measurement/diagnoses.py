"""The diagnosis file, `diagnosis.json`: the results of `posgap.diagnosis` on a sweep."""

from pathlib import Path

import numpy as np
from pydantic import Field

from posgap.foundation.files import Record, read_model

DIAGNOSIS_FILE = "diagnosis.json"


class TokenShift(Record):
    """A wrong answer, read token by token beside the right one; see `posgap.diagnosis.token_shifts`.

    `tokens [T]` are those of the right response at the advantageous position, `kl [T]` the divergence at each of them,
    in nats. At index `turning`, counted from 0, the model would have written `instead`. With that token corrected its
    response was `corrected`, and `recovered` says whether it is right. `settled` says whether the tokens up to the
    corrected one answer the question already.
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
    """Token shifts in numbers; rates are percentages, divergences are medians in nats.

    `unsettled` counts the shifts in which the corrected token did not complete the answer by itself. Only in those
    can the model be said to recover. `unclean` counts those of wrong answers that repeat the prompt or were cut.
    """

    wrong: int
    diagnosed: int
    recovery_rate: float | None
    unsettled: int
    unsettled_recovery_rate: float | None
    kl_turning: float | None
    kl_elsewhere: float | None
    turning_is_peak: float | None
    unclean: int = 0
    shifts: list[TokenShift]


class AttentionFigures(Record):
    """Shares of attention in percent, as means over examples.

    `gold [P][L]` is the share that the last prompt token pays to the gold documents, at each placement and in each
    layer, and `sink [P][L]` its share for the first token. `answer_gold` and `answer_sink` are the same for the
    answer's own tokens, averaged over them; a placement's row is empty if no answer there has two tokens. `even [P]`
    is the gold documents' share of the prompt's tokens: what they would get if attention were spread evenly.
    `preamble` says after what words the model answers; it is empty where it answers at once.
    """

    n_examples: int
    gold: list[list[float]]
    sink: list[list[float]]
    even: list[float]
    answer_gold: list[list[float]] = Field([])
    answer_sink: list[list[float]] = Field([])
    preamble: str = Field("")

    @property
    def views(self) -> list[tuple[str, list[list[float]], list[list[float]]]]:
        """The views to show as (attending tokens, gold, sink): the last prompt token's, and the answer's tokens' if
        every placement has some."""
        views = [("the last prompt token", self.gold, self.sink)]
        if self.answer_gold and all(self.answer_gold):
            views.append(("the answer's tokens", self.answer_gold, self.answer_sink))
        return views


class Diagnosis(Record):
    """A sweep's diagnosis by tokens and by attention, each None if it was not requested."""

    label: str
    placements: list[list[int]]
    advantageous: list[int]
    tokens: TokenFigures | None
    attention: AttentionFigures | None
    examples_digest: str
    model_digest: str
    prompt_digest: str


def summarize_shifts(shifts: list[TokenShift], wrong: int, unclean: int = 0) -> TokenFigures:
    """The figures of `shifts`, which were drawn from `wrong` answers that could be diagnosed; `unclean` of them are of
    answers that repeat the prompt or were cut."""
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
