"""`posgap gate`: judges a candidate against the champion that the registry has, on the same examples."""

import logging

from posgap.champion_sweep import says_there_is_none, sweep_like
from posgap.config import GateConfig
from posgap.config.fields import registered
from posgap.locations import Location
from posgap.stages.gate import gate
from posgap.tracking import registry

log = logging.getLogger(__name__)


def admit(config: GateConfig) -> Location:
    """Judges as `gate` does, against the registry's champion where `config` names a registered model and no sweep.

    Without a champion there it says so, and the base is what the candidate is compared with; so where `champion` has
    written that there is none.
    """
    name = registered(config.champion) or ("" if config.champion else config.name)
    if not name and config.champion and says_there_is_none(config.champion):
        log.info("%s says that there is no champion: the candidate is judged against the base", config.champion)
        return gate(config.model_copy(update={"champion": None}))
    if not name:
        return gate(config)
    version = registry.to_beat(name)
    if version is None:
        log.info("%s has no champion: the candidate is judged against the base", name)
        return gate(config.model_copy(update={"champion": None}))
    log.info("the candidate is judged against the champion, %s version %s", name, version.version)
    swept = sweep_like(version, config.candidate, config.examples)
    return gate(config.model_copy(update={"champion": swept}))
