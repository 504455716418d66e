"""Cron expressions as KFP reads them, and their translation between time zones.

KFP's API has no time zone for a schedule. Its scheduler reads every cron expression in one zone, set by
`cronScheduleTimezone` in its `pipeline-install-config` (UTC by default), and its parser (robfig/cron 1.2) does not
support `TZ=` or `CRON_TZ=`. It expects six fields, seconds first. It accepts five fields too, but reads them as seconds
to month: `0 3 * * 1` would run every hour of January, at three minutes past.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from posgap.foundation.errors import PosgapError

_FIELD = re.compile(r"(?:[A-Z]{3}(?![A-Z])|[0-9*/,-])+")


@dataclass(frozen=True)
class Cron:
    """A cron expression of six fields (second, minute, hour, day, month, weekday) and the zone it is read in."""

    fields: tuple[str, ...]
    zone: ZoneInfo

    def __str__(self) -> str:
        return " ".join(self.fields)

    def next(self, after: datetime) -> datetime:
        """The first time after the moment `after`, in this expression's zone."""
        return next(CronSim(str(self), after.astimezone(self.zone)))

    def moved(self, zone: ZoneInfo, at: datetime) -> "Cron":
        """An expression for the same times in another zone, by the zones' difference at the moment `at`.

        Raises `PosgapError` if no single expression describes them, for instance the first of the month at 0:30 seen
        from a zone where that is still the month before.
        """
        minutes = _distance(self.zone, zone, at)
        if not minutes:
            return Cron(self.fields, zone)
        second, _, _, day, month, weekday = self.fields
        sim = CronSim(str(self), at)
        moved = {divmod(60 * h + m + minutes, 1440) for h in sim.hours for m in sim.minutes}
        days, times = {day for day, _ in moved}, {time for _, time in moved}
        new_hours, new_minutes = {time // 60 for time in times}, {time % 60 for time in times}
        every_day = day == month == weekday == "*"
        if len(times) < len(new_hours) * len(new_minutes) or not (every_day or len(days) == 1):
            raise self._impossible(zone)
        if (shift := days.pop()) and not every_day:
            if not day == month == "*":
                raise self._impossible(zone)
            weekday = _listed({(d + shift) % 7 for d in sim.weekdays if isinstance(d, int)}, 7)
        return Cron((second, _listed(new_minutes, 60), _listed(new_hours, 24), day, month, weekday), zone)

    def _impossible(self, zone: ZoneInfo) -> PosgapError:
        return PosgapError(
            f"--cron: {str(self)!r} in {self.zone} cannot be written in {zone}, in which the cluster reads it: choose "
            "another time of day, or set the cluster's cronScheduleTimezone, and --cluster-timezone, to that zone"
        )


def parse(text: str, timezone: str) -> Cron:
    """Parses five fields, minute first, or six, second first; raises `PosgapError` for what KFP would not accept."""
    fields = text.upper().replace("?", "*").split()
    if len(fields) == 5:
        fields = ["0", *fields]
    if len(fields) != 6:
        raise PosgapError(
            f"--cron: {text!r} has {len(fields)} fields: write minute hour day month weekday, like '0 3 * * 1', or six "
            "with seconds first"
        )
    try:
        if bad := [field for field in fields if not _FIELD.fullmatch(field)]:
            raise CronSimError(f"KFP cannot read {bad[0]!r}")
        sim = CronSim(" ".join(fields), datetime.now(UTC))
    except CronSimError as error:
        raise PosgapError(f"--cron: {text!r}: {str(error).replace('Bad', 'bad')}") from None
    sunday = re.search(r"(?<![/0-9])7", fields[5])  # KFP knows Sunday only as 0
    if sunday or re.search(r"(?<!\*)/", fields[5]):
        days = {day % 7 for day in sim.weekdays if isinstance(day, int) and (sunday or day != 7)}
        fields[5] = _listed(days, 7)
    return Cron(tuple(fields), zone(timezone))


def zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PosgapError(f"time zone {name!r} is unknown: write one like Europe/Berlin or UTC") from None


def next_change(zone: ZoneInfo, other: ZoneInfo, after: datetime) -> datetime | None:
    """The day within the next year on which the difference of two zones changes, as clocks are put forward or back."""
    now = _distance(zone, other, after)
    days = (after + timedelta(days=number) for number in range(1, 367))
    return next((day for day in days if _distance(zone, other, day) != now), None)


def _distance(zone: ZoneInfo, other: ZoneInfo, at: datetime) -> int:
    """The minutes to add to a time in `zone` to get the time in `other`."""
    difference = at.astimezone(other).replace(tzinfo=None) - at.astimezone(zone).replace(tzinfo=None)
    return int(difference.total_seconds()) // 60


def _listed(numbers: set[int], all_of: int) -> str:
    return "*" if len(numbers) == all_of else ",".join(map(str, sorted(numbers)))
