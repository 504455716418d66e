"""Promotion as a transaction: what a command left half done the next completes, and one at a time moves aliases."""

import json
import os
import random
import threading
import time
from pathlib import Path

import mlflow
import numpy as np
import pytest
from test_gate import write_sweep

from posgap.foundation.errors import PosgapError
from posgap.measurement.sweeps import Evidence
from posgap.tracking import champions, leases
from posgap.tracking.candidates import best
from posgap.tracking.champions import CHAMPION, PREVIOUS, UNDER_WAY, set_champion
from posgap.tracking.leases import Lease, Lost

SEED = int(os.environ.get("CHAOS_SEED", "0"))


@pytest.fixture
def client(monkeypatch):
    """Of a registry with a model `tiny` of four versions without an alias."""
    monkeypatch.setenv(leases.VARIABLE, "2")
    client = mlflow.MlflowClient()
    client.create_registered_model("tiny")
    for number in range(4):
        client.create_model_version("tiny", f"file:///{number}")
    return client


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


def test_a_change_that_broke_off_at_any_write_is_completed_by_the_next(client, monkeypatch):
    moved(("1", ""), ("2", "1"))
    write, writes = Lease.write, 0
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
            patch.setattr(Lease, "write", until_killed)
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
        assert not leases.holders(model())
    versions = [change["version"] for change in champions.changes(model())]
    assert versions == ["1", "2", "3", "2", "3", "2", "3", "2"]


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


def test_only_one_at_a_time_holds_the_lease(client, tmp_path, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, "20")
    (tmp_path / "number").write_text("0")
    counting = [threading.Thread(target=count, args=("tiny", 4, tmp_path / "number")) for _ in range(3)]
    for each in counting:
        each.start()
    for each in counting:
        each.join()
    assert (tmp_path / "number").read_text() == "12" and not leases.holders(model())


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
    with pytest.raises(Lost):  # well before another takes it for dead
        holder.set_alias(CHAMPION, "2")
    assert is_waited_for(0.7 * holder.seconds)
    assert not is_waited_for(0.2 * holder.seconds) and not leases.holders(model())
    with pytest.raises(Lost):
        holder.read()
    assert aliases() == ("1", "")


def test_who_slept_in_the_middle_of_a_write_takes_it_back(client):
    """The write of an alias that was sent after another had taken over is undone by whoever sent it."""
    moved(("1", ""))
    slept = []

    def promote(lease, _):
        if not slept:
            slept.append(True)
            lease._over.set()
            moved(("2", "1"))  # another takes over
            lease.aliases[CHAMPION] = "3"
            client.set_registered_model_alias("tiny", CHAMPION, "3")  # the request that is late
            lease.read()
        return aliases()

    assert champions.in_turn("tiny", promote) == ("2", "1")
    assert [change["version"] for change in champions.changes(model())] == ["1", "2"]


@pytest.mark.parametrize("seconds", ["0", "x", "1e9", "nan"])
def test_a_lease_of_no_length_is_refused(client, seconds, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, seconds)
    with pytest.raises(PosgapError, match=leases.VARIABLE):
        healed()


def test_a_flag_that_somebody_wrote_by_hand_expires(client, monkeypatch):
    monkeypatch.setattr(leases, "SECONDS", 1.0)
    for number, text in enumerate(["", "{", "[]", '{"by": 1, "seconds": "nan"}', '{"by": "x", "seconds": -5}']):
        client.set_registered_model_tag("tiny", f"{leases.FLAG}0{number}", text)
    healed()
    assert not leases.holders(model())


def test_the_best_candidate_does_not_depend_on_the_order(tmp_path):
    probabilities = {"best": [0.99] * 5, "uneven": [1.0, 1.0, 1.0, 1.0, 0.95], "worse": [0.9] * 5, "poor": [0.5] * 5}
    candidates = {
        name: Evidence(write_sweep(tmp_path / name, probability, seed=seed))
        for seed, (name, probability) in enumerate(probabilities.items())
    }
    # The uneven one has the higher mean, but not for certain, and a larger gap.
    means = {name: float(np.mean(each.correct)) for name, each in candidates.items()}
    assert max(means, key=means.__getitem__) == "uneven"
    draw = random.Random(SEED)
    for _ in range(6):
        names = draw.sample(list(candidates), len(candidates))
        assert best({name: candidates[name] for name in names}) == "best"
    assert best({name: candidates[name] for name in ("poor", "worse")}) == "worse"
    # Of the same sweep twice the model's digest decides.
    for order in ("ab", "ba"):
        twins = {name: Evidence(tmp_path / "best") for name in order}
        for name, twin in twins.items():
            twin.sweep = twin.sweep.model_copy(update={"model_digest": name})
        assert best(twins) == "a"


def test_candidates_that_were_not_asked_alike_are_not_compared(tmp_path):
    one, other = (Evidence(write_sweep(tmp_path / name, [0.9] * 5, examples=name)) for name in "ab")
    with pytest.raises(PosgapError, match="not asked alike: examples"):
        best({"1": one, "2": other})
