"""approve: the challenger of a registered model becomes its champion."""

import logging

from posgap.foundation.printing import RESULT, set_result
from posgap.options.approve import ApproveConfig
from posgap.tracking.promotion import approve_challenger

log = logging.getLogger(__name__)


def approve(config: ApproveConfig) -> None:
    """Makes the challenger the champion, and records who approved it."""
    name = config.name
    version = str(config.version)
    approve_challenger(name, version)
    set_result({"name": name, "champion": version})
    log.log(RESULT, "%s: version %s is the champion", name, version)
