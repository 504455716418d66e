"""What the comparison of mitigations does with its time: who goes first, who is given up early, and how much fits."""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import scipy  # which imports its parts when they are used

from posgap.mitigating.splits import MIN_EXAMPLES
from posgap.mitigations.mitigation import Mitigation

SEARCHED = 0.4  # at least this share of the budget is for the search, however long the rest would take
_FALSELY = 0.05  # of the mitigations that are no worse, at most this share is given up
_UNFILLED = 0.85  # of the time that is left, what sweeps may fill: the times of answers and pages take the rest


def by_price(mitigations: Iterable[Mitigation]) -> list[Mitigation]:
    """The mitigations whose answers take least time first; among equals those that search for settings of their own go
    last, since a search takes all the time that it is given."""
    return sorted(mitigations, key=lambda each: (each.price, type(each).search is not Mitigation.search))


def clearly_worse(harmed: int, helped: int) -> bool:
    """Whether a mitigation that turned `harmed` right answers into wrong ones, and `helped` wrong into right, is worse.

    It may be asked after every answer: of mitigations that harm no more than they help, at most one in twenty is ever
    called worse. That is Ville's inequality for the likelihood of these counts, the share of harm drawn evenly between
    a half and one, against that of a half. It takes questions as independent, which those of one example are not quite.
    """
    if harmed <= helped:
        return False
    above = scipy.special.betainc(helped + 1, harmed + 1, 0.5)  # of the share of harm, the part above a half
    log_evidence = (harmed + helped + 1) * np.log(2) + scipy.special.betaln(harmed + 1, helped + 1) + np.log(above)
    return bool(log_evidence >= -np.log(_FALSELY))


def base_share(mitigations: Sequence[Mitigation]) -> float:
    """The share of the budget in which the model as it is answers the search's examples: what it does not reach is left
    out of the search, so that a setting of most mitigations can be tried. A mitigation counts by the median of their
    prices, lest one that takes twenty times as long leave too few examples for all others."""
    return SEARCHED / (1 + len(mitigations) * statistics.median(each.price for each in mitigations))


def first_share(mitigations: Sequence[Mitigation], seconds: float, left: float) -> float:
    """The seconds for the first of the mitigations that are still to be tried, cheapest first, of the seconds that are
    left: a part by price, among as many as can each try one setting. An answer to all of the search's examples takes
    the model as it is `seconds`."""
    total = 0.0
    for mitigation in mitigations:
        if total and (total + mitigation.price) * seconds > left:
            break
        total += mitigation.price
    return left * mitigations[0].price / total


def fitting(n: int, seconds_each: float, left: float) -> int:
    """How many of n held-out examples fit into the seconds that are left; at least as many as an interval needs."""
    return min(n, max(MIN_EXAMPLES, int(_UNFILLED * left / seconds_each))) if seconds_each > 0 else n
