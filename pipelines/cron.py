"""Cron expressions as KFP reads them.

KFP's API has no time zone for a schedule. Its scheduler reads every cron expression in one zone, set by
`cronScheduleTimezone` in its `pipeline-install-config` (UTC by default), and its parser (robfig/cron 1.2) does not
support `TZ=` or `CRON_TZ=`. It expects six fields, seconds first. It accepts five fields too, but reads them as seconds
to month: `0 3 * * 1` would run every hour of January, at three minutes past.
"""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from posgap.foundation.errors import BadOption

_FIELD = re.compile(r"(?:[A-Z]{3}(?![A-Z])|[0-9*/,-])+")


def six_fields(text: str) -> str:
    """The expression in six fields (second, minute, hour, day, month, weekday), of five with the minute first, or of
    six; raises `PosgapError` for what KFP would not accept."""
    fields = text.upper().replace("?", "*").split()
    if len(fields) == 5:
        fields = ["0", *fields]
    if len(fields) != 6:
        raise BadOption(
            f"--cron: {text!r} has {len(fields)} fields: write minute hour day month weekday, like '0 3 * * 1', or six "
            "with seconds first"
        )
    try:
        bad = [field for field in fields if not _FIELD.fullmatch(field)]
        if bad:
            raise CronSimError(f"KFP cannot read {bad[0]!r}")
        sim = CronSim(" ".join(fields), datetime.now(UTC))
    except CronSimError as error:
        raise BadOption(f"--cron: {text!r}: {str(error).replace('Bad', 'bad')}") from None
    sunday = re.search(r"(?<![/0-9])7", fields[5])  # KFP knows Sunday only as 0
    if sunday or re.search(r"(?<!\*)/", fields[5]):
        days = {day % 7 for day in sim.weekdays if isinstance(day, int) and (sunday or day != 7)}
        fields[5] = "*" if len(days) == 7 else ",".join(map(str, sorted(days)))
    return " ".join(fields)


def next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """The first time of an expression, read in this zone, after the moment `after`."""
    return next(CronSim(cron, after.astimezone(zone(timezone))))


def zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadOption(f"time zone {name!r} is unknown: write one like Europe/Berlin or UTC") from None
