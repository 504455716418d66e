"""Options of `gate`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    NO_OPTION,
    RARE,
    InputPath,
    OptionalInputPath,
    OptionalRegisteredName,
)
from posgap.gating.demands import PUBLIC_KEY, GateThresholds
from posgap.gating.rules import GATE_RULES
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class GateConfig(*GATE_RULES.bases(), GateThresholds, StageConfig):  # type: ignore[misc]  # options of each gate rule
    """Decides whether a model may enter the registry. Exit code 3: it may not; 7: there is not enough evidence."""

    candidate: InputPath = Field(description="sweep of the candidate, the model to be admitted")
    base: InputPath = Field(description="sweep of the base, the model that the candidate was made from")
    champion: OptionalInputPath = Field(
        None,
        description="sweep of the current champion, to compare with; empty: the champion of --name, which is swept if "
        "need be, else the base",
    )
    examples: OptionalInputPath = Field(
        None,
        description="the swept examples, to score every response again and to sweep the registry's champion; empty: "
        "those named by the candidate's sweep",
    )
    policy: OptionalInputPath = Field(
        None,
        description="policy file, which replaces the options below; empty: the policy of --name, else "
        "the options below",
    )
    name: OptionalRegisteredName = Field(
        "",
        description="registered model that the candidate is for: judge by its policy and against its champion, if any",
    )
    signer: Annotated[str, NO_OPTION] = Field(
        "",
        pattern=PUBLIC_KEY,
        description="public key that must belong to the private key in POSGAP_SIGNING_KEY, which signs the verdict; "
        "empty: any",
    )
    candidates: Annotated[int, RARE] = Field(
        1, ge=1, description="candidates of one run that may each pass: they share the error"
    )


VERB = Verb(
    GateConfig,
    "--candidate run/after --base run/base --name my-model --out run/gate",
    results=("gate.json",),
    kind=Kind.STAGE_WITH_CHECKS,
)
