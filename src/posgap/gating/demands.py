"""What a gate demands of a candidate: thresholds of its rules, minimum numbers, and the other settings of a policy
file."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import ALLOW, NO_OPTION, Allowed, parse_settings
from posgap.foundation.registry import Parameters
from posgap.gating.rules import GATE_RULES
from posgap.tasks.fields import MAX_DOCS, OptionalMetricName, OptionalTaskName, Placements

PUBLIC_KEY = r"^(ed25519:[A-Za-z0-9+/]{43}=)?$"


MOST_EXAMPLES = 10**9
MAX_BYTES = 16_384  # of a policy file; the longest sensible one has a tenth
MAX_NATS = 0.5  # a token: a text that lost more counts as this


class MinimumEvidence(Parameters):
    least_examples: Annotated[int, NO_OPTION] = Field(
        100, ge=1, le=MOST_EXAMPLES, description="fewest examples that a sweep needs to be judged"
    )
    least_placements: Annotated[int, NO_OPTION] = Field(
        5,
        ge=2,
        le=MOST_EXAMPLES,
        description="fewest placements that a sweep needs, or as many as there are documents, if fewer",
    )

    most_examples: Annotated[int, NO_OPTION] = Field(
        0,
        ge=0,
        le=MOST_EXAMPLES,
        description="examples up to which `check`, and `gate` with a registered name, sweep more by themselves while "
        "there is not enough evidence; 0: they end after one look",
    )


class Guard(Parameters):
    """What a candidate must not lose besides the gated task: accuracy on other examples, or plain text."""

    model_config = ConfigDict(extra="forbid")

    examples: str = Field("", description="file of other examples; empty: the sweep's own")
    text: str = Field("", description="file of plain texts, JSON lines with a field `text`, in place of examples")
    task: OptionalTaskName = Field("", description="task of the examples; empty: the sweep's")
    n_docs: int = Field(0, ge=0, le=MAX_DOCS, description="documents in a prompt; 0: twice the sweep's")
    positions: Placements = Field(
        [], description="placements; empty: the first, middle and last, or pairs of all kinds"
    )
    limit: int = Field(300, ge=1, description="largest number of examples or texts")
    tolerance: float | None = Field(
        None,
        ge=0,
        le=100,
        description="points that may be lost at a placement, or nats a token of plain text (at most 0.5); not given: "
        "what was lost is shown, and decides nothing",
    )
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="sha256 of the file; empty: any")

    @property
    def place(self) -> str:
        """The place of its examples or texts; empty if they are the sweep's."""
        return self.examples or self.text

    @property
    def where_possible(self) -> bool:
        """Whether it is left out if the examples of the sweep do not have enough documents."""
        return not (self.place or self.task or self.n_docs)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        asked = [name for name in ("examples", "task", "n_docs", "positions") if getattr(self, name)]
        if self.text and asked:
            raise ValueError(f"`{asked[0]}`: belongs to examples, but `text` is given; make two guards")
        if self.text and self.tolerance is not None and self.tolerance > MAX_NATS:
            raise ValueError(f"`tolerance`: for plain text it is in nats a token, at most {MAX_NATS:g}")
        if self.sha256 and not self.place:
            raise ValueError("`sha256`: is the digest of a file; give `examples` or `text`")
        return self


def _guards(value: Any) -> Any:
    """Reads guards by name: given as they are, as YAML, or in a YAML file, which may be a whole policy."""
    if isinstance(value, Path) or (isinstance(value, str) and value and not {"{", "\n"} & {*value}):
        try:
            value = read_bytes(Path(value), MAX_BYTES).decode("utf-8")
        except (PosgapError, OSError, ValueError) as error:
            raise ValueError(f"expected guards, like {{longer: {{n_docs: 40}}}}, or a file of them: {error}") from None
    named = parse_settings(value) if isinstance(value, str) else value
    return named.get("guards", named) if isinstance(named, dict) else named


GuardName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Guards = Annotated[dict[GuardName, Guard], BeforeValidator(_guards)]
GUARDS = (
    "what must not be lost elsewhere, as YAML or a file of it, which may be a policy: by name `examples` (or `text`), "
    "`task`, `n_docs` and `tolerance`"
)


class GateThresholds(MinimumEvidence):
    allow: Allowed = Field([], description=ALLOW)
    guards: Annotated[Guards, NO_OPTION] = Field({}, description=GUARDS)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class PolicyMetadata(Parameters):
    version: Annotated[str, BeforeValidator(_as_text), StringConstraints(pattern=r"^[\w.+ -]{0,100}$")] = Field(
        "", description="version of this policy, for people; recorded with every verdict under it"
    )
    task: OptionalTaskName = Field("", description="task that must have been swept; empty: any")
    metric: OptionalMetricName = Field("", description="metric that must have scored the responses; empty: any")
    data: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="examples that must have been swept: examples_digest of a sweep.json; empty: any",
    )
    signed_by: str = Field(
        "",
        pattern=PUBLIC_KEY,
        description="public key that must have signed a verdict before it can promote a model; empty: none",
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
