"""Config of tracking: the parameters of the registry and the report."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.config import Config, FreshConfig, StageConfig
from posgap.foundation.fields import (
    NO_OPTION,
    POSITIONAL,
    InputPath,
    ModelPath,
    OptionalInputPath,
    RegisteredName,
    WorkPath,
)


class RegisteredConfig(Config):
    name: Annotated[RegisteredName, POSITIONAL] = Field(description="name of the registered model in MLflow")


class RollbackConfig(RegisteredConfig):
    """Makes the previous champion the champion again; `posgap view models:/NAME` then says so, and why."""

    reason: str = Field(pattern=r"^[^\r\n]{1,300}$", description="why, in one line")


class ApproveConfig(RegisteredConfig):
    """Makes the challenger of a registered model the champion: a version that was promoted with --approval."""

    version: Annotated[int, POSITIONAL] = Field(ge=1, description="number of the version that has the alias challenger")


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder from `gate`")
    sweep: InputPath = Field(description="sweep of the candidate")
    examples: OptionalInputPath = Field(
        None,
        description="examples that were swept, from which every response is scored again and some are asked again; "
        "empty: those that the sweep names",
    )
    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")
    approval: bool = Field(
        False,
        description="let it wait, as alias challenger, until `posgap approve` makes it the champion, even if no policy "
        "asks for that",
    )
    gate_again: WorkPath = Field(
        None,
        description="folder for a new verdict, by the same policy, where the champion has changed since `gate`; empty: "
        "the model is refused then",
    )
    despite_rollback: str = Field(
        "",
        pattern=r"^[^\r\n]{0,300}$",
        description="why this model may be the champion although it was rolled back before, in one line; empty: it may "
        "not",
    )
    recipe: Annotated[str, NO_OPTION] = Field(
        "", description="digest of how the model was made, from `preflight`; empty: is not recorded"
    )


class ReportConfig(FreshConfig):
    """Reports how a pipeline run ended: in MLflow, and to a webhook if there is one.

    The run is that of the variable POSGAP_PIPELINE_RUN, and the webhook is at POSGAP_WEBHOOK_URL.
    """

    state: str = Field(
        "", description="final state of the run according to KFP; empty: derived from its stages in MLflow"
    )
    message: str = Field("", description="KFP's message about the final state")
    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")
