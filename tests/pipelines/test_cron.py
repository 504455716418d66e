"""Cron as KFP's parser reads it."""

from datetime import UTC, datetime

import pytest
from kfp_server import cron_parses

from posgap.foundation.errors import BadOption
from posgap.pipelines import cron


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
    assert cron.six_fields(text) == sent
    cron_parses(sent)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 3 * *", " 4 fields"),
        ("TZ=Europe/Berlin 0 0 3 * * 1", " 7 fields"),
        ("@daily", " 1 fields"),
        ("0 25 * * *", "bad hour"),
        ("0 3 32 * *", "bad day-of-month"),
        ("0 3 31 2 *", "bad day-of-month"),
        ("0 3 * * FUN", "bad day-of-week"),
        ("0 3 L * *", " 'L'"),
        ("0 3 * * 1#2", " '1#2'"),
    ],
)
def test_what_kfp_would_not_take_is_refused(text, complaint):
    with pytest.raises(BadOption, match=f"^--cron: .*{complaint}"):
        cron.six_fields(text)


def test_an_unknown_time_zone_is_refused():
    for name in ("Mars/Phobos", "../etc/passwd", ""):
        with pytest.raises(BadOption, match=f" {name!r} .*Europe/Berlin"):
            cron.zone(name)


def test_the_next_time_is_the_zone_s_own_by_the_clocks_of_that_day():
    winter, summer = datetime(2026, 11, 21, 12, tzinfo=UTC), datetime(2026, 7, 1, 12, tzinfo=UTC)
    for at, shown in ((winter, "2026-11-23T03:00:00+01:00"), (summer, "2026-07-06T03:00:00+02:00")):
        assert cron.next_time("0 0 3 * * 1", "Europe/Berlin", at).isoformat() == shown
