"""rollback: the previous champion of a registered model becomes the champion again."""

import logging

from posgap.foundation.printing import RESULT, set_result
from posgap.options.rollback import RollbackConfig
from posgap.tracking.history import restore_previous

log = logging.getLogger(__name__)


def rollback(config: RollbackConfig) -> None:
    """Makes the previous champion the champion again, and says which versions changed places."""
    change = restore_previous(config.name, config.reason)
    set_result({"name": config.name, "champion": change.version, "previous": change.previous})
    words = "%s: version %s is the champion again, and version %s the previous one"
    log.log(RESULT, words, config.name, change.version, change.previous)
