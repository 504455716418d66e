"""Cron as KFP's parser reads it, and the same times in another zone."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from cronsim import CronSim
from kfp_server import cron_parses

from posgap.foundation.errors import PosgapError
from posgap.pipelines import cron

WINTER, SUMMER = datetime(2026, 11, 21, 12, tzinfo=UTC), datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("0 3 * * 1", "0 0 3 * * 1"),  # five fields are minute first: seconds are added
        ("30 0 3 * * 1", "30 0 3 * * 1"),
        ("0 0 3 ? * mon-fri", "0 0 3 * * MON-FRI"),
        ("*/15 8-18/2 1,15 JAN *", "0 */15 8-18/2 1,15 JAN *"),
        ("0 3 * * 7", "0 0 3 * * 0"),  # KFP's Sunday is 0 alone
        ("0 3 * * 5-7", "0 0 3 * * 0,5,6"),
        ("0 3 * * 1/2", "0 0 3 * * 1,3,5"),
    ],
)
def test_fields_come_out_as_kfp_takes_them(text, sent):
    assert str(cron.parse(text, "UTC")) == sent
    cron_parses(sent)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 3 * *", "'0 3 * *' has 4 fields: write minute hour day month weekday"),
        ("TZ=Europe/Berlin 0 0 3 * * 1", "has 7 fields"),
        ("@daily", "has 1 fields"),
        ("0 25 * * *", "bad hour"),
        ("0 3 32 * *", "bad day-of-month"),
        ("0 3 31 2 *", "bad day-of-month"),
        ("0 3 * * FUN", "bad day-of-week"),
        ("0 3 L * *", "KFP cannot read 'L'"),
        ("0 3 * * 1#2", "KFP cannot read '1#2'"),
    ],
)
def test_what_kfp_would_not_take_is_refused(text, complaint):
    with pytest.raises(PosgapError, match="^--cron: .*") as refused:
        cron.parse(text, "UTC")
    assert complaint in str(refused.value)


def test_an_unknown_time_zone_is_refused():
    for name in ("Mars/Phobos", "../etc/passwd", ""):
        with pytest.raises(PosgapError, match="is unknown: write one like Europe/Berlin"):
            cron.parse("0 3 * * *", name)


@pytest.mark.parametrize(
    ("text", "zone", "at", "sent"),
    [
        ("0 3 * * 1", "UTC", WINTER, "0 0 3 * * 1"),
        ("0 3 * * 1", "Europe/Berlin", WINTER, "0 0 2 * * 1"),
        ("0 3 * * 1", "Europe/Berlin", SUMMER, "0 0 1 * * 1"),
        ("30 0 * * 1", "Europe/Berlin", WINTER, "0 30 23 * * 0"),  # the day before
        ("0 22 * * SAT", "America/New_York", WINTER, "0 0 3 * * 0"),  # the day after
        ("0 3 * * MON-FRI", "Asia/Kolkata", WINTER, "0 30 21 * * 0,1,2,3,4"),  # 5 h 30 min
        ("0 3 1 * *", "Europe/Berlin", WINTER, "0 0 2 1 * *"),
        ("0 */6 * * *", "Asia/Tokyo", WINTER, "0 0 3,9,15,21 * * *"),
        ("*/20 * * * *", "Asia/Tokyo", WINTER, "0 0,20,40 * * * *"),
    ],
)
def test_times_stay_the_same_in_another_zone(text, zone, at, sent):
    own = cron.parse(text, zone)
    moved = own.moved(cron.zone("UTC"), at)
    assert str(moved) == sent
    cron_parses(sent)
    # Clocks do not change within a month of either moment.
    here, there = (CronSim(str(c), at.astimezone(c.zone)) for c in (own, moved))
    month = [time for time in islice(here, 200) if time < at + timedelta(days=30)]
    assert month and month == list(islice(there, len(month)))
    assert own.next(at) == moved.next(at) == month[0]


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("0 0 1 * *", "Europe/Berlin"),  # the last day of the month before
        ("0 0 * 1 *", "Europe/Berlin"),
        ("0 * * * 1", "Europe/Berlin"),  # an hour of Sunday, the others of Monday
        ("15,45 3 * * *", "Asia/Kolkata"),  # different hours for different minutes
    ],
)
def test_what_one_expression_cannot_say_is_refused(text, zone):
    with pytest.raises(PosgapError, match="cannot be written in UTC, in which the cluster reads it"):
        cron.parse(text, zone).moved(cron.zone("UTC"), WINTER)


def test_no_zone_is_left_where_the_cluster_reads_the_same_one():
    own = cron.parse("0 0 1 * *", "Europe/Berlin")
    assert own.moved(cron.zone("Europe/Berlin"), WINTER) == own


def test_changes_of_the_clocks_are_seen_coming():
    berlin, tokyo, utc, paris = map(cron.zone, ("Europe/Berlin", "Asia/Tokyo", "UTC", "Europe/Paris"))
    assert cron.next_change(berlin, utc, WINTER).date() == datetime(2027, 3, 28).date()
    assert cron.next_change(berlin, utc, SUMMER).date() == datetime(2026, 10, 25).date()
    assert cron.next_change(tokyo, utc, WINTER) is None
    assert cron.next_change(berlin, paris, WINTER) is None
