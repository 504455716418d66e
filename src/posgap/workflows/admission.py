"""`posgap gate` and `posgap promote`: a candidate is judged against the champion that the registry has, on the same
examples."""

import logging

from posgap.foundation.locations import Location
from posgap.gating.config import GateConfig
from posgap.gating.policy import as_file, registered_policy
from posgap.gating.replay import OutdatedVerdict, champion_of
from posgap.gating.verdict import read_verdict
from posgap.stages import gate as gate_stage
from posgap.stages import promote as stage
from posgap.storage.cache import fetch_location
from posgap.tracking import registry
from posgap.tracking.config import PromoteConfig
from posgap.workflows.champion_sweep import says_there_is_none, sweep_like

log = logging.getLogger(__name__)


def gate(config: GateConfig) -> None:
    """`posgap gate`: judges as `admit` does; raises `Rejected`, or asks for more examples, where the verdict does."""
    verdict = read_verdict(fetch_location(gate_stage.gate(with_champion(config))))
    if not verdict.passed:
        raise verdict.error(str(config.candidate))


def admit(config: GateConfig) -> Location:
    """Judges by the stage `gate`, against the registry's champion where `config` names a model and no sweep of it."""
    return gate_stage.gate(with_champion(config))


def with_champion(config: GateConfig) -> GateConfig:
    """The config with a sweep of the registry's champion, where it names a registered model and no sweep.

    Without a champion there it says so, and the base is what the candidate is compared with; so where `champion` has
    written that there is none.
    """
    name, swept = config.name, None
    if config.champion and says_there_is_none(config.champion):
        log.info("%s says that there is no champion: the candidate is judged against the base", config.champion)
    elif config.champion or not name:
        return config
    elif version := registry.to_beat(name):
        log.info("the candidate is judged against the champion, %s version %s", name, version.version)
        swept = sweep_like(version, config.candidate, config.examples)
    else:
        log.info("%s has no champion: the candidate is judged against the base", name)
    return config.model_copy(update={"champion": swept})


def promote(config: PromoteConfig) -> Location:
    """Promotes as the stage does. Where the verdict is not on the champion of today, the candidate is judged again
    against that one first, if `config` says where the other verdict is to be."""
    if config.gate_again:
        folder = fetch_location(config.gate)
        verdict = read_verdict(folder)
        try:
            champion_of(verdict, config.name, folder)
        except OutdatedVerdict as reason:
            log.info("%s", reason)
            judged = {"candidate": config.sweep, "base": folder / "base", "examples": config.examples}
            policy = None if registered_policy(config.name) else as_file(verdict.policy)
            asked = GateConfig(**judged, name=config.name, policy=policy, out=config.gate_again, force=True)
            return stage.promote(config.model_copy(update={"gate": admit(asked), "gate_again": None}))
    return stage.promote(config)
