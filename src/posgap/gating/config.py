"""Config of gating: the parameters of the gate, policies, and a check without a base."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from posgap.foundation.config import Config, StageConfig
from posgap.foundation.fields import (
    NO_OPTION,
    POSITIONAL,
    RARE,
    InputPath,
    InputPaths,
    ModelName,
    OptionalInputPath,
    OptionalRegisteredName,
    OptionalReport,
)
from posgap.gating.demands import PUBLIC_KEY, GateThresholds, MinimumEvidence
from posgap.gating.rules import CHECK_RULES, GATE_RULES, SIMULATED_RULES
from posgap.generation.backends import BACKENDS, BackendConfig
from posgap.measurement.config import SWEPT_MODEL, ExpectedConfig, SweepScope


class GateConfig(*GATE_RULES.bases(), GateThresholds, StageConfig):  # type: ignore[misc]  # registered choices' parameters
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
        description="examples that were swept, from which every response is scored again, and on which the registry's "
        "champion is swept; empty: those that the candidate's sweep names",
    )
    policy: OptionalInputPath = Field(
        None,
        description="file of the policy, which then alone decides; empty: that of --name, else the options below",
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
        1, ge=1, description="candidates that were made beside each other, of which any may pass: they share the error"
    )


class CheckConfig(
    *CHECK_RULES.bases(),  # type: ignore[misc]  # registered choices' parameters
    MinimumEvidence,
    SweepScope,
    *BACKENDS.bases(),  # type: ignore[misc]
    BackendConfig,
):
    """Sweeps a model or an endpoint and judges it, without a base to compare with: one command for any CI.

    Exit code 3: it breaks a rule; 7: there is not enough evidence.
    """

    named_by = ("model", "task", "examples")

    examples: OptionalInputPath = Field(  # type: ignore[assignment]  # the other stages do not make their own
        None, description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`; empty: makes some"
    )
    model: ModelName = Field(description=SWEPT_MODEL)
    policy: OptionalInputPath = Field(
        None,
        description="file of the policy, of which the rules that need no base decide; empty: the options below",
    )
    n_examples: int = Field(300, ge=1, description="examples to make, where no file has any")


class PolicyConfig(Config):
    """Prints the policy of a gate without options as YAML, to begin a file with, or that of a registered model.

    With a file it gives the model that policy: `promote` admits to it only what the policy does.
    """

    name: Annotated[OptionalRegisteredName, POSITIONAL] = Field(
        "", description="name of the registered model in MLflow"
    )
    file: Annotated[OptionalInputPath, POSITIONAL] = Field(
        None, description="file of the policy, in YAML, that the model gets"
    )
    keygen: OptionalReport = Field(
        None,
        description="file to write a new private key to, which signs verdicts: its content belongs into "
        "POSGAP_SIGNING_KEY where `posgap gate` runs, and the printed line into the policy",
    )

    @model_validator(mode="after")
    def _a_key_or_a_policy(self) -> Self:
        if self.keygen and self.name:
            raise ValueError("`keygen` makes a key for any policy; leave the name out")
        if self.file and not self.name:
            raise ValueError("name the registered model that gets this policy")
        return self


class VerifyConfig(Config):
    """Compares outputs, and what they were made from, with their manifests, by sha256, and judges again where a
    folder is of `gate`. Exit code 1: something differs."""

    folders: Annotated[InputPaths, POSITIONAL] = Field(min_length=1, description="folders that stages wrote")


class PlanGateConfig(*SIMULATED_RULES.bases(), ExpectedConfig):  # type: ignore[misc]  # registered choices' parameters
    """Says how many examples the gate needs to admit a model that has no gap and lost nothing to its base."""

    policy: OptionalInputPath = Field(
        None, description="file of the policy, which then alone decides; empty: the options below"
    )
    power: float = Field(0.8, gt=0.05, lt=1, description="how often such a model is to be admitted")
