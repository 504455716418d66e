"""Options of `pipeline schedule`."""

from typing import Annotated, Literal

from pydantic import Field

from posgap.foundation.fields import (
    NO_OPTION,
    POSITIONAL,
)
from posgap.options.pipelines import PipelineOnCluster
from posgap.options.verb import Verb


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
        "UTC", description="time zone of --cron on the cluster: cronScheduleTimezone in KFP's configuration"
    )
    action: Literal["", "pause", "resume", "delete"] = Field(
        "",
        description="pause: stop starting runs; a run that has started goes on; resume: start runs again; delete: "
        "remove the schedule, or pause it while one of its runs is still running",
    )


VERB = Verb(ScheduleConfig, 'weekly --cron "0 6 * * mon"')
