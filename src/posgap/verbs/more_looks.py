"""A gate that lacks examples takes more of them by itself: the same sweeps on more of the same file."""

import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from posgap.data.import_report import ImportReport
from posgap.data.reading import read_examples
from posgap.foundation.errors import PosgapError, first_fault
from posgap.foundation.locations import Location, below
from posgap.gating.guards import measured_guards
from posgap.gating.looks import is_counted
from posgap.gating.verdict import Verdict, next_number
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import fetch_location
from posgap.storage.inputs import source
from posgap.storage.lineage import examples_of
from posgap.verbs.sweep import sweep_model

log = logging.getLogger(__name__)


def take_another_look(config: GateConfig, verdict: Verdict, look: int) -> GateConfig | None:
    """Sweeps more examples if the policy of a registered name gives them and the verdict lacks them; returns the gate
    that judges the new sweeps. None if the verdict stands.

    The sweeps lie beside the gate's output. Looks are counted by a model's tensors, so an endpoint gets no second look.
    """
    swept = read_sweep(fetch_location(config.candidate))
    if not (config.name and verdict.policy.most_examples and is_counted(swept)):
        return None
    examples = config.examples or examples_of(config.candidate)
    if examples is None:
        return None
    number = next_number(verdict, swept, len(read_examples(fetch_location(examples), ImportReport())))
    if not number:
        return None
    log.info("%s; look %d takes %s examples", verdict.error(str(config.candidate)), look, f"{number:,}")
    more = {}
    for role in ("candidate", "base", "champion"):
        before = getattr(config, role)
        if before:
            out = below(f"{config.out}-looks", f"{role}-{look}")
            more[role] = _sweep_more(before, examples, number, out)
    return config.model_copy(update={**more, "examples": examples, "force": True})


def _sweep_more(before: Location, examples: Location, number: int, out: Location) -> Location:
    """Sweeps the model of a sweep on the first `number` of the examples, and asks only the new ones."""
    folder = Path(fetch_location(before))
    swept = read_sweep(folder)
    if source(swept.model).digest() != swept.model_digest:
        raise PosgapError(f"{swept.model}: another model is there now than when {before} was swept; sweep it again")
    given: dict[str, Any] = {"model": swept.model, "examples": examples, "limit": number, "label": swept.label}
    given |= {"out": out, "guards": measured_guards(folder)}
    try:
        config = SweepConfig(**swept.settings | given)
    except ValidationError as error:
        raise PosgapError(f"{before}: its settings: {first_fault(error)}; sweep it again") from None
    return sweep_model(config, earlier=folder)
