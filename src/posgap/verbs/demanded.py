"""Finds the policy that a verb's options demand, or the file and the registered model that they name."""

from posgap.foundation.errors import BadOption
from posgap.foundation.locations import Location
from posgap.gating.demands import Policy
from posgap.gating.policy import as_file, policy_line, read_policy, registered_policy
from posgap.options.check import CheckConfig
from posgap.options.gate import GateConfig
from posgap.options.plan_gate import PlanGateConfig


def policy_of(config: GateConfig | CheckConfig | PlanGateConfig) -> Policy:
    """Returns the policy that a gate applies: its file's, or else the one that its options make.

    With a file, options must be defaults or agree with it, else `PosgapError`.
    """
    options = Policy.of(config)
    if config.policy is None:
        return options
    policy = read_policy(config.policy)
    for name in options.model_fields_set:
        value = getattr(options, name)
        demanded = getattr(policy, name)
        if value not in (config.default(name), demanded):
            raise BadOption(
                f"`{name}` {value}: {config.policy} says {demanded}, which options cannot change; leave that out, "
                "or change the policy"
            )
    return policy


def policy_file(config: GateConfig) -> Location | None:
    """Returns the file of the policy that a gate applies; None if its options are the policy.

    If the candidate's registered model has a policy, it is that one: `PosgapError` if another is given too.
    """
    own = registered_policy(config.name) if config.name else None
    if own is None:
        return config.policy
    if config.policy is not None:
        raise BadOption(
            f"--policy {config.policy}: {config.name} has its own policy, {policy_line(own)}; leave --policy out"
        )
    return as_file(own)
