"""Config of pipelines: the parameters of the pipeline's verbs."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from posgap.foundation.config import Config
from posgap.foundation.fields import (
    NO_OPTION,
    POSITIONAL,
    Arguments,
    Local,
    OnThisMachine,
    OptionalInputPath,
    OutputPath,
    Role,
    SettingsText,
    location_if_any,
)
from posgap.preflight.config import PlacedConfig
from posgap.workflows.config import WatchConfig


class _OneOfOurs(Config):
    pipeline: Literal["mitigation", "watch"] = Field(
        "mitigation", description="mitigation: close the gap and promote; watch: sweep the champion on fresh data"
    )


class PipelineArguments(_OneOfOurs):
    param: Arguments = Field(
        {}, description="NAME=VALUE: a parameter of the pipeline, lists and objects as JSON; can be repeated"
    )
    smoke: bool = Field(False, description="use the tiny model's parameters, except those given by --param")


class PipelineRunConfig(PipelineArguments):
    """Runs a pipeline on this machine, without a cluster."""

    out: Annotated[OutputPath, OnThisMachine] = Field(
        Path("runs/pipeline"), description="folder of the run; complete steps in it are reused"
    )


class CompiledPipeline(PipelineArguments):
    file: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="file of the compiled pipeline; empty: this version's `pipeline`"
    )


class KfpConfig(Config):
    host: str = Field(
        "", description="address of KFP, like http://localhost:8080; empty: $KFP_HOST or $KF_PIPELINES_ENDPOINT"
    )
    namespace: str = Field("", description="your namespace, if KFP is a multi-user installation; empty: it is not")


class ServerConfig(KfpConfig):
    experiment: str = Field("posgap", min_length=1, description="KFP experiment; created if it does not exist")


# What Kubernetes takes for a name, since there KFP can keep its pipelines.
UploadedName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?)?$")]


class PipelineCompileConfig(KfpConfig, _OneOfOurs):
    """Compiles a pipeline to YAML, for upload in the KFP UI, or uploads it to a KFP server as a version.

    With a file it says what a run would ask of the cluster, and always what looks wrong in that.
    What is there already is not uploaded again.
    """

    out: Annotated[Local | None, Role.OUTPUT, BeforeValidator(location_if_any), OnThisMachine] = Field(
        None, description="file to write; empty: standard output, unless it is uploaded"
    )
    force: bool = Field(False, description="replace another file of this name")
    kfp: Literal["2.15", "2.16", "2.17"] = Field(
        "2.17", description="version of the KFP server; what an older one does not know is left out"
    )
    host: str = Field("", description="address of KFP, like http://localhost:8080, to upload to; empty: nowhere")
    version: UploadedName = Field(
        "", description="with --host: name of the version; empty: posgap's version and a digest"
    )


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


class PipelineSubmitConfig(PipelineOnCluster):
    """Runs a pipeline on a KFP server. The token is read from KFP_TOKEN, never from the command line."""

    name: str = Field("", description="name of the run; empty: the pipeline's name and the time")
    no_cache: bool = Field(False, description="run every step again, even if KFP has its result in the cache")
    wait: bool = Field(False, description="wait for the end; exit code 4 if the run failed, 5 if it was cancelled")
    timeout: float = Field(
        86400.0, gt=0, description="with --wait: seconds to wait at most; after that exit code 6, while the run goes on"
    )


class ScheduleConfig(PipelineOnCluster):
    """Runs the pipeline on a cron schedule, without overlapping runs and without catching up on missed ones; without
    --cron, lists the experiment's schedules with their states, times and next runs, or pauses, resumes or deletes one.

    If the same schedule exists already, nothing is changed; if a different one of that name exists, it is replaced.
    """

    name: Annotated[str, POSITIONAL] = Field("", description="name of the schedule within the experiment")
    smoke: Annotated[bool, NO_OPTION] = Field(False, description="never: the tiny model is run once")
    cron: str = Field(
        "",
        description="times of the runs: minute hour day month weekday, or six fields with seconds first; makes the "
        "schedule, or replaces it",
    )
    timezone: str = Field(
        "UTC", description="time zone in which the cluster reads --cron: cronScheduleTimezone in KFP's configuration"
    )
    action: Literal["", "pause", "resume", "delete"] = Field(
        "",
        description="pause: it starts no more runs, and one that has started goes on; resume: it starts runs again; "
        "delete: removes it, or only pauses it and says so, if one of its runs is still running",
    )


class WatchFormConfig(PlacedConfig):
    """The form of the pipeline that watches the champion."""

    data_eval: str = Field(
        description="examples to sweep the champion on; if it is the beginning of the names of several versions, the "
        "newest is taken"
    )
    mitigate: SettingsText = Field(
        WatchConfig.default("mitigate"), description=str(WatchConfig.model_fields["mitigate"].description)
    )
    namespace: str = Field(
        WatchConfig.default("namespace"), description=str(WatchConfig.model_fields["namespace"].description)
    )
