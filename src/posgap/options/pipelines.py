"""Options that several `pipeline` verbs share."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from posgap.foundation.fields import (
    Arguments,
    OnThisMachine,
    OptionalInputPath,
)
from posgap.options.base import Config


class _OneOfOurs(Config):
    pipeline: Literal["mitigation", "watch"] = Field(
        "mitigation", description="mitigation: close the gap and promote; watch: sweep the champion on fresh data"
    )


class PipelineArguments(_OneOfOurs):
    param: Arguments = Field(
        {}, description="NAME=VALUE: a parameter of the pipeline, lists and objects as JSON; can be repeated"
    )
    smoke: bool = Field(False, description="use the tiny model's parameters, except those given by --param")


class CompiledPipeline(PipelineArguments):
    file: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="file of the compiled pipeline; empty: this version's `pipeline`"
    )


class KfpConfig(Config):
    host: str = Field(
        "", description="address of KFP, like http://localhost:8080; empty: $KFP_HOST or $KF_PIPELINES_ENDPOINT"
    )
    namespace: str = Field("", description="your namespace, if KFP is multi-user; empty: single-user")


class ServerConfig(KfpConfig):
    experiment: str = Field("posgap", min_length=1, description="KFP experiment; created if it does not exist")


# Kubernetes' rule for names, since KFP can keep its pipelines there.
UploadedName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?)?$")]


class PipelineOnCluster(ServerConfig, CompiledPipeline):
    service_account: str = Field(
        "posgap-pipeline",
        description="Kubernetes service account of the steps, which infra/kubernetes makes; empty: KFP's default",
    )
    version: UploadedName = Field(
        "",
        description="version that `posgap pipeline compile --host` made, or latest; empty: the compiled pipeline is "
        "sent with the run, and the UI shows it on the run's page alone",
    )
