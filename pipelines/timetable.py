"""When a schedule runs: as asked for, as KFP's scheduler is told, and as a schedule on the server says of itself."""

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from kfp_server_api import V2beta1RecurringRun as RecurringRun
from tabulate import tabulate

from posgap import __version__, files
from posgap.config import ScheduleCreateConfig
from posgap.pipelines import cron
from posgap.pipelines.compilation import Compiled

log = logging.getLogger(__name__)
_MARK = re.compile(r"(?P<cron>.+) in (?P<zone>\S+); scheduler in (?P<cluster>\S+); posgap \S+ (?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class Timetable:
    """A schedule's times in the zone they were asked for, and in the zone the cluster reads cron in."""

    asked: cron.Cron
    sent: cron.Cron

    def mark(self, compiled: Compiled, given: dict, service_account: str) -> str:
        """The description of a schedule: its times, for people, and a digest of all that it was made from."""
        times = f"{self.asked} in {self.asked.zone}; scheduler in {self.sent.zone}; posgap {__version__}"
        made_from = [times, str(self.sent), compiled.spec, compiled.platform, given, service_account]
        return f"{times} {files.digest_of(made_from)}"


def timetable(config: ScheduleCreateConfig) -> Timetable:
    """Reads `--cron`. Where the two zones put their clocks forward or back on different days, warns from when on
    the schedule would be off."""
    now, cluster = datetime.now(UTC), cron.zone(config.cluster_timezone)
    asked = cron.parse(config.cron, config.timezone)
    first = asked.next(now)
    if change := cron.next_change(asked.zone, cluster, first):
        log.warning(
            "%s: from %s on, the clocks of %s and %s differ by another hour, and runs would start that much earlier or "
            "later: run this again then, or set the cluster's cronScheduleTimezone, and --cluster-timezone, to %s",
            *(config.name, f"{change:%Y-%m-%d}", asked.zone, cluster, asked.zone),
        )
    return Timetable(asked, asked.moved(cluster, first))


def ours(one: RecurringRun) -> bool:
    """Whether posgap made it."""
    return _MARK.fullmatch(one.description or "") is not None


def enabled(one: RecurringRun) -> bool:
    """Whether it starts runs."""
    return one.status != "DISABLED"


def next_run(one: RecurringRun) -> str:
    """When it runs next, in the zone it was asked for in; `?` where it does not run by cron."""
    mark, schedule = _MARK.fullmatch(one.description or ""), one.trigger and one.trigger.cron_schedule
    if not schedule:
        return "?"
    told = cron.parse(schedule.cron, mark["cluster"] if mark else "UTC")
    zone = cron.zone(mark["zone"]) if mark else told.zone
    return f"{told.next(datetime.now(UTC)).astimezone(zone):%Y-%m-%d %H:%M %Z}"


def table(schedules: list[RecurringRun]) -> str:
    """Schedules in aligned columns, by name."""
    rows = [_row(one) for one in sorted(schedules, key=lambda one: one.display_name)]
    lines = tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _row(one: RecurringRun) -> dict[str, str]:
    mark, schedule = _MARK.fullmatch(one.description or ""), one.trigger and one.trigger.cron_schedule
    return {
        "name": one.display_name,
        "state": "enabled" if enabled(one) else "paused",
        "cron": mark["cron"] if mark else schedule.cron if schedule else "-",
        "time zone": mark["zone"] if mark else "-",
        "next run": next_run(one) if enabled(one) else "-",
        "id": one.recurring_run_id,
    }
