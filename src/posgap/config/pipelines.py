"""The verbs around the pipeline, and the demo."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from posgap.config.base import Config
from posgap.config.fields import (
    POSITIONAL,
    Arguments,
    Local,
    OnThisMachine,
    OptionalInputPath,
    OutputPath,
    Role,
    location_if_any,
)


class PipelineCompileConfig(Config):
    """Compiles the mitigation pipeline to YAML, to be uploaded in the KFP UI."""

    out: Annotated[Local | None, Role.OUTPUT, BeforeValidator(location_if_any), OnThisMachine] = Field(
        None, description="file to write; empty: standard output"
    )


class PipelineArguments(Config):
    param: Arguments = Field(
        {}, description="NAME=VALUE, as often as needed: a parameter of the pipeline; lists and objects as JSON"
    )
    smoke: bool = Field(False, description="parameters for the tiny model, wherever --param says nothing else")


class PipelineRunConfig(PipelineArguments):
    """Runs the mitigation pipeline on this machine, without a cluster."""

    out: Annotated[OutputPath, OnThisMachine] = Field(
        Path("runs/pipeline"), description="folder of the run; what is complete in it is reused"
    )


class CompiledPipeline(PipelineArguments):
    file: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="compiled pipeline; empty: the one of this version"
    )


class ServerConfig(Config):
    host: str = Field(
        "", description="address of KFP, like http://localhost:8080; empty: $KFP_HOST, $KF_PIPELINES_ENDPOINT"
    )
    namespace: str = Field("", description="namespace of a multi-user installation; empty: KFP has only one")
    experiment: str = Field("posgap", min_length=1, description="KFP experiment; made where there is none")
    request_timeout: float = Field(30.0, gt=0, description="seconds to wait for an answer")
    retries: int = Field(5, ge=0, description="times a request is tried again before giving up")


class PipelineOnCluster(ServerConfig, CompiledPipeline):
    no_cache: bool = Field(False, description="run every step again, also where KFP has kept its result")
    service_account: str = Field("", description="Kubernetes service account of the steps; empty: KFP's own choice")


class PipelineSubmitConfig(PipelineOnCluster):
    """Runs the mitigation pipeline on a KFP server. The token is read from KFP_TOKEN, never from the command line."""

    name: str = Field("", description="name of the run; empty: the pipeline's name and the time")
    wait: bool = Field(
        False, description="wait for the end; exit code 4 where the run failed, 5 where it was cancelled"
    )
    timeout: float = Field(
        86400.0, gt=0, description="with --wait: seconds to wait; then exit code 6, and the run goes on"
    )
    interval: float = Field(10.0, gt=0, description="with --wait: seconds between looks")


ScheduleName = Annotated[str, POSITIONAL]


class ScheduleCreateConfig(PipelineOnCluster):
    """Runs the pipeline again and again: one run at a time, and none to make up for what was missed.

    Given again, it does nothing; given with anything changed, it replaces the schedule.
    """

    name: ScheduleName = Field(min_length=1, description="name of the schedule within the experiment")
    cron: str = Field(description="when: minute hour day month weekday, or the same with seconds before them")
    timezone: str = Field("UTC", description="time zone of --cron, like Europe/Berlin")
    cluster_timezone: str = Field(
        "UTC", description="time zone in which the cluster reads cron: cronScheduleTimezone of KFP's configuration"
    )


class ScheduleListConfig(ServerConfig):
    """Lists the experiment's schedules: state, when, and the next run."""


class NamedScheduleConfig(ServerConfig):
    name: ScheduleName = Field(min_length=1, description="name of the schedule")


class SchedulePauseConfig(NamedScheduleConfig):
    """Stops a schedule from starting runs; a run under way goes on."""


class ScheduleResumeConfig(NamedScheduleConfig):
    """Lets a paused schedule start runs again."""


class ScheduleDeleteConfig(NamedScheduleConfig):
    """Removes a schedule; where a run of it is under way, pauses it and says so."""


class PipelineLintConfig(CompiledPipeline):
    """What a run would ask of the cluster, step by step. Exit code 1 where something looks wrong."""

    format: Literal["table", "json"] = Field("table", description="how it is printed")


class DemoConfig(Config):
    """Trains a tiny model that gets lost in the middle, closes its gap and registers it."""

    out: Annotated[OutputPath, OnThisMachine] = Field(Path("runs/demo"), description="folder of the run")
    seed: int = Field(0, ge=0, description="seed of the tiny model and of every stage")
    data: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="lost-in-the-middle key-value file; empty: made by the demo"
    )
    smoke: bool = Field(False, description="a minute's run that tries every step, on too little data for a verdict")
