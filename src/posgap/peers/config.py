"""Parameters of a push to the Hugging Face hub."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.config import Config
from posgap.foundation.fields import (
    POSITIONAL,
    HubName,
    InputPaths,
    ModelPath,
)


class HubPushConfig(Config):
    """Pushes a model to the Hugging Face hub, with the figures, the curve and the report of its sweeps on its card.

    One commit holds it all. The token is in HF_TOKEN.
    """

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(
        min_length=1, description="folders from `sweep`, of this model, the most important first"
    )
    model: ModelPath = Field(description="Hugging Face model folder, or models:/NAME@champion in MLflow")
    to: HubName = Field(description="name that it gets on the hub, like someone/model")
    private: bool = Field(False, description="make the model private, where it is new there")
    revision: str = Field("", description="branch to push to, made if need be; empty: main")
    report: bool = Field(True, description="push the report too, which shows prompts and responses")
    dry_run: bool = Field(False, description="only print what would be pushed, and the model card; ask nothing")
