"""Promotion as a transaction: what a command left half done the next completes, and one at a time moves aliases."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    PERMISSION_DENIED,
    RESOURCE_DOES_NOT_EXIST,
)
from mlflow_server import holders
from refusals import refuses

from posgap.foundation.errors import BadOption, Malformed, PosgapError
from posgap.foundation.retries import RetryPolicy
from posgap.tracking import champions, leases, server
from posgap.tracking.champions import CHAMPION, PREVIOUS, UNDER_WAY, set_champion
from posgap.tracking.leases import Lease, LeaseLost

pytestmark = pytest.mark.usefixtures("mlflow_store")


class Registry:
    """MLflow's registry of one model, in memory: as quick as `make mutants` needs it."""

    def __init__(self):
        self.tags: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.versions: list[str] = []

    def create_registered_model(self, name: str) -> None:
        assert name == "tiny"

    def create_model_version(self, name: str, source: str) -> None:
        assert name == "tiny"
        self.versions.append(str(len(self.versions) + 1))

    def get_registered_model(self, name: str) -> SimpleNamespace:
        assert name == "tiny"
        return SimpleNamespace(name=name, tags=dict(self.tags), aliases=dict(self.aliases))

    def get_model_version(self, name: str, version: str) -> SimpleNamespace:
        assert name == "tiny"
        if version not in self.versions:
            raise MlflowException(f"{name} has no version {version}", RESOURCE_DOES_NOT_EXIST)
        return SimpleNamespace(name=name, version=version)

    def delete_model_version(self, name: str, version: str) -> None:
        assert name == "tiny"
        self.versions.remove(version)
        self.aliases = {alias: other for alias, other in self.aliases.items() if other != version}

    def set_registered_model_tag(self, name: str, tag: str, value: str) -> None:
        assert name == "tiny"
        self.tags[tag] = value

    def delete_registered_model_tag(self, name: str, tag: str) -> None:
        assert name == "tiny"
        self.tags.pop(tag, None)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.get_model_version(name, version)
        self.aliases[alias] = version

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        assert name == "tiny"
        self.aliases.pop(alias, None)


def with_four_versions(client):
    client.create_registered_model("tiny")
    for number in range(4):
        client.create_model_version("tiny", f"file:///{number}")
    return client


@pytest.fixture
def registry(monkeypatch) -> Registry:
    """One in memory, with a model `tiny` of four versions without an alias."""
    registry = Registry()
    monkeypatch.setenv(leases.VARIABLE, "2")
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: registry)
    monkeypatch.setattr(server, "_client", lambda: registry)
    return with_four_versions(registry)


@pytest.fixture(params=["memory", "MLflow"])
def client(request, monkeypatch):
    """Of such a registry, in memory and MLflow's own, which must not lose a lease because a machine is slow."""
    if request.param == "memory":
        return request.getfixturevalue("registry")
    monkeypatch.setenv(leases.VARIABLE, "60")
    return with_four_versions(mlflow.MlflowClient())


def model():
    return mlflow.MlflowClient().get_registered_model("tiny")


def aliases() -> tuple[str, str]:
    return champions.alias_version(model(), CHAMPION), champions.alias_version(model(), PREVIOUS)


def moved(*steps: tuple[str, str]) -> None:
    """The champion became each of these versions, with that one as the previous."""
    for version, previous in steps:
        champions.in_turn("tiny", lambda lease, _: set_champion(lease, version, "promoted", previous))  # noqa: B023


def healed():
    return champions.in_turn("tiny", lambda lease, completed: completed)


class Killed(BaseException):
    """Stands for the end of the process: nothing is written after it."""


@pytest.mark.full
def test_a_change_that_broke_off_at_any_write_is_completed_by_the_next(client, monkeypatch):
    moved(("1", ""), ("2", "1"))
    write, writes = Lease.send_change, 0
    for after in range(6):
        target, former = ("3", "2") if after % 2 == 0 else ("2", "3")
        before = aliases()

        def until_killed(lease, call, after=after):
            nonlocal writes
            if writes == after:
                raise Killed
            writes += 1
            return write(lease, call)

        with monkeypatch.context() as patch:
            writes = 0
            patch.setattr(Lease, "send_change", until_killed)
            with pytest.raises(Killed) if after < 5 else pytest.MonkeyPatch.context():
                moved((target, former))
        assert aliases()[0] in (before[0], target)
        completed = healed()
        # Of what was not even written down nothing is known; what was recorded is complete.
        assert (completed is not None) == (1 <= after <= 3)
        expected = before if after == 0 else (target, former)
        assert aliases() == expected and UNDER_WAY not in model().tags
        assert champions.changes(model())[-1]["version"] == expected[0]
        if after == 0:
            moved((target, former))
        assert not holders(model())
    versions = [change["version"] for change in champions.changes(model())]
    assert versions == ["1", "2", "3", "2", "3", "2", "3", "2"]


@pytest.mark.full
def test_what_a_late_request_says_is_under_way_is_not_done_again(client):
    moved(("1", ""), ("2", "1"))
    *_, tag = sorted(tag for tag in model().tags if tag.startswith(champions.CHANGE))
    late = json.dumps({"tag": tag, **json.loads(model().tags[tag])})
    moved(("1", "2"))
    of_another = json.dumps(json.loads(late) | {"tag": f"{champions.CHANGE}{10**15}-1", "before": "3", "version": "4"})
    older = json.dumps(json.loads(late) | {"tag": f"{tag}-older"})
    for text in (late, of_another, older, "{", "[1]"):
        client.set_registered_model_tag("tiny", UNDER_WAY, text)
        assert healed() is None
        assert aliases() == ("1", "2") and UNDER_WAY not in model().tags


def test_a_version_that_is_gone_is_never_made_the_champion(client):
    """Neither by a change that was under way to it, nor as the previous one to go back to."""
    moved(("1", ""), ("2", "1"), ("3", "2"))
    client.delete_model_version("tiny", "2")
    client.set_registered_model_alias("tiny", PREVIOUS, "3")
    healed()
    assert aliases() == ("3", "1")
    change = champions._change(model(), "4", "3", "promoted")
    client.delete_model_version("tiny", "4")
    client.set_registered_model_tag("tiny", UNDER_WAY, change.model_dump_json())
    assert healed() is None
    assert aliases() == ("3", "1") and UNDER_WAY not in model().tags
    assert champions.changes(model())[-1]["version"] == "3"


@pytest.mark.full
def test_what_hands_have_done_is_mended_or_recorded(client):
    moved(("1", ""), ("2", "1"), ("3", "2"))
    client.set_registered_model_alias("tiny", PREVIOUS, "3")
    healed()
    assert aliases() == ("3", "2")
    client.set_registered_model_alias("tiny", CHAMPION, "4")
    for _ in range(2):
        healed()
    assert aliases() == ("4", "2")
    last = champions.changes(model())[-1]
    assert (last["before"], last["version"], last["why"]) == ("3", "4", champions.ELSEWHERE)
    client.delete_model_version("tiny", "4")
    assert aliases() == ("", "2")
    healed()
    assert aliases() == ("2", "3")
    # A name that has no champion because somebody wants it so is left alone.
    client.delete_registered_model_alias("tiny", CHAMPION)
    healed()
    assert aliases() == ("", "3")


def test_a_champion_that_is_also_previous_follows_the_last_other_version(client):
    moved(("1", ""))
    client.set_registered_model_alias("tiny", PREVIOUS, "1")
    healed()
    assert aliases() == ("1", "")
    moved(("2", "1"))
    for alias in (CHAMPION, PREVIOUS):
        client.set_registered_model_alias("tiny", alias, "3")
    healed()
    assert aliases() == ("3", "2")


def test_changes_are_in_order_whatever_the_clock_says(client, monkeypatch):
    moved(("1", ""))
    monkeypatch.setattr(time, "time", lambda: 1e9)
    moved(("2", "1"), ("3", "2"))
    assert [change["version"] for change in champions.changes(model())] == ["1", "2", "3"]


def count(name: str, number: int, path: Path) -> None:
    """Adds 1 to a number in a file, as only one at a time can."""

    def add(lease):
        read = int(path.read_text())
        time.sleep(0.01)
        path.write_text(str(read + 1))

    for _ in range(number):
        leases.in_turn(name, add)


@pytest.mark.full
def test_only_one_at_a_time_holds_the_lease(client, tmp_path, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, "20")
    (tmp_path / "number").write_text("0")
    counting = [threading.Thread(target=count, args=("tiny", 4, tmp_path / "number")) for _ in range(3)]
    for each in counting:
        each.start()
    for each in counting:
        each.join()
    assert (tmp_path / "number").read_text() == "12" and not holders(model())


def test_the_living_are_waited_for_for_long_and_the_dead_for_a_while(client, monkeypatch):
    """On a clock of its own, which no load on the machine makes run faster than the processes."""
    clock = [1000.0]
    monkeypatch.setattr(leases, "now", lambda: clock[0])
    monkeypatch.setattr(Lease, "_beat", lambda self: None)
    holder, waiting = Lease("tiny"), Lease("tiny")
    holder.acquire()

    def is_waited_for(seconds: float) -> bool:
        clock[0] += seconds
        return waiting._flags() == [holder._flag]

    assert is_waited_for(0.0)
    for _ in range(5):  # the holder gives a sign now and then
        clock[0] += 0.4 * holder.seconds
        holder._show(leases.ONCE, 1.0)
        assert is_waited_for(0.4 * holder.seconds)
    holder.set_alias(CHAMPION, "1")
    clock[0] += 0.2 * holder.seconds
    with pytest.raises(LeaseLost):  # well before another takes it for dead
        holder.set_alias(CHAMPION, "2")
    assert is_waited_for(0.7 * holder.seconds)
    assert not is_waited_for(0.2 * holder.seconds) and not holders(model())
    with pytest.raises(LeaseLost):
        holder.read_model()
    assert aliases() == ("1", "")


@pytest.mark.full
def test_who_slept_in_the_middle_of_a_write_takes_it_back(client, monkeypatch):
    """The write of an alias that was sent after another had taken over is undone by whoever sent it."""
    monkeypatch.setenv(leases.VARIABLE, "8")  # a busy machine loses one of 2 s, and then repeats the change
    moved(("1", ""))
    slept = []

    def promote(lease, _):
        if not slept:
            slept.append(True)
            lease._over.set()
            moved(("2", "1"))  # another takes over
            lease.aliases[CHAMPION] = "3"
            client.set_registered_model_alias("tiny", CHAMPION, "3")  # the request that is late
            lease.read_model()
        return aliases()

    assert champions.in_turn("tiny", promote) == ("2", "1")
    assert [change["version"] for change in champions.changes(model())] == ["1", "2"]


@pytest.mark.parametrize("seconds", ["0", "x", "1e9", "nan"])
def test_a_lease_of_no_length_is_refused(client, seconds, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, seconds)
    with refuses(BadOption, leases.VARIABLE):
        healed()


@pytest.mark.full
def test_a_flag_that_somebody_wrote_by_hand_expires(client, monkeypatch):
    monkeypatch.setattr(leases, "SECONDS", 1.0)
    for number, text in enumerate(["", "{", "[]", '{"by": 1, "seconds": "nan"}', '{"by": "x", "seconds": -5}']):
        client.set_registered_model_tag("tiny", f"{leases.FLAG}0{number}", text)
    healed()
    assert not holders(model())


def test_a_change_is_recorded_with_all_that_is_known_of_it(registry, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)
    moved(("1", ""))
    made = champions.in_turn("tiny", lambda lease, _: set_champion(lease, "2", "it is better", "1", "run-7"))
    first, second = sorted(tag for tag in registry.tags if tag.startswith(champions.CHANGE))
    assert made.tag == second and first.startswith(f"{champions.CHANGE}1700000000250-")
    assert second.startswith(f"{champions.CHANGE}1700000000251-")  # later than any other, though the clock stood still
    assert first.rpartition("-")[2] != second.rpartition("-")[2] and len(second.rpartition("-")[2]) == 8
    record = {"at": "2023-11-14 22:13:20", "version": "2", "before": "1", "previous": "1"}
    assert json.loads(registry.tags[second]) == record | {"why": "it is better", "run": "run-7"}
    assert champions.changes(model()) == [json.loads(registry.tags[tag]) for tag in (first, second)]


def test_moments_are_those_of_no_time_zone(monkeypatch):
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert champions.utc(86_399_999) == "1970-01-01 23:59:59"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_is_no_record_of_a_change_is_not_taken_for_one(registry):
    moved(("1", ""))
    for tag, value in {"5-a": "[1]", "x-b": "{}", "": "{}"}.items():
        registry.tags[champions.CHANGE + tag] = value
    registry.tags["other.6-a"] = "{}"
    assert [change["version"] for change in champions.changes(model())] == ["1"]
    registry.tags[f"{champions.CHANGE}7-a"] = "{"
    with refuses(Malformed, at=f"tiny: tag {champions.CHANGE}7-a"):
        champions.changes(model())


@pytest.mark.parametrize(
    ("steps", "rolled_back"),
    [
        ([], set()),
        ([("1", ""), ("2", "")], set()),
        ([("1", ""), ("2", ""), ("1", "rolled back: slow")], {"2"}),
        ([("1", ""), ("2", ""), ("1", "rolled back: slow"), ("2", "better now")], set()),  # it reigns
        ([("1", ""), ("2", ""), ("1", "rolled back: slow"), ("2", "better now"), ("3", "")], set()),
        ([("1", ""), ("2", ""), ("1", "rolled back: slow"), ("3", ""), ("1", "rolled back: slower")], {"2", "3"}),
        ([("1", ""), ("2", ""), ("1", "not rolled back: slow")], set()),
    ],
    ids=len,
)
def test_a_version_is_rolled_back_if_its_last_reign_ended_so(registry, steps, rolled_back):
    for version, why in steps:
        champions.in_turn("tiny", lambda lease, _: set_champion(lease, version, why))  # noqa: B023
    assert champions.rolled_back(model()).keys() == rolled_back


def test_a_deleted_champion_is_followed_by_the_previous_and_the_one_before(registry, caplog):
    moved(("1", ""), ("2", "1"), ("4", "2"), ("3", "4"))
    registry.delete_model_version("tiny", "2")
    registry.delete_model_version("tiny", "3")
    assert healed() is None and aliases() == ("4", "1")
    assert champions.changes(model())[-1]["why"] == "version 3 was deleted"
    assert "tiny: its champion, version 3, was deleted; version 4 follows" in caplog.messages
    # Where there is none to follow, nothing is done.
    registry.delete_model_version("tiny", "4")
    registry.delete_registered_model_alias("tiny", PREVIOUS)
    before = dict(registry.tags)
    assert healed() is None and aliases() == ("", "") and registry.tags == before


def test_whether_a_version_is_there_is_not_guessed(registry, monkeypatch):
    moved(("1", ""), ("2", "1"))
    registry.delete_model_version("tiny", "2")

    def answers(code: int) -> None:
        def refuse(name: str, version: str) -> None:
            raise MlflowException("no", code)

        monkeypatch.setattr(registry, "get_model_version", refuse)

    answers(PERMISSION_DENIED)
    with pytest.raises(server.RequestRefused):
        healed()
    assert aliases() == ("", "1")
    answers(INVALID_PARAMETER_VALUE)  # of what is no number
    assert not champions._is_there("tiny", "x")


def test_what_was_written_after_the_lease_was_lost_is_taken_back_by_the_record(registry):
    moved(("1", ""), ("2", "1"))

    def repaired(stale: dict[str, str], champion: str, previous: str) -> tuple[str, str]:
        registry.aliases = {CHAMPION: champion, PREVIOUS: previous}
        lease = Lease("tiny", stale=stale)
        lease.acquire()
        champions.repair(lease)
        lease.release()
        return aliases()

    assert repaired({CHAMPION: "3", PREVIOUS: "4"}, "3", "4") == ("2", "1")
    # What another has written since is not this process's: it is recorded, as what hands have done.
    assert repaired({CHAMPION: "3"}, "4", "1") == ("4", "1")
    assert repaired({"other": "3"}, "4", "1") == ("4", "1")
    assert champions.changes(model())[-1]["why"] == champions.ELSEWHERE


def test_an_alias_that_moves_while_a_change_is_made_is_moved_back(registry, monkeypatch):
    moved(("1", ""))
    late = [("champion", "3"), ("previous", "4")]  # requests of others, which arrive between two of ours
    set_alias = Lease.set_alias

    def interrupted(lease, alias, version):
        set_alias(lease, alias, version)
        if late:
            registry.set_registered_model_alias("tiny", *late.pop())

    monkeypatch.setattr(Lease, "set_alias", interrupted)
    moved(("2", "1"))
    assert not late and aliases() == ("2", "1") and len(champions.changes(model())) == 2


# The lease itself


@pytest.fixture
def clock(monkeypatch, registry) -> list[float]:
    """The time that leases see; nothing beats, and who waits or sleeps does it at once."""
    clock = [1000.0]
    monkeypatch.setattr(leases, "now", lambda: clock[0])
    monkeypatch.setattr(Lease, "_beat", lambda self: None)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(leases, "time", SimpleNamespace(sleep=sleep, time=lambda: 1_700_000_000.5))
    return clock


def fails(error: Exception):
    def call(client):
        raise error

    return call


UNREACHED = MlflowException("down", INTERNAL_ERROR)
REFUSED = MlflowException("no", PERMISSION_DENIED)


def test_flags_say_who_wrote_them_when_and_with_which_number(registry, clock):
    lease = Lease("tiny")
    lease.acquire()
    (flag,) = registry.tags
    assert flag.startswith(f"{leases.FLAG}00000001.1700000000500-") and len(flag.rpartition("-")[2]) == 8
    value = {"by": f"process {os.getpid()} on {socket.gethostname()}", "seconds": 2.0, "beat": 2}
    assert json.loads(registry.tags[flag]) == value
    assert holders(model()) == {flag: value["by"]}
    assert leases._number(flag) == 1 and leases._number(f"{leases.FLAG}choosing.17-ab") == 0
    # The next number is one more than the highest; a tag of posgap's that is no flag is left alone.
    registry.tags |= {f"{leases.FLAG}00000007.1-other": "{}", "posgap.else": "1"}
    another = Lease("tiny")
    another._raise(f"{leases.FLAG}00000005{another._own}")
    assert set(lease._flags()) == {f"{leases.FLAG}00000007.1-other", another._flag}
    assert lease._is_before(f"{leases.FLAG}00000000.0") is False and another._is_before(flag)
    assert not another._is_before(f"{leases.FLAG}00000007.1-other") and not another._is_before(
        f"{leases.FLAG}choosing.1"
    )
    lease.release()
    assert flag not in registry.tags and another._flag in registry.tags


@pytest.mark.parametrize(
    ("value", "holder"),
    [
        ('{"by": "x", "seconds": 7}', ("x", 7)),
        ('{"by": 3, "seconds": "7"}', ("3", 7)),
        ('{"by": "x", "seconds": 0.5}', ("x", leases.MIN_SECONDS)),
        ('{"by": "x", "seconds": 1e9}', ("x", leases.MAX_SECONDS)),
        ('{"by": "x"}', ("somebody", leases.SECONDS)),
        ('{"seconds": 7}', ("somebody", leases.SECONDS)),
        ("[]", ("somebody", leases.SECONDS)),
        ("{", ("somebody", leases.SECONDS)),
        ('{"by": "x", "seconds": [1]}', ("somebody", leases.SECONDS)),
    ],
)
def test_a_flag_expires_after_as_many_seconds_as_it_says_within_limits(value, holder):
    assert leases._holder(value) == holder


def test_the_seconds_of_a_lease_are_those_of_the_variable(registry, monkeypatch):
    monkeypatch.delenv(leases.VARIABLE)
    assert Lease("tiny").seconds == 120
    for text, seconds in {"": 120, "1": 1, "3600": 3600, "2.5": 2.5}.items():
        monkeypatch.setenv(leases.VARIABLE, text)
        assert Lease("tiny").seconds == seconds
    for text in ("0.9", "3601", "two"):
        monkeypatch.setenv(leases.VARIABLE, text)
        with pytest.raises(PosgapError) as refusal:
            Lease("tiny")
        assert all(each in str(refusal.value) for each in (leases.VARIABLE, repr(text), "1 to 3600"))


@pytest.mark.parametrize(("place", "seconds"), [("sqlite:///a.db", 0), ("http://server", 1)])
def test_a_request_that_a_server_left_unanswered_may_take_effect_for_half_the_lease(
    registry, clock, monkeypatch, place, seconds
):
    monkeypatch.setattr(leases, "address", lambda: place)
    lease = Lease("tiny")
    lease.acquire()
    lease.send_change(lambda client: None)
    assert lease.quiet_at == 0  # as all was answered
    for error, kind, quiet in ((REFUSED, server.RequestRefused, 0), (UNREACHED, server.NoAnswer, 1000 + seconds)):
        with pytest.raises(kind):
            lease._send_request(fails(error), leases.ONCE, 1.0)
        assert lease.quiet_at == quiet
    clock[0] += 0.25
    lease._send_request(fails_once := flaky(), RetryPolicy(tries=2, first_wait=0.0), 1.0)
    assert fails_once.calls == 2 and lease.quiet_at == 1000.25 + seconds  # of the first try nobody knows
    lease.await_inflight()
    assert clock[0] == 1000.25 + seconds


def flaky():
    """A call that is not answered the first time."""

    def call(client):
        call.calls += 1
        if call.calls == 1:
            raise UNREACHED

    call.calls = 0
    return call


def test_who_could_not_write_its_flag_for_half_its_time_does_nothing_more(registry, clock):
    lease = Lease("tiny")
    lease.acquire()
    clock[0] += 1.0
    lease.read_model()
    clock[0] += 1e-3
    for act in (
        lease.read_model,
        lambda: lease.send_change(lambda client: None),
        lambda: lease._raise("posgap.lease.2"),
    ):
        with pytest.raises(LeaseLost, match="tiny"):
            act()


def test_a_waiting_process_gives_up_after_its_time_and_names_who_it_waits_for(registry, clock, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(leases, "WAIT", 30.0)
    holder, waiting, beats = Lease("tiny"), Lease("tiny"), 0
    holder.acquire()

    def sleep(seconds: float) -> None:
        nonlocal beats
        assert 0.25 <= seconds <= 0.5
        clock[0] += 0.5
        beats += 1
        for lease in (holder, waiting):
            lease._show(leases.ONCE, 1.0)

    leases.time.sleep = sleep
    with pytest.raises(PosgapError) as tired:
        waiting.acquire()
    by = f"process {os.getpid()} on {socket.gethostname()}"
    assert str(tired.value) == f"tiny: {by} has held its lease for 30 s; run this again later"
    assert 60 <= beats <= 62 and caplog.messages.count(f"tiny: waiting for {by}") == 1
    # And where it could not renew its own flag for too long, it may have been taken for dead.
    clock[0] += 1.1
    with pytest.raises(LeaseLost) as lost:
        waiting._pause(clock[0] + 1)
    assert tired.value.may_pass and (lost.value.may_pass, lost.value.code) == (True, "no-server")


def test_a_lease_is_given_back_after_an_error_unless_a_request_may_still_take_effect(registry, clock, caplog):
    first, second, third = (Lease("tiny") for _ in range(3))
    first.acquire()
    first.abandon()
    assert not registry.tags and not caplog.messages
    second.acquire()
    second.quiet_at = clock[0] + 1
    second.abandon()
    assert list(registry.tags) == [second._flag]
    third._flag, third._raised = "x", ["x"]
    registry.delete_registered_model_tag = lambda *_: fails(REFUSED)(None)
    third.abandon()
    second.quiet_at = 0.0
    second.release()
    assert len(caplog.messages) == 3 and all(text.startswith("tiny: ") and "2 s" in text for text in caplog.messages)
    assert all("no" in text for text in caplog.messages[1:])


def test_work_whose_lease_was_lost_is_done_again_thrice_and_then_no_more(registry, clock, caplog):
    seen = []

    def loses(lease) -> str:
        seen.append((dict(lease.stale), lease.quiet_at))
        lease.aliases[f"{len(seen)}"] = "7"
        lease.quiet_at = clock[0] + 1
        registry.tags.clear()  # as if another had taken over, and was done
        if len(seen) < times:
            raise LeaseLost("gone")
        return "done"

    times = 4
    assert leases.in_turn("tiny", loses) == "done" and len(seen) == 4
    assert [stale for stale, _ in seen] == [{str(i): "7" for i in range(1, n)} for n in (1, 2, 3, 4)]
    # Each waits until no request of the one before can take effect.
    assert [quiet for _, quiet in seen] == [0, 1001, 1002, 1003] and caplog.messages.count("gone") == 3
    seen, times = [], 9
    with pytest.raises(LeaseLost):
        leases.in_turn("tiny", loses)
    assert len(seen) == 4


def test_an_alias_is_moved_or_removed_and_remembered(registry, clock):
    lease = Lease("tiny")
    lease.acquire()
    lease.set_alias(CHAMPION, "2")
    lease.set_alias(PREVIOUS, "1")
    assert aliases() == ("2", "1")
    lease.set_alias(PREVIOUS, "")
    assert registry.aliases == {CHAMPION: "2"} and lease.aliases == {CHAMPION: "2", PREVIOUS: ""}
    del registry.tags[lease._flag]
    with pytest.raises(LeaseLost, match="tiny"):
        lease.read_model()


def test_a_flag_is_renewed_while_its_process_may_be_sure_of_it(registry, monkeypatch):
    clock, waits = [1000.0], []
    monkeypatch.setattr(leases, "now", lambda: clock[0])
    lease = Lease("tiny")
    steps = iter([0.25, 0.9, 0.0, 1.1])  # seconds that pass until the next beat; MLflow is not reached in the third

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock[0] += next(steps)
        registry.set_registered_model_tag = (lambda *_: fails(UNREACHED)(None)) if len(waits) == 3 else write
        return False

    write = registry.set_registered_model_tag
    lease._over = SimpleNamespace(wait=wait)
    lease._flag = f"{leases.FLAG}00000001.1-a"
    lease._show(leases.ONCE, 1.0)
    lease._beat()  # ends where it slept for too long, and writes nothing then
    assert waits == [0.25] * 4 and lease._holds_until == 1001.15 + 1
    assert json.loads(registry.tags[lease._flag])["beat"] == 3


@pytest.mark.parametrize(
    ("seconds", "flag", "write", "beat"), [(2, 0.5, 1, 0.25), (100, 25, 25, 12.5), (3600, 900, 30, 450)]
)
def test_requests_wait_by_the_length_of_the_lease(registry, clock, monkeypatch, seconds, flag, write, beat):
    monkeypatch.setenv(leases.VARIABLE, str(seconds))
    ask, given = leases.call_mlflow, []
    monkeypatch.setattr(leases, "call_mlflow", lambda call, *limits: given.append(limits) or ask(call, *limits))
    lease = Lease("tiny")
    for act, expected in (
        (lambda: lease._raise(f"{leases.FLAG}1.1-a"), (leases.WRITING, flag)),
        (lambda: lease._remove_flag(f"{leases.FLAG}1.1-a"), (leases.WRITING, flag)),
        (lambda: lease.send_change(lambda client: None), (leases.WRITING, write)),
    ):
        act()
        assert given.pop() == expected
    monkeypatch.undo()
    monkeypatch.setattr(leases, "now", lambda: clock[0])
    beaten = []
    lease._show = lambda *limits: beaten.append(limits)
    lease._over = SimpleNamespace(wait=lambda _: bool(beaten))
    lease._beat()
    assert beaten == [(leases.ONCE, beat)]


def test_a_waiting_process_looks_again_by_the_length_of_the_lease(registry, clock, monkeypatch):
    monkeypatch.setattr(leases, "random", SimpleNamespace(uniform=lambda low, high: high))
    for seconds, pause in ((2, 0.5), (30, 0.5), (600, 10)):
        monkeypatch.setenv(leases.VARIABLE, str(seconds))
        before = clock[0]
        Lease("tiny")._pause(clock[0])
        assert clock[0] - before == pause


def test_nothing_renews_a_lease_that_was_given_back(registry):
    lease = Lease("tiny")
    lease.acquire()
    assert lease._beating.is_alive() and lease._beating.daemon
    lease.release()
    assert not lease._beating.is_alive() and not registry.tags
