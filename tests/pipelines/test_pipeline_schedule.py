"""`posgap pipeline schedule` against a local KFP server: one schedule for a name, and no run ever killed."""

import json
import re
from datetime import datetime

import pytest
from kfp_server import Server, served
from toy_pipeline import GIVEN, ROOT_OF_TOYS, fails, posgap

from posgap.pipelines import schedules

pytestmark = pytest.mark.usefixtures("no_kfp_settings")
WEEKLY = ("weekly", "--cron", "0 3 * * 1")


@pytest.fixture(autouse=True)
def a_day_in_november(monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 11, 21, 12, tzinfo=tz)

    monkeypatch.setattr(schedules, "datetime", Clock)


@pytest.fixture
def schedule(capsys, toy_file):
    def run(server, *words):
        spec = ("--file", toy_file, *GIVEN) if "--cron" in words else ()
        code, out, err = posgap(capsys, "schedule", *words, *spec, "--host", server.url)
        assert code == 0, err
        return out.strip(), err

    return run


def add_run(server, schedule_id: str, state: str) -> dict:
    run = {"experiment_id": server.schedules[schedule_id]["experiment_id"], "recurring_run_id": schedule_id}
    return server.new(server.runs, "run_id", run | {"state": state})


def test_a_schedule_is_one_run_at_a_time_and_none_to_catch_up(schedule):
    with served(Server()) as server:
        out, err = schedule(server, *WEEKLY, "--param", "steps=5", "--service-account", "robot")
    ((key, sent),) = server.schedules.items()
    assert out == f"weekly: created ({key}); next run 2026-11-23 03:00 UTC" and "removed" not in err
    assert sent["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * 1"}}
    assert (sent["max_concurrency"], sent["no_catchup"], sent["mode"]) == ("1", True, "ENABLE")
    assert sent["runtime_config"]["parameters"] == {"data": "s3://bucket/examples.jsonl.gz", "steps": 5}
    assert sent["runtime_config"]["pipeline_root"] == ROOT_OF_TOYS
    assert sent["service_account"] == "robot" and sent["display_name"] == "weekly"
    assert sent["description"].startswith("0 0 3 * * 1 in UTC; posgap ")


def test_the_same_again_changes_nothing(schedule):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        out, _ = schedule(server, *WEEKLY)
    (key,) = server.schedules
    assert out == f"weekly: unchanged ({key}); next run 2026-11-23 03:00 UTC"
    assert server.seen["POST", "/apis/v2beta1/recurringruns"] == 1


@pytest.mark.parametrize(
    "change",
    [
        ("--param", "steps=9"),
        ("--service-account", "other"),
        ("--cron", "0 4 * * 1"),
        ("--timezone", "Asia/Tokyo"),
    ],
)
def test_anything_else_replaces_it(schedule, change):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        (old,) = server.schedules
        out, err = schedule(server, *WEEKLY, *change)
    (new,) = server.schedules
    assert new != old and out.startswith(f"weekly: replaced ({new}); next run 2026-11-2")
    assert f"weekly: removed the old schedule {old}" in err and server.deleted == [("weekly", "ORPHAN")]


def test_a_run_under_way_is_never_killed(schedule, capsys):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        (old,) = server.schedules
        add_run(server, old, "SUCCEEDED")
        run = add_run(server, old, "RUNNING")
        add_run(server, old, "FAILED")
        out, err = schedule(server, *WEEKLY, "--param", "steps=9")
        (new,) = server.schedules.keys() - {old}
        assert out.startswith(f"weekly: replaced ({new})")
        assert f"run this again when {run['run_id']} has ended, to remove it" in err
        assert server.schedules[old]["status"] == "DISABLED" and server.schedules[new]["status"] == "ENABLED"
        assert run["state"] == "RUNNING" and not server.deleted

        add_run(server, new, "RUNNING")
        complaint = fails(capsys, "schedule", "weekly", "--action", "delete", "--host", server.url)
        assert complaint.startswith("schedule weekly: paused, not deleted, since run ") and not server.deleted
        schedule(server, "weekly", "--action", "resume")

        for one in server.runs.values():
            one["state"] = "SUCCEEDED"
        out, _ = schedule(server, *WEEKLY, "--param", "steps=9")
        assert out.startswith(f"weekly: unchanged ({new})") and server.schedules.keys() == {new}


def test_a_paused_schedule_is_replaced_by_a_paused_one(schedule):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        (old,) = server.schedules
        assert schedule(server, "weekly", "--action", "pause")[0] == f"weekly: paused ({old})"
        assert schedule(server, *WEEKLY)[0] == f"weekly: unchanged ({old}); paused"
        out, _ = schedule(server, *WEEKLY, "--param", "steps=9")
        ((new, sent),) = server.schedules.items()
        assert out == f"weekly: replaced ({new}); paused" and sent["mode"] == "DISABLE"
        out, _ = schedule(server, "weekly", "--action", "resume")
    assert out == f"weekly: resumed ({new}); next run 2026-11-23 03:00 UTC" and sent["status"] == "ENABLED"


def test_duplicates_are_removed(schedule):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        (first,) = server.schedules
        server.new(server.schedules, "recurring_run_id", dict(server.schedules[first]))
        out, _ = schedule(server, *WEEKLY)
    assert "unchanged" in out and len(server.schedules) == 1 and server.deleted == [("weekly", "ORPHAN")]


def test_a_lost_answer_makes_no_second_one(schedule):
    def lose(method, path, times):
        return (502, {}, "lost", True) if (method, path) == ("POST", "/apis/v2beta1/recurringruns") else None

    with served(Server(misbehave=lose)) as server:
        out, _ = schedule(server, *WEEKLY)
    (key,) = server.schedules
    assert out.startswith(f"weekly: created ({key})")


def test_somebody_else_s_schedule_is_left_alone(schedule, capsys, toy_file):
    with served(Server()) as server:
        schedule(server, *WEEKLY)
        ((key, theirs),) = server.schedules.items()
        theirs["description"] = "by hand"
        words = (*WEEKLY, "--file", toy_file, *GIVEN)
        complaint = fails(capsys, "schedule", *words, "--host", server.url)
        assert complaint.startswith(f"schedule weekly: {key} has this name, but was not made by posgap")
        # In another experiment the name is free.
        assert "created" in schedule(server, *WEEKLY, "--experiment", "other")[0]
    assert len(server.schedules) == 2 and theirs["status"] == "ENABLED"


def test_times_are_in_the_cluster_s_zone(schedule):
    with served(Server()) as server:
        out, _ = schedule(server, *WEEKLY, "--timezone", "Europe/Berlin")
        ((_, sent),) = server.schedules.items()
        assert sent["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * 1"}}
        assert out.endswith("next run 2026-11-23 03:00 CET")


def test_schedules_are_listed_by_name_however_many_pages_they_take(schedule):
    with served(Server()) as server:
        server.page_size = 2
        assert schedule(server)[0] == "no schedules in experiment posgap"
        tokyo = ("--timezone", "Asia/Tokyo")
        for name, *more in (("w", *tokyo), ("nightly",), ("b",)):
            schedule(server, name, "--cron", "30 5 * * *", *more)
        schedule(server, "b", "--action", "pause")
        server.schedules[list(server.schedules)[-1]] |= {"description": "by hand"}
        out, _ = schedule(server)
        told = json.loads(schedule(server, "--json")[0])["schedules"]
        alone = schedule(server, "nightly")[0].splitlines()
    w, nightly, b = server.schedules
    rows = out.splitlines()
    assert [re.split(r"\s{2,}", row) for row in rows] == [
        ["name", "state", "cron", "time zone", "next run", "id"],
        ["b", "paused", "0 30 5 * * *", "-", "-", b],
        ["nightly", "enabled", "0 30 5 * * *", "UTC", "2026-11-22 05:30 UTC", nightly],
        ["w", "enabled", "0 30 5 * * *", "Asia/Tokyo", "2026-11-22 05:30 JST", w],
    ]
    assert [re.split(r"\s{2,}", row) for row in alone] == [re.split(r"\s{2,}", rows[each]) for each in (0, 2)]
    assert [[*each.values()] for each in told] == [re.split(r"\s{2,}", row) for row in rows[1:]]
    assert {*map(tuple, told)} == {("name", "state", "cron", "timezone", "next", "id")}
    assert len({row.index("  0000") for row in rows[1:]}) == 1, "columns are aligned"


def test_delete_removes_it_and_what_is_not_there_is_said(schedule, capsys):
    with served(Server()) as server:
        for verb in ((), *(("--action", verb) for verb in ("pause", "resume", "delete"))):
            complaint = fails(capsys, "schedule", "weekly", *verb, "--host", server.url)
            assert complaint.startswith("schedule weekly: not found in experiment posgap; `posgap pipeline schedule`")
        schedule(server, *WEEKLY)
        (key,) = server.schedules
        assert schedule(server, "weekly", "--action", "delete")[0] == f"weekly: deleted ({key})"
    assert not server.schedules and server.deleted == [("weekly", "ORPHAN")]


def test_bad_cron_and_parameters_are_refused_before_anything_is_sent(capsys, toy_file):
    with served(Server()) as server:
        for more, complaint in (
            (("--cron", "0 3 * *", *GIVEN), "--cron: '0 3 * *' has 4 fields"),
            (("--cron", "0 3 * * 1", "--timezone", "X/Y", *GIVEN), "time zone 'X/Y' is unknown"),
            (("--cron", "0 3 * * 1"), "the pipeline needs data"),
            (("--cron", "0 3 * * 1", "--action", "pause"), "leave one out"),
        ):
            words = ("schedule", "weekly", "--host", server.url, "--file", toy_file, *more)
            assert complaint in fails(capsys, *words)
        for more, option in ((WEEKLY[1:], "--cron"), (("--action", "delete"), "--action")):
            complaint = fails(capsys, "schedule", "--host", server.url, *more)
            assert complaint == f"{option}: give the schedule's name, too"
    assert not server.seen
