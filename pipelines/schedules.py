"""Schedules of the pipeline on a KFP server, by name. They are KFP's recurring runs, which cannot be changed.

A digest of everything that a schedule was made from is kept in its description. So creating the same schedule again
does nothing, and creating a different one of the same name replaces it. A replaced or deleted schedule is paused first
and removed only when none of its runs is still running, since before KFP 2.16 removing a schedule removes its runs.
"""

import logging
from typing import TYPE_CHECKING

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show as show_result
from posgap.pipelines.config import NamedScheduleConfig, ScheduleCreateConfig, ScheduleListConfig
from posgap.pipelines.connection import connected
from posgap.pipelines.submission import ENDED, to_run
from posgap.pipelines.timetable import RecurringRun, enabled, listed, next_run, ours, table, timetable
from posgap.pipelines.transport import once

if TYPE_CHECKING:
    from posgap.pipelines.client import Client

log = logging.getLogger(__name__)


def create(config: ScheduleCreateConfig) -> None:
    """Creates the schedule, replaces one that differs, or does nothing; prints which, and the time of the next run."""
    times = timetable(config)
    compiled, values = to_run(config)
    mark = times.mark(compiled, values, config.service_account)
    client = connected(config)
    experiment = client.ensure_experiment(config)

    def existing() -> dict[str, RecurringRun]:
        schedules = client.find_recurring_runs(experiment, display_name=config.name)
        return {schedule.recurring_run_id: schedule for schedule in schedules}

    before = list(existing().values())
    if foreign := [schedule.recurring_run_id for schedule in before if not ours(schedule)]:
        raise PosgapError(
            f"schedule {config.name}: {foreign[0]} has this name, but was not made by posgap: choose another name, or "
            "delete it in the KFP UI"
        )
    same = next((schedule for schedule in before if schedule.description == mark), None)
    # If the old schedule is paused, so is the new one.
    paused = bool(before) and not any(map(enabled, before))
    with compiled.source() as source:
        current = same or once(
            lambda: client.create_recurring_run(
                experiment,
                config.name,
                description=mark,
                cron_expression=str(times.sent),
                max_concurrency="1",  # the API writes 64-bit numbers as text
                no_catchup=True,
                enabled=not paused,
                params=values,
                service_account=config.service_account or None,
                **source,
            ),
            existing,
            config.retries,
        )
    done = "unchanged" if same else "replaced" if before else "created"
    then = f"next run {next_run(current)}" if enabled(current) else "paused"
    show_result(
        f"{config.name}: {done} ({current.recurring_run_id}); {then}",
        {"name": config.name, "outcome": done, "id": current.recurring_run_id, "next": then},
    )
    for old in before:
        if old is same:
            continue
        if run := _retire(client, old):
            log.warning(
                "%s: the old schedule is paused; run this again when %s has ended, to remove it", config.name, run
            )
        else:
            log.info("%s: removed the old schedule %s", config.name, old.recurring_run_id)


def show(config: ScheduleListConfig) -> None:
    """Prints the experiment's schedules."""
    client = connected(config)
    experiment = client.find_experiment(config)
    schedules = client.find_recurring_runs(experiment) if experiment else []
    rows = listed(schedules)
    text = table(rows) if rows else f"no schedules in experiment {config.experiment}"
    show_result(text, {"experiment": config.experiment, "schedules": rows})


def pause(config: NamedScheduleConfig) -> None:
    """Stops the schedule from starting runs; a run that has started goes on."""
    client = connected(config)
    for schedule in _named(client, config):
        client.disable_recurring_run(schedule.recurring_run_id)
        _say(config, "paused", schedule)


def resume(config: NamedScheduleConfig) -> None:
    """Lets the schedule start runs again."""
    client = connected(config)
    for schedule in _named(client, config):
        client.enable_recurring_run(schedule.recurring_run_id)
        _say(config, "resumed", schedule, f"; next run {next_run(schedule)}")


def delete(config: NamedScheduleConfig) -> None:
    """Removes the schedule; if one of its runs is still running, only pauses it and raises `PosgapError`."""
    client = connected(config)
    for schedule in _named(client, config):
        if run := _retire(client, schedule):
            hint = "delete it when that has ended"
            raise PosgapError(f"schedule {config.name}: paused, not deleted, since run {run} is still running; {hint}")
        _say(config, "deleted", schedule)


def _say(config: NamedScheduleConfig, done: str, schedule: RecurringRun, more: str = "") -> None:
    said = {"name": config.name, "outcome": done, "id": schedule.recurring_run_id}
    show_result(f"{config.name}: {done} ({schedule.recurring_run_id}){more}", said)


def _named(client: "Client", config: NamedScheduleConfig) -> list[RecurringRun]:
    experiment = client.find_experiment(config)
    schedules = client.find_recurring_runs(experiment, display_name=config.name) if experiment else []
    if not schedules:
        hint = "`posgap pipeline schedule list` lists the schedules"
        raise PosgapError(f"schedule {config.name}: not found in experiment {config.experiment}; {hint}")
    return schedules


def _retire(client: "Client", old: RecurringRun) -> str | None:
    """Pauses a schedule and removes it; if one of its runs is still running, returns that run's id instead."""
    client.disable_recurring_run(old.recurring_run_id)
    for run in client.find_runs(old.experiment_id, recurring_run_id=old.recurring_run_id):
        if run.state not in ENDED:
            return run.run_id
    # ORPHAN: from KFP 2.16 on, a run that has started in the meantime is not deleted.
    client.recurring_runs.recurring_run_service_delete_recurring_run(old.recurring_run_id, propagation_policy="ORPHAN")
    return None
