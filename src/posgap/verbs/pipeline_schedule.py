"""pipeline schedule: makes, lists and changes schedules."""

from posgap.foundation.errors import PosgapError
from posgap.options.pipeline_schedule import ScheduleConfig
from posgap.pipelines.connection import connect
from posgap.pipelines.schedules import ACTIONS, create, show_schedules


def pipeline_schedule(config: ScheduleConfig) -> None:
    """Lists the experiment's schedules, or the one of this name; or creates, pauses, resumes or deletes it."""
    if not config.name and (config.cron or config.action):
        raise PosgapError(f"{'--cron' if config.cron else '--action'}: give the schedule's name, too")
    if config.cron and config.action:
        raise PosgapError("--cron makes or replaces a schedule, and --action changes one; leave one out")
    if config.cron:
        return create(config)
    client = connect(config)
    experiment = client.find_experiment(config)
    named = {"display_name": config.name} if config.name else {}
    found = client.find_recurring_runs(experiment, **named) if experiment else []
    if config.name and not found:
        hint = "`posgap pipeline schedule` lists the schedules"
        raise PosgapError(f"schedule {config.name}: not found in experiment {config.experiment}; {hint}")
    if not config.action:
        return show_schedules(config, found)
    for each in found:
        ACTIONS[config.action](client, config, each)
