"""Schedules of the pipeline on a KFP server, by name: KFP's recurring runs, which cannot be changed once made.

What a schedule was made from is kept as a digest in its description, so that making it again does nothing, and
making another of its name replaces it. A replaced or deleted schedule is paused first, and removed only when no
run of it is under way: before KFP 2.16 a schedule takes its runs with it.
"""

import logging

from posgap.config import NamedScheduleConfig, ScheduleCreateConfig, ScheduleListConfig
from posgap.errors import PosgapError
from posgap.pipelines.client import Client, ensure_experiment, find_experiment
from posgap.pipelines.submission import ENDED, to_run
from posgap.pipelines.timetable import RecurringRun, enabled, next_run, ours, table, timetable
from posgap.pipelines.transport import once

log = logging.getLogger(__name__)


def create(config: ScheduleCreateConfig) -> None:
    """Makes the schedule, or replaces one that differs, or does nothing; says which, and when the next run is."""
    compiled, given = to_run(config)
    times = timetable(config)
    mark = times.mark(compiled, given, config.service_account)
    client = Client(config)
    experiment = ensure_experiment(client, config)

    def there() -> dict[str, RecurringRun]:
        found = client.find_recurring_runs(experiment, display_name=config.name)
        return {one.recurring_run_id: one for one in found}

    before = list(there().values())
    if foreign := [one.recurring_run_id for one in before if not ours(one)]:
        raise PosgapError(
            f"schedule {config.name}: {foreign[0]} has this name, and posgap did not make it: choose another, or "
            "delete it in the KFP UI"
        )
    same = next((one for one in before if one.description == mark), None)
    # Who paused the old one did not ask for the new one to run.
    paused = bool(before) and not any(map(enabled, before))
    with compiled.package() as package:
        current = same or once(
            lambda: client.create_recurring_run(
                experiment,
                config.name,
                description=mark,
                cron_expression=str(times.sent),
                max_concurrency="1",  # the API writes 64-bit numbers as text
                no_catchup=True,
                enabled=not paused,
                params=given,
                pipeline_package_path=package,
                service_account=config.service_account or None,
            ),
            there,
            config.retries,
        )
    done = "unchanged" if same else "replaced" if before else "created"
    then = f"next run {next_run(current)}" if enabled(current) else "paused"
    print(f"{config.name}: {done} ({current.recurring_run_id}); {then}", flush=True)
    for old in before:
        if old is same:
            continue
        if run := _retire(client, old):
            log.warning("%s: the old one is paused; run this again to remove it when %s has ended", config.name, run)
        else:
            log.info("%s: removed %s", config.name, old.recurring_run_id)


def show(config: ScheduleListConfig) -> None:
    """Prints the experiment's schedules."""
    client = Client(config)
    experiment = find_experiment(client, config)
    found = client.find_recurring_runs(experiment) if experiment else []
    print(table(found) if found else f"no schedules in experiment {config.experiment}")


def pause(config: NamedScheduleConfig) -> None:
    """No further runs; one under way goes on."""
    client = Client(config)
    for one in _named(client, config):
        client.disable_recurring_run(one.recurring_run_id)
        print(f"{config.name}: paused ({one.recurring_run_id})")


def resume(config: NamedScheduleConfig) -> None:
    """Runs again, from the next time on."""
    client = Client(config)
    for one in _named(client, config):
        client.enable_recurring_run(one.recurring_run_id)
        print(f"{config.name}: resumed ({one.recurring_run_id}); next run {next_run(one)}")


def delete(config: NamedScheduleConfig) -> None:
    """Removes it; where a run of it is under way, pauses it and raises `PosgapError`."""
    client = Client(config)
    for one in _named(client, config):
        if run := _retire(client, one):
            hint = "delete it when that has ended"
            raise PosgapError(f"schedule {config.name}: paused, not deleted, since run {run} is under way; {hint}")
        print(f"{config.name}: deleted ({one.recurring_run_id})")


def _named(client: Client, config: NamedScheduleConfig) -> list[RecurringRun]:
    experiment = find_experiment(client, config)
    found = client.find_recurring_runs(experiment, display_name=config.name) if experiment else []
    if not found:
        hint = "`posgap pipeline schedule list` shows what there is"
        raise PosgapError(f"schedule {config.name}: there is none in experiment {config.experiment}; {hint}")
    return found


def _retire(client: Client, old: RecurringRun) -> str | None:
    """Pauses a schedule and removes it, unless a run of it is under way: then that run's id."""
    client.disable_recurring_run(old.recurring_run_id)
    for run in client.find_runs(old.experiment_id, recurring_run_id=old.recurring_run_id):
        if run.state not in ENDED:
            return run.run_id
    # ORPHAN: from KFP 2.16 on, a run that has started since is left alone.
    client.recurring_runs.recurring_run_service_delete_recurring_run(old.recurring_run_id, propagation_policy="ORPHAN")
    return None
