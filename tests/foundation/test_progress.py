"""What is shown of long work where nobody watches a terminal."""

import pytest

from posgap.foundation import progress


class Clock:
    """Stands still until it is told."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(caplog, clock: Clock, total: int, seconds_each: float, count: int, unit: int = 1) -> list[str]:
    """The log's lines where `count` of `total` are done, one after the other."""
    caplog.set_level("INFO", logger="posgap")
    with progress.meter(total, "work", unit) as done:
        for _ in range(count):
            clock.now += seconds_each
            done(unit)
    return [record.message for record in caplog.records]


def test_a_line_has_the_rate_and_the_time_left(caplog, clock):
    assert lines(caplog, clock, total=40, seconds_each=0.5, count=40) == [
        "work: 10 of 40 in 00:05, 2 a second, about 00:15 left",
        "work: 20 of 40 in 00:10, 2 a second, about 00:10 left",
        "work: 30 of 40 in 00:15, 2 a second, about 00:05 left",
        "work: 40 of 40 in 00:20, 2 a second",
    ]


def test_a_high_rate_is_a_whole_number(caplog, clock):
    assert lines(caplog, clock, total=4000, seconds_each=1 / 1510, count=4000)[-1].endswith(", 1,510 a second")


def test_what_takes_long_is_said_in_seconds_each_and_hours(caplog, clock):
    assert lines(caplog, clock, total=101, seconds_each=40, count=2) == [
        "work: 1 of 101 in 00:40",
        "work: 2 of 101 in 01:20, 40 s each, about 1:06:00 left",
    ]


def test_what_warms_up_tells_no_rate(caplog, clock):
    clock.now -= 60
    with progress.meter(100, "work") as done:
        caplog.set_level("INFO", logger="posgap")
        clock.now += 60
        for _ in range(6):
            done(1)
            clock.now += 2
    assert caplog.messages[-1] == "work: 5 of 100 in 01:08, 2 s each, about 03:10 left"


def test_of_an_unknown_number_nothing_is_left(caplog, clock):
    assert lines(caplog, clock, total=0, seconds_each=2, count=4) == ["work: 3 in 00:06, 2 s each"]


def test_a_unit_is_what_counts_as_one(caplog, clock):
    assert lines(caplog, clock, total=3000, seconds_each=5, count=3, unit=1000)[-1] == "work: 3 of 3 in 00:15, 5 s each"


def test_a_day_s_work_does_not_fill_the_log(caplog, clock):
    assert 1440 <= len(lines(caplog, clock, total=86400, seconds_each=1, count=86400)) < 1500


def test_work_that_is_done_at_once_says_so_once(caplog, clock):
    assert lines(caplog, clock, total=3, seconds_each=0, count=3) == ["work: 3 of 3 in 00:00"]
