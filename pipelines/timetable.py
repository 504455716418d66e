"""The times of a schedule: as the user gives them, as KFP's scheduler gets them, and as read back from the server."""

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from kfp_server_api import V2beta1RecurringRun as RecurringRun
from tabulate import tabulate

from posgap import __version__
from posgap.foundation import files
from posgap.pipelines import cron
from posgap.pipelines.compilation import Compiled
from posgap.pipelines.config import ScheduleCreateConfig

log = logging.getLogger(__name__)
_MARK = re.compile(r"(?P<cron>.+) in (?P<zone>\S+); scheduler in (?P<cluster>\S+); posgap \S+ (?P<digest>[0-9a-f]{64})")
# What is listed of a schedule, as JSON names it, with its headings.
_SHOWN = {"name": "name", "state": "state", "cron": "cron", "timezone": "time zone", "next": "next run", "id": "id"}


@dataclass(frozen=True)
class Timetable:
    """A schedule's times in the user's time zone (`own`), and in the one in which the cluster reads cron (`sent`)."""

    own: cron.Cron
    sent: cron.Cron

    def mark(self, compiled: Compiled, arguments: dict, service_account: str) -> str:
        """The description of a schedule: its times, for people, and a digest of everything that it is made from."""
        times = f"{self.own} in {self.own.zone}; scheduler in {self.sent.zone}; posgap {__version__}"
        made_from = [times, str(self.sent), compiled.spec, compiled.platform, arguments, service_account]
        made_from += [compiled.reference] if compiled.reference else []
        return f"{times} {files.digest_of(made_from)}"


def timetable(config: ScheduleCreateConfig) -> Timetable:
    """The times of `--cron`. If the two zones put their clocks forward or back on different days, warns of the day from
    which on the schedule would be off."""
    now, cluster = datetime.now(UTC), cron.zone(config.cluster_timezone)
    own = cron.parse(config.cron, config.timezone)
    first = own.next(now)
    if change := cron.next_change(own.zone, cluster, first):
        log.warning(
            "%s: from %s on, the clocks of %s and %s differ by another hour, and runs would start that much earlier or "
            "later: run this again then, or set the cluster's cronScheduleTimezone, and --cluster-timezone, to %s",
            *(config.name, f"{change:%Y-%m-%d}", own.zone, cluster, own.zone),
        )
    return Timetable(own, own.moved(cluster, first))


def ours(schedule: RecurringRun) -> bool:
    """Whether posgap made the schedule."""
    return _MARK.fullmatch(schedule.description or "") is not None


def enabled(schedule: RecurringRun) -> bool:
    """Whether the schedule starts runs."""
    return schedule.status != "DISABLED"


def next_run(schedule: RecurringRun) -> str:
    """The time of the schedule's next run, in its user's time zone; `?` if it does not run by cron."""
    mark, trigger = _MARK.fullmatch(schedule.description or ""), schedule.trigger and schedule.trigger.cron_schedule
    if not trigger:
        return "?"
    times = cron.parse(trigger.cron, mark["cluster"] if mark else "UTC")
    zone = cron.zone(mark["zone"]) if mark else times.zone
    return f"{times.next(datetime.now(UTC)).astimezone(zone):%Y-%m-%d %H:%M %Z}"


def listed(schedules: list[RecurringRun]) -> list[dict[str, str]]:
    """What there is to say of each schedule, sorted by name."""
    return [_row(schedule) for schedule in sorted(schedules, key=lambda schedule: schedule.display_name)]


def table(rows: list[dict[str, str]]) -> str:
    """A table of these rows in aligned columns."""
    lines = tabulate(rows, headers=_SHOWN, tablefmt="plain", disable_numparse=True).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _row(schedule: RecurringRun) -> dict[str, str]:
    mark, trigger = _MARK.fullmatch(schedule.description or ""), schedule.trigger and schedule.trigger.cron_schedule
    return {
        "name": schedule.display_name,
        "state": "enabled" if enabled(schedule) else "paused",
        "cron": mark["cron"] if mark else trigger.cron if trigger else "-",
        "timezone": mark["zone"] if mark else "-",
        "next": next_run(schedule) if enabled(schedule) else "-",
        "id": schedule.recurring_run_id,
    }
