"""Schedules of the pipeline on a KFP server, by name. They are KFP's recurring runs, which cannot be changed.

A digest of everything that a schedule was made from is kept in its description. So creating the same schedule again
does nothing, and creating a different one of the same name replaces it. A replaced or deleted schedule is paused first
and removed only when none of its runs is still running, since before KFP 2.16 removing a schedule removes its runs.
"""

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kfp_server_api import V2beta1RecurringRun as RecurringRun
from tabulate import tabulate

from posgap import __version__
from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.options.pipeline_schedule import ScheduleConfig
from posgap.pipelines import cron
from posgap.pipelines.compilation import CompiledYaml
from posgap.pipelines.connection import connect
from posgap.pipelines.submission import ENDED, to_run
from posgap.pipelines.transport import once

if TYPE_CHECKING:
    from posgap.pipelines.client import Client

log = logging.getLogger(__name__)
# A schedule's description: its times, for people, and a digest of everything that it is made from.
_MARK = re.compile(r"(?P<cron>.+) in (?P<zone>\S+); posgap \S+ [0-9a-f]{64}")
# The listed fields of a schedule, as JSON names them, with their headings.
_SHOWN = {"name": "name", "state": "state", "cron": "cron", "timezone": "time zone", "next": "next run", "id": "id"}


def create(config: ScheduleConfig) -> None:
    """Creates the schedule, replaces one that differs, or does nothing; prints which, and the time of the next run."""
    times = cron.six_fields(config.cron)
    cron.zone(config.timezone)  # an unknown one is refused before anything is sent
    compiled, values = to_run(config)
    mark = _description(config, times, compiled, values)
    client = connect(config)
    experiment = client.ensure_experiment(config)

    def existing() -> dict[str, RecurringRun]:
        schedules = client.find_recurring_runs(experiment, display_name=config.name)
        return {schedule.recurring_run_id: schedule for schedule in schedules}

    before = list(existing().values())
    foreign = [each.recurring_run_id for each in before if not _MARK.fullmatch(each.description or "")]
    if foreign:
        raise PosgapError(
            f"schedule {config.name}: {foreign[0]} has this name, but was not made by posgap: choose another name, or "
            "delete it in the KFP UI"
        )
    same = next((schedule for schedule in before if schedule.description == mark), None)
    # If the old schedule is paused, so is the new one.
    paused = bool(before) and not any(map(_is_enabled, before))
    with compiled.source() as source:
        current = same or once(
            lambda: client.create_recurring_run(
                experiment,
                config.name,
                description=mark,
                cron_expression=times,
                max_concurrency="1",  # the API writes 64-bit numbers as text
                no_catchup=True,
                enabled=not paused,
                params=values,
                pipeline_root=compiled.root or None,
                service_account=config.service_account or None,
                **source,
            ),
            existing,
        )
    done = "unchanged" if same else "replaced" if before else "created"
    then = f"next run {_next_run(current)}" if _is_enabled(current) else "paused"
    show(
        f"{config.name}: {done} ({current.recurring_run_id}); {then}",
        {"name": config.name, "outcome": done, "id": current.recurring_run_id, "next": then},
    )
    for old in before:
        if old is same:
            continue
        run = _retire(client, old)
        if run:
            log.warning(
                "%s: the old schedule is paused; run this again when %s has ended, to remove it", config.name, run
            )
        else:
            log.info("%s: removed the old schedule %s", config.name, old.recurring_run_id)


def _description(config: ScheduleConfig, times: str, compiled: CompiledYaml, arguments: dict) -> str:
    shown = f"{times} in {config.timezone}; posgap {__version__}"
    made_from = [shown, compiled.spec, compiled.platform, arguments, config.service_account]
    made_from += [compiled.reference] if compiled.reference else []
    return f"{shown} {files.digest_of(made_from)}"


def _pause(client: "Client", config: ScheduleConfig, schedule: RecurringRun) -> None:
    client.disable_recurring_run(schedule.recurring_run_id)
    _say(config, "paused", schedule)


def _resume(client: "Client", config: ScheduleConfig, schedule: RecurringRun) -> None:
    client.enable_recurring_run(schedule.recurring_run_id)
    _say(config, "resumed", schedule, f"; next run {_next_run(schedule)}")


def _delete(client: "Client", config: ScheduleConfig, schedule: RecurringRun) -> None:
    run = _retire(client, schedule)
    if run:
        hint = "delete it when that has ended"
        raise PosgapError(f"schedule {config.name}: paused, not deleted, since run {run} is still running; {hint}")
    _say(config, "deleted", schedule)


ACTIONS = {"pause": _pause, "resume": _resume, "delete": _delete}


def _say(config: ScheduleConfig, done: str, schedule: RecurringRun, more: str = "") -> None:
    said = {"name": config.name, "outcome": done, "id": schedule.recurring_run_id}
    show(f"{config.name}: {done} ({schedule.recurring_run_id}){more}", said)


def _retire(client: "Client", old: RecurringRun) -> str | None:
    """Pauses a schedule and removes it; if one of its runs is still running, returns that run's id instead."""
    client.disable_recurring_run(old.recurring_run_id)
    for run in client.find_runs(old.experiment_id, recurring_run_id=old.recurring_run_id):
        if run.state not in ENDED:
            return run.run_id
    # ORPHAN: from KFP 2.16 on, a run that has started in the meantime is not deleted.
    client.recurring_runs.recurring_run_service_delete_recurring_run(old.recurring_run_id, propagation_policy="ORPHAN")
    return None


def show_schedules(config: ScheduleConfig, schedules: list[RecurringRun]) -> None:
    rows = [_schedule_row(each) for each in sorted(schedules, key=lambda each: each.display_name)]
    lines = tabulate(rows, headers=_SHOWN, tablefmt="plain", disable_numparse=True).splitlines() if rows else []
    text = "\n".join(line.rstrip() for line in lines) or f"no schedules in experiment {config.experiment}"
    show(text, {"experiment": config.experiment, "schedules": rows})


def _schedule_row(schedule: RecurringRun) -> dict[str, str]:
    mark = _MARK.fullmatch(schedule.description or "")
    trigger = schedule.trigger and schedule.trigger.cron_schedule
    return {
        "name": schedule.display_name,
        "state": "enabled" if _is_enabled(schedule) else "paused",
        "cron": trigger.cron if trigger else "-",
        "timezone": mark["zone"] if mark else "-",
        "next": _next_run(schedule) if _is_enabled(schedule) else "-",
        "id": schedule.recurring_run_id,
    }


def _is_enabled(schedule: RecurringRun) -> bool:
    return schedule.status != "DISABLED"


def _next_run(schedule: RecurringRun) -> str:
    """The time of the schedule's next run; `?` if it does not run by cron."""
    mark = _MARK.fullmatch(schedule.description or "")
    trigger = schedule.trigger and schedule.trigger.cron_schedule
    if not trigger:
        return "?"
    zone = mark["zone"] if mark else "UTC"
    return f"{cron.next_time(cron.six_fields(trigger.cron), zone, datetime.now(UTC)):%Y-%m-%d %H:%M %Z}"
