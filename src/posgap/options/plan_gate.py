"""Options of `plan gate`."""

from pydantic import Field

from posgap.foundation.fields import (
    OptionalInputPath,
)
from posgap.gating.rules import SIMULATED_RULES
from posgap.options.plan_sweep import ExpectedConfig
from posgap.options.verb import Verb


class PlanGateConfig(*SIMULATED_RULES.bases(), ExpectedConfig):  # type: ignore[misc]  # registered choices' parameters
    """Says how many examples the gate needs to admit a model that has no gap and lost nothing to its base."""

    policy: OptionalInputPath = Field(
        None, description="file of the policy, which then alone decides; empty: the options below"
    )
    power: float = Field(0.8, gt=0.05, lt=1, description="how often such a model is to be admitted")


VERB = Verb(PlanGateConfig, "--max-gap 10 --n-docs 5")
