"""What a gate demands of a candidate: thresholds of its rules, least numbers, and what else a policy file can say."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints

from posgap.foundation.fields import ALLOW, NO_OPTION, Allowed
from posgap.foundation.registry import Parameters
from posgap.gating.rules import GATE_RULES
from posgap.tasks.fields import OptionalMetricName, OptionalTaskName

PUBLIC_KEY = r"^(ed25519:[A-Za-z0-9+/]{43}=)?$"


MOST_EXAMPLES = 10**9


class MinimumEvidence(Parameters):
    least_examples: Annotated[int, NO_OPTION] = Field(
        100, ge=1, le=MOST_EXAMPLES, description="examples that must have been swept to be judged at all"
    )
    least_placements: Annotated[int, NO_OPTION] = Field(
        5,
        ge=2,
        le=MOST_EXAMPLES,
        description="placements that must have been swept, or as many as there are documents, if fewer",
    )

    most_examples: Annotated[int, NO_OPTION] = Field(
        0,
        ge=0,
        le=MOST_EXAMPLES,
        description="examples up to which `check`, and `gate` with a registered name, sweep more by themselves while "
        "there is not enough evidence; 0: they end after one look",
    )


class GateThresholds(MinimumEvidence):
    allow: Allowed = Field([], description=ALLOW)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class PolicyMetadata(Parameters):
    version: Annotated[str, BeforeValidator(_as_text), StringConstraints(pattern=r"^[\w.+ -]{0,100}$")] = Field(
        "", description="version of this policy, for people; recorded with every verdict under it"
    )
    task: OptionalTaskName = Field("", description="task that must have been swept; empty: any")
    metric: OptionalMetricName = Field(
        "", description="metric by which the responses must have been scored; empty: any"
    )
    data: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="examples that must have been swept: examples_digest of a sweep.json; empty: any",
    )
    signed_by: str = Field(
        "",
        pattern=PUBLIC_KEY,
        description="public key of whoever must have signed the verdict before it promotes a model; empty: nobody",
    )
    max_age_days: float = Field(
        0, ge=0, description="days after which a verdict promotes no model any more; 0: it does not age"
    )
    approval: bool = Field(
        False, description="let what passes wait, as alias challenger, until `posgap approve` makes it the champion"
    )


class Policy(*GATE_RULES.bases(), GateThresholds, PolicyMetadata):  # type: ignore[misc]  # registered choices' parameters
    """Everything that a gate demands of a candidate. A policy file names any of it; the rest has its defaults."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, options: Any) -> Self:
        """The policy that the options of a gate make, which are silent on some of it."""
        return cls(**{name: getattr(options, name) for name in cls.model_fields if hasattr(options, name)})
