"""Which mitigations are worth measuring: not the best by one objective alone, but the best for each purpose."""

from collections.abc import Callable, Mapping, Sequence

from posgap.mitigating.report import PURPOSES, Found, Purpose
from posgap.mitigating.trials import Tried
from posgap.scaling.fitness import Objective

Fitness = Callable[[Tried, Objective | None], float]


def in_order(rows: Mapping[str, Tried], found: Mapping[str, Found], fitness: Fitness) -> list[str]:
    """Names of mitigations: the best for each purpose, purpose by purpose, then all others by `fitness(row, None)`, the
    best first."""
    by_objective = sorted(rows, key=lambda name: -fitness(rows[name], None))
    return list(dict.fromkeys([*best_for(PURPOSES, rows, found, fitness), *by_objective]))


def best_for(
    purposes: Sequence[Purpose], rows: Mapping[str, Tried], found: Mapping[str, Found], fitness: Fitness
) -> list[str]:
    """For each purpose the mitigation that does best by its objective, of those that are for it; each named once."""
    chosen = list[str]()
    for purpose in purposes:
        fitting = [name for name in rows if purpose.fits(found[name])]
        if fitting:
            chosen.append(max(fitting, key=lambda name: fitness(rows[name], purpose.by)))
    return list(dict.fromkeys(chosen))
