"""Gate, registry and report."""

from pydantic import Field

from posgap.config.base import StageConfig
from posgap.config.fields import InputPath, ModelPath, OptionalInputPath


class GateConfig(StageConfig):
    """Decides whether a model may enter the registry. Exit code 3 where it may not."""

    candidate: InputPath = Field(description="sweep of the model that asks to be admitted")
    base: InputPath = Field(description="sweep of the model it was made from")
    champion: OptionalInputPath = Field(None, description="sweep of the current champion; empty: the base")
    max_gap: float = Field(10.0, ge=0, le=100, description="highest gap in points that the gap's interval may reach")
    mean_tolerance: float = Field(1.0, ge=0, description="points of mean the candidate may lose to the champion")
    advantageous_tolerance: float = Field(
        3.0, ge=0, description="points it may lose to the base where the base answers best"
    )
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the examples")


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder `gate` wrote")
    sweep: InputPath = Field(description="sweep of the candidate")
    name: str = Field("posgap", min_length=1, description="registered model")


class ReportConfig(StageConfig):
    """Says how a pipeline run ended: to MLflow, and to a webhook if there is one."""

    pipeline_run: str = Field("", description="id of the KFP run; empty: that of POSGAP_PIPELINE_RUN")
    state: str = Field("", description="how KFP says the run ended; empty: as its stages did, by MLflow")
    message: str = Field("", description="what KFP says about it")
    registered_name: str = Field(PromoteConfig.default("name"), description="registered model in MLflow")
    webhook_url: str = Field(
        "", description="address to post the outcome to as JSON; empty: POSGAP_WEBHOOK_URL, if set"
    )
