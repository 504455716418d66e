"""Candidates of one pipeline run promoted side by side, by processes of their own, against MLflow servers that fail.

test_promotion.py, which is quick, breaks a change of champion off at each of its writes, and lets several want
the lease.

`CHAOS_SEED` chooses the faults. With `CHAOS_FUZZ_SECONDS` there are more rounds, of more processes. `POSGAP_RACES` has
the numbers of the rounds instead, of two processes each.
"""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import mlflow
import postgres
import pytest
from fault_proxy import FAULTS, FINE, Fault, FaultProxy, faulty
from mlflow_server import holders, serving
from warm import SERVER
from warm_forks import command
from written_sweeps import copy_of, write_sweep

from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.tracking import champions, leases, registry
from posgap.verbs.gate import judge_and_write

pytestmark = [pytest.mark.full, pytest.mark.nightly]
SEED = int(os.environ.get("CHAOS_SEED", "0"))
LONG = "CHAOS_FUZZ_SECONDS" in os.environ
RACES = os.environ.get("POSGAP_RACES", "").split()
ROUNDS = [int(number) for number in RACES] or range(3 if LONG else 1)
MOST = 2 if RACES else 8 if LONG else 3  # processes
LEASE = 16.0  # seconds: one of 8 was lost again and again on two processors with a load of 8
TRIES = 5  # of one promotion
EVERY = 10  # request or so is spoilt
# Delayed for longer than is waited for an answer, a quarter of a lease, and for less than half of it.
SPOILT = [
    *(FAULTS[name] for name in ("drop before", "drop after", "500", "429", "truncate", "delay")),
    Fault(delay=3 / 8 * LEASE),
]
LOGIN = {"PGUSER": "mlflow", "PGPASSWORD": "secret"}


@dataclass
class Place:
    """A server, the proxy in front of it, and candidates: each a folder with model, sweep and gate."""

    url: str
    proxy: FaultProxy
    former: Path
    candidates: list[Path]

    def start(self, folder: Path, name: str, run: str, out: Path, url: str = "", *more: str) -> BaseProcess:
        words = ["promote", "--name", name, "--out", str(out), *more]
        words += ["--model", str(folder / f"model-{folder.name}")]
        for option in ("sweep", "gate"):
            words += [f"--{option}", str(folder / option)]
        return self.begin(words, out, url, POSGAP_PIPELINE_RUN=run)

    def begin(self, words: list[str], out: Path, url: str = "", **more: str) -> BaseProcess:
        """A command as a process, which shows what it does in a file beside `out`."""
        environment = os.environ | {"MLFLOW_TRACKING_URI": url or self.proxy.url} | more
        environment |= {leases.VARIABLE: str(LEASE), "POSGAP_CACHE": str(out.parent / "cache"), "OMP_NUM_THREADS": "1"}
        started = SERVER.Process(target=command, args=(words, out.with_suffix(".log"), environment))
        started.start()
        return started

    def promote(self, folder: Path, name: str, run: str, out: Path, url: str = "", *more: str) -> bool:
        """Promotes, again and again if need be, as who runs a pipeline does; returns whether a try ended well. Each
        other one ends in one line."""
        for number in range(1, TRIES + 1):
            started = self.start(folder, name, run, out, url, *more)
            started.join()
            if started.exitcode == 0:
                return True
            shown = out.with_suffix(".log").read_text()
            assert started.exitcode == 2 and shown.count("posgap: error: ") == number, shown[-3000:]
        return False


STORES = ["sqlite", *([pytest.param("postgresql", marks=postgres.needs_postgres)] if LONG or RACES else [])]


@pytest.fixture(scope="module", params=STORES)
def place(request, tmp_path_factory, model_folder, empty_store) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("races")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        store: Path | str = empty_store
        if request.param == "postgresql":
            port = stack.enter_context(postgres.database(LOGIN))
            store = f"postgresql://mlflow:secret@127.0.0.1:{port}/mlflow"
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/gates.db")
        former, *candidates = [prepared(folder, number, model_folder) for number in range(MOST + 1)]
        url, _ = stack.enter_context(serving(folder, str(folder / "store"), store))
        yield Place(url, stack.enter_context(faulty(url)), former, candidates)


def prepared(folder: Path, number: int, model_folder: Path) -> Path:
    """The folder of a candidate, gated against the former champion, which is number 0. The last one is the best."""
    here = folder / str(number)
    here.mkdir()
    model = copy_of(model_folder, here / f"model-{number}")
    probability = {0: 0.9, MOST: 0.995}.get(number, 0.94 + 0.003 * number)
    swept = write_sweep(here / "sweep", [probability] * 5, model=model, seed=number)
    lax = {"max_gap": 30, "advantageous_tolerance": 30, "mean_tolerance": 30, "allow": ["base", "trial"]}
    champion = {"champion": folder / "0" / "sweep"} if number else {}
    judge_and_write(GateConfig(out=here / "gate", candidate=swept, base=folder / "0" / "sweep", **champion, **lax))
    return here


@contextmanager
def watched(url: str, name: str) -> Iterator[list[str]]:
    """The champions that a user of the server sees within the block, "" where there is none."""
    sights, over = [], threading.Event()

    def watch() -> None:
        client = mlflow.MlflowClient(url, url)
        while not over.wait(0.1):
            sight = champions.alias_version(client.get_registered_model(name), champions.CHAMPION)
            if sights[-1:] != [sight]:
                sights.append(sight)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sights
    finally:
        over.set()
        thread.join()


def assert_whole(place: Place, name: str, sights: list[str]) -> dict[str, str]:
    """There is a champion as at every moment before, no version twice, and one history, which has every change but one
    that is under way; returns the digests of the versions."""
    client = mlflow.MlflowClient(place.url, place.url)
    model = client.get_registered_model(name)
    versions = {str(version.version): version for version in client.search_model_versions(f"name='{name}'")}
    digests = {number: version.tags[registry.DIGEST] for number, version in versions.items()}
    assert len(set(digests.values())) == len(digests)
    champion, changed = champions.alias_version(model, champions.CHAMPION), champions.changes(model)
    assert "" not in sights and sights[-1] == champion and champion in digests
    assert [change["before"] for change in changed] == ["", *(change["version"] for change in changed[:-1])]
    assert len({change["version"] for change in changed}) == len(changed)
    assert changed[-1]["version"] == champion or champions.UNDER_WAY in model.tags
    return digests


def assert_one_truth(place: Place, name: str, outs: list[Path], sights: list[str]) -> None:
    """The registered model has one champion, the best; what was promoted says so, and nothing is left behind."""
    digests = assert_whole(place, name, sights)
    assert len(digests) == 1 + len(outs)
    model = mlflow.MlflowClient(place.url, place.url).get_registered_model(name)
    best = read_sweep(place.candidates[-1] / "sweep").model_digest
    champion, previous = (champions.alias_version(model, alias) for alias in (champions.CHAMPION, champions.PREVIOUS))
    assert digests[champion] == best
    assert digests[previous] == read_sweep(place.former / "sweep").model_digest
    changed = champions.changes(model)
    assert champions.UNDER_WAY not in model.tags and not holders(model)
    for out in outs:
        promotion = json.loads((out / "promotion.json").read_text())
        number, crowned = promotion["version"], promotion["champion"]
        assert digests[number] == promotion["tags"][registry.DIGEST]
        assert crowned in {change["version"] for change in changed}
        assert promotion["alias"] == ("champion" if crowned == number else "")


def test_whatever_fails_the_best_candidate_of_a_run_ends_as_the_one_champion(place, tmp_path, record_property):
    promotions = 0
    for number in ROUNDS:
        (folder := tmp_path / str(number)).mkdir()
        promotions += race(place, f"{SEED} {number}", f"tiny-{SEED}-{number}", folder)
    record_property("promotions", promotions)


def race(place: Place, seed: str, name: str, folder: Path) -> int:
    """Promotes some candidates side by side through a proxy that spoils requests; returns how many.

    On a machine that is slow enough each of them may give up. That leaves all whole, and each goes on once the server
    is well.
    """
    draw = random.Random(seed)
    number = draw.randint(2, MOST)
    assert place.promote(place.former, name, "before", folder / "former", place.url)
    candidates = [*draw.sample(place.candidates[:-1], number - 1), place.candidates[-1]]
    outs = [folder / f"out-{at}" for at in range(number)]
    place.proxy.fault = lambda *_: draw.choice(SPOILT) if draw.randrange(EVERY) == 0 else FINE
    try:
        with watched(place.url, name) as sights, ThreadPoolExecutor(number) as pool:
            promotions = []
            for candidate, out in zip(candidates, outs):
                promotions.append(pool.submit(place.promote, candidate, name, name, out))
                time.sleep(draw.uniform(0, 1))
            has_ended = [promotion.result() for promotion in promotions]
            place.proxy.heal()
            time.sleep(0.5)
            assert_whole(place, name, sights)
            for candidate, out, ended in zip(candidates, outs, has_ended):
                assert ended or place.promote(candidate, name, name, out, place.url), out.with_suffix(
                    ".log"
                ).read_text()
            time.sleep(0.5)
        assert_one_truth(place, name, outs, sights)
    finally:
        place.proxy.heal()
    print(f"{name}: {sum(has_ended)} of {number} ended well among the faults")
    return number


def test_a_promotion_killed_at_any_moment_is_completed_by_the_next(place, tmp_path, record_property):
    draw = random.Random(f"{SEED} kills")
    name, best, kills = f"tiny-killed-{SEED}", place.candidates[-1], 0
    assert place.promote(place.former, name, "before", tmp_path / "former", place.url)
    out = tmp_path / "out"
    with watched(place.url, name) as sights:
        for _ in range(10 if LONG else 2):
            started = place.start(best, name, "run", out, place.url)
            started.join(draw.uniform(0, 12 if kills else 2))
            kills += started.is_alive()
            started.kill()
            started.join()
        assert place.promote(best, name, "run", out, place.url), out.with_suffix(".log").read_text()
        time.sleep(0.5)
    assert kills, "no promotion was killed"
    assert_one_truth(place, name, [out], sights)
    record_property("kills", kills)


def test_a_registry_verb_killed_at_any_moment_leaves_one_truth(place, tmp_path, record_property, monkeypatch):
    """`approve` and `rollback` are killed; whoever takes the lease next completes what they began."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.url)
    monkeypatch.setenv(leases.VARIABLE, str(LEASE))
    draw, name, kills = random.Random(f"{SEED} verbs"), f"tiny-verbs-{SEED}", 0
    client = mlflow.MlflowClient(place.url, place.url)

    def ended(*words: str, seconds: float | None = None) -> bool:
        """Whether a command ended by itself within so many seconds; else it was killed."""
        nonlocal kills
        started = place.begin(list(words), tmp_path / "verbs", place.url)
        started.join(seconds)
        if killed := started.is_alive():
            started.kill()
            started.join()
            kills += 1
        else:
            assert started.exitcode == 0, (tmp_path / "verbs.log").read_text()[-3000:]
        return not killed

    def champion() -> str:
        return champions.alias_version(client.get_registered_model(name), champions.CHAMPION)

    assert place.promote(place.former, name, "before", tmp_path / "former", place.url)
    first = champion()
    for number, candidate in enumerate(place.candidates):
        out = tmp_path / f"out-{number}"
        assert place.promote(candidate, name, f"run-{number}", out, place.url, "--approval")
        version = str(json.loads((out / "promotion.json").read_text())["version"])
        for verb, before, after in ((["approve", name, version], first, version),
                                    (["rollback", name, "--reason", "worse"], version, first)):  # fmt: skip
            ended(*verb, seconds=draw.uniform(0, 2))
            champions.in_turn(name, lambda lease, completed: completed)
            found = champion()
            assert found in (before, after)
            if found == before:
                assert ended(*verb)
            model = client.get_registered_model(name)
            changed = champions.changes(model)
            assert champion() == after == changed[-1]["version"] and changed[-1]["before"] == before
            assert [change["before"] for change in changed] == ["", *(change["version"] for change in changed[:-1])]
            assert champions.UNDER_WAY not in model.tags and not holders(model)
    versions = client.search_model_versions(f"name='{name}'")
    assert len(versions) == 1 + len(place.candidates)
    assert len(champions.changes(client.get_registered_model(name))) == 1 + 2 * len(place.candidates)
    record_property("kills", kills)
