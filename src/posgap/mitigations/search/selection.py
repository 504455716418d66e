"""The choice of settings: each mitigation's are tried on the selection's examples, and the best of each are kept."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import cast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.printing import format_count
from posgap.mitigations.curves import Candidate
from posgap.mitigations.mitigation import Mitigation, ModelMitigation, PromptMitigation, ProposalInput, Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search.budget import SEARCHING, TRIALS
from posgap.mitigations.search.comparison import Comparison, Trial
from posgap.mitigations.search.report import MitigationOutcome, blank_outcome
from posgap.tasks.prompts import PromptBuilder

log = logging.getLogger(__name__)
FINALISTS = 4  # mitigations that are measured
_OF_EACH_KIND = 2  # of them the best of prompts, and the best of models
_PROMPTS = 4  # on which a mitigation may measure the model before it proposes settings


def choose_settings(mitigations: Sequence[Mitigation], comparison: Comparison) -> list[MitigationOutcome]:
    """Returns the findings on every mitigation: each tries settings in an equal share of the remaining time for
    choosing, the first of all in any case.

    Raises `PosgapError` if the model can have none of them.
    """
    possible = [mitigation for mitigation in mitigations if not comparison.model.why_not(mitigation)]
    base = comparison.try_base(comparison.clock.end_of_share(1 + TRIALS * len(possible)))
    n = len(comparison.splits.selection)
    log.info("base: mean %.1f on %d examples in %.1f s", base.mean, n, base.seconds)
    found = list[MitigationOutcome]()
    for number, mitigation in enumerate(mitigations):
        until = comparison.clock.end_of_share(len(mitigations) - number)
        found.append(_choose(mitigation, comparison, base, until, is_first=not any(each.tried for each in found)))
    if not any(each.tried for each in found):
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in found)
        raise PosgapError(f"{comparison.model.settings.model}: no mitigation applies: {reasons}")
    return found


def pick_finalists(found: Sequence[MitigationOutcome]) -> list[MitigationOutcome]:
    """Returns the mitigations to measure, the best on the selection first: the best of prompts and of models, and then
    the next best."""
    ranked = sorted((each for each in found if each.tried), key=lambda each: -(each.selection_gain or 0.0))
    of_models = [each for each in ranked if MITIGATIONS[each.name].of_model]
    of_prompts = [each for each in ranked if not MITIGATIONS[each.name].of_model]
    best = [*of_models[:_OF_EACH_KIND], *of_prompts[:_OF_EACH_KIND]]
    picked = sorted(ranked, key=lambda each: each not in best)[:FINALISTS]  # the best, and then the others
    return [each for each in ranked if each in picked]


def _choose(
    mitigation: Mitigation, comparison: Comparison, base: Trial, until: float, is_first: bool
) -> MitigationOutcome:
    """Returns the best settings of a mitigation, or why there are none."""
    about = blank_outcome(mitigation)
    reason = comparison.model.why_not(mitigation)
    if reason:
        return about.model_copy(update={"reason": reason})
    try:
        tried = _try_settings(mitigation, comparison, until, is_first)
    except PosgapError as refused:
        if comparison.model.elsewhere is not None:
            raise  # An endpoint that gives no answers says nothing of the mitigation.
        log.info("%s: left out: %s", mitigation.name, refused)
        return about.model_copy(update={"reason": str(refused)})
    if not tried:
        return about.model_copy(update={"reason": "the budget was over before it was tried"})
    best = max(tried, key=lambda trial: trial.mean)
    gain = best.mean - base.mean
    log.info("%s: %s tried, the best %+.1f in the mean", mitigation.name, format_count(len(tried), "setting"), gain)
    return about.model_copy(update={"settings": best.settings, "tried": len(tried), "selection_gain": round(gain, 3)})


def _try_settings(mitigation: Mitigation, comparison: Comparison, until: float, is_first: bool) -> list[Trial]:
    """Tries those of a mitigation's settings that fit into its time, which ends at `until`. It tries at least one if
    that time has not ended, or if this is the first mitigation."""
    clock = comparison.clock
    tried = list[Trial]()
    name = mitigation.name
    if clock.seconds_spent >= until and not is_first and not comparison.has_tried(name):
        return tried
    for settings in _propose(mitigation, comparison, until):
        is_late = bool(tried) and clock.seconds_spent + tried[-1].seconds > until
        if is_late and not comparison.has_tried(name, settings):
            break
        tried.append(comparison.try_settings(name, settings))
    return tried


def _propose(mitigation: Mitigation, comparison: Comparison, until: float) -> Sequence[Settings]:
    """Returns the settings of a mitigation to try."""
    if isinstance(mitigation, PromptMitigation):
        return mitigation.list_settings()
    model = comparison.model
    builder = cast(PromptBuilder, comparison.model.builder)
    assert model.in_memory is not None
    prompts = [builder(example, model.middle) for example in comparison.splits.selection[:_PROMPTS]]
    proposal = ProposalInput(model.in_memory, prompts, search_factors=partial(_search_factors, comparison, until))
    return cast(ModelMitigation, mitigation).propose_settings(proposal)


def _search_factors(comparison: Comparison, until: float) -> list[Candidate]:
    """Searches RoPE factors on the selection's examples as `scale search` does by default, all placements counting
    alike, and returns the best but those that change nothing. It leaves time to try them."""
    model = comparison.model
    clock = comparison.clock
    load = model.in_memory
    assert load is not None
    from posgap.models.layer_scaling import layer_scaling  # torch, which endpoints do without
    from posgap.scaling.search import Backend, FactorSearch

    search = FactorSearch(
        comparison.search,
        cast(PromptBuilder, model.builder),
        comparison.splits.selection,
        model.trial_placements,
        load=lambda: load,
        choose_backend=lambda: Backend(comparison.search.backend, None),  # the model is in memory
    )
    end = clock.seconds_spent + SEARCHING * (until - clock.seconds_spent)
    identity = digest_of([comparison.state.identity, len(comparison.splits.selection)])
    scaling = layer_scaling(load)
    with scaling.factors_by_row(scaling.factors):  # its end restores them, whatever was set
        found = search.find_factors(comparison.folder, identity, is_over=lambda: clock.seconds_spent > end)
    return [factors for factors in found.finalists if factors != search.ones]
