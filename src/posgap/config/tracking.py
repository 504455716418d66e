"""Parameters of the gate, the registry and the report, and of sending what tracking could not send."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from posgap.choices import GATE_RULES
from posgap.config.base import Config, StageConfig
from posgap.config.fields import (
    POSITIONAL,
    SECRET,
    InputPath,
    InputPaths,
    ModelPath,
    OnThisMachine,
    OptionalInputOrRegistered,
    OptionalInputPath,
    OptionalRegisteredName,
    OutputPath,
    RegisteredName,
    RunId,
)
from posgap.config.measurement import ExpectedConfig
from posgap.config.policy import PUBLIC_KEY, Demands


class _Judged(StageConfig):
    candidate: InputPath = Field(description="sweep of the candidate, the model to be admitted")
    base: InputPath = Field(description="sweep of the base, the model that the candidate was made from")
    champion: OptionalInputPath = Field(
        None, description="sweep of the current champion, to compare with; empty: the base"
    )
    policy: OptionalInputOrRegistered = Field(
        None,
        description="file of the policy, or registry:NAME; it then alone decides; empty: the options below",
    )
    name: OptionalRegisteredName = Field(
        "", description="registered model that the candidate is for, whose policy decides, if it has one; empty: none"
    )
    signer: str = Field(
        "",
        pattern=PUBLIC_KEY,
        description="public key of the private one in POSGAP_SIGNING_KEY that signs the verdict; empty: whichever",
    )


class GateConfig(*GATE_RULES.bases(), Demands, _Judged):  # type: ignore[misc]  # registered choices' parameters
    """Decides whether a model may enter the registry. Exit code 3: it may not; 7: there is not enough evidence."""


class GateReplayConfig(Config):
    """Judges again from what the gate kept beside its verdict, and says where the two differ, if they do."""

    folder: Annotated[InputPath, POSITIONAL] = Field(description="folder `gate` wrote, or a copy of it")


class PolicyDefaultConfig(Config):
    """Prints the policy of a gate without options as YAML, to begin a policy file with."""


class PolicyShowConfig(Config):
    """Prints the policy of a registered model as YAML."""

    name: Annotated[RegisteredName, POSITIONAL] = Field(description="name of the registered model in MLflow")


class PolicySetConfig(PolicyShowConfig):
    """Gives a registered model a policy: `promote` admits to it only what this policy does."""

    file: Annotated[InputPath, POSITIONAL] = Field(description="file of the policy, in YAML")


class PolicyKeygenConfig(Config):
    """Makes a pair of keys: the private one signs verdicts, and a policy can ask for the public one's signature.

    Put the file's content into POSGAP_SIGNING_KEY where `posgap gate` runs, and the printed line into the policy.
    """

    out: Annotated[OutputPath, OnThisMachine] = Field(description="file to write the private key to")


class PlanGateConfig(*GATE_RULES.bases(), ExpectedConfig):  # type: ignore[misc]  # registered choices' parameters
    """How many examples the gate needs so that a flat model which lost nothing is admitted."""

    power: float = Field(0.8, gt=0.05, lt=1, description="how often such a model is to be admitted")
    examples: int = Field(0, ge=0, description="say what so many examples can show at best; 0: nothing of that")


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder from `gate`")
    sweep: InputPath = Field(description="sweep of the candidate")
    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")


class ReportConfig(StageConfig):
    """Reports how a pipeline run ended: in MLflow, and to a webhook if there is one."""

    pipeline_run: RunId = Field("", description="id of the KFP run; empty: that in POSGAP_PIPELINE_RUN")
    state: str = Field(
        "", description="final state of the run according to KFP; empty: derived from its stages in MLflow"
    )
    message: str = Field("", description="KFP's message about the final state")
    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")
    webhook_url: Annotated[str, SECRET] = Field(
        "", description="address to post the outcome to as JSON; empty: POSGAP_WEBHOOK_URL, if set"
    )


class SyncConfig(Config):
    """Sends to MLflow what stages could not send, when no server answered them or they were killed."""

    folders: Annotated[InputPaths, POSITIONAL] = Field(
        [Path()], description="outputs of stages, or folders that hold outputs; empty: all below this folder"
    )
