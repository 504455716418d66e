"""policy: prints a policy, or gives it to a registered model."""

import logging

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import RESULT, set_result, show
from posgap.gating.demands import Policy
from posgap.gating.policy import policy_digest, policy_line, policy_text, read_policy, registered_policy
from posgap.gating.signature import keygen
from posgap.options.policy import PolicyConfig
from posgap.tracking import registry
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)


@with_local_paths
def policy(config: PolicyConfig) -> None:
    """Makes a key, gives a registered model the policy of a file, or prints its policy or the default one. Fields that
    a file leaves out are stored with today's defaults."""
    if config.keygen:
        keygen(config.keygen)
    elif config.file:
        given = read_policy(config.file)
        registry.set_policy(config.name, given.model_dump_json())
        set_result({"name": config.name, "version": given.version, "digest": policy_digest(given)})
        log.log(RESULT, "%s: policy %s", config.name, policy_line(given))
    else:
        shown = registered_policy(config.name) if config.name else Policy()
        if shown is None:
            raise PosgapError(
                f"{config.name}: has no policy in MLflow; `posgap policy {config.name} FILE` gives it one"
            )
        show(policy_text(shown), shown.model_dump(mode="json"))
