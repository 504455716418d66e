"""Promotions at an MLflow server that lies, fails in the middle, or is killed: one line, and nothing is lost."""

import json
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
import pytest
from fault_proxy import FINE, Fault, FaultProxy, faulty
from mlflow_server import holders, serving
from written_sweeps import copy_of, gated, promoted, write_sweep

from posgap.foundation.errors import PosgapError
from posgap.foundation.retries import RetryPolicy
from posgap.options.promote import PromoteConfig
from posgap.tracking import champions, leases, promotion, registry, runs, server
from posgap.verbs.promote import promote

pytestmark = pytest.mark.nightly  # each starts a server, and some wait for what hangs
LAX = {"max_gap": 30, "advantageous_tolerance": 30, "mean_tolerance": 30}
ERROR = json.dumps({"error_code": "INTERNAL_ERROR", "message": "boom"}).encode()


def without(*names: str) -> Callable[[bytes], bytes]:
    """Drops these fields wherever they stand in an answer."""

    def drop(value):
        if isinstance(value, dict):
            return {key: drop(each) for key, each in value.items() if key not in names}
        return [drop(each) for each in value] if isinstance(value, list) else value

    return lambda body: json.dumps(drop(json.loads(body))).encode()


MODELS, VERSIONS = "registered-models/get", "model-versions/(get|search)|registered-models/alias"
LIES = {
    "tags of versions are dropped": (VERSIONS, without("tags")),
    "tags of the name are dropped": (MODELS, without("tags")),
    "aliases are dropped": (MODELS, without("aliases")),
    "no version is found": ("model-versions/search", lambda body: b"{}"),
    "JSON of versions is cut": (VERSIONS, lambda body: body[: len(body) // 2]),
    "JSON of the name is cut": (MODELS, lambda body: body[: len(body) // 2]),
    "200 with an error, of versions": (VERSIONS, lambda body: ERROR),
    "200 with an error, of the name": (MODELS, lambda body: ERROR),
    "200 with an error, of all": ("", lambda body: ERROR),
    "200 with nothing": ("", lambda body: b"{}"),
    "200 with a list": (MODELS, lambda body: b"[]"),
    "no files are listed": ("artifacts/list", lambda body: b"{}"),
}


ARTIFACTS, ALIAS = "mlflow-artifacts/artifacts", "POST .*registered-models/alias"
FORBIDDEN = Fault(status=403, body=b"Permission denied")
# From the first request that matches the first expression on, the fault befalls all that match the second.
BREAKS = {
    "hangs from the upload on": (f"PUT .*{ARTIFACTS}", "", Fault(hang=True)),
    "hangs as a version is made": ("model-versions/create", "", Fault(hang=True)),
    "hangs when the alias moves": (ALIAS, "", Fault(hang=True)),
    "makes no run": ("", "runs/create", Fault(status=500)),
    "the artifact store refuses": ("", f"PUT .*{ARTIFACTS}", FORBIDDEN),
    "the artifact store is full": ("", f"PUT .*{ARTIFACTS}", Fault(status=507)),
    "the artifact store gives nothing back": ("", f"GET .*{ARTIFACTS}/", Fault(status=500)),
    "the user may not write": ("", "(PUT|PATCH|DELETE) |POST .*/(create|set-tag|log-|alias|update)", FORBIDDEN),
}
# At which of the requests that match the server dies, and whether it has done by then what was asked.
KILLS = {
    "once a version is made": ("model-versions/create", 1, True),
    "as the champion's alias moves": (ALIAS, 2, False),  # the first is that of `previous`
    "once the champion's alias has moved": (ALIAS, 2, True),
}


@dataclass
class Place:
    """A server, a proxy in front of it by which it is asked, and a candidate that was judged beside the champion
    `tiny`."""

    folder: Path
    proxy: FaultProxy
    candidate: dict[str, Path | str]
    servers: ExitStack
    stop: Callable[[], None]

    def restart(self) -> None:
        store = f"sqlite:///{self.folder}/server.db"
        uri, self.stop = self.servers.enter_context(serving(self.folder, str(self.folder / "store"), store))
        self.proxy.port = urlsplit(uri).port

    def config(self, name: str, out: Path) -> PromoteConfig:
        return PromoteConfig(out=out, name=name, **self.candidate)


@pytest.fixture(scope="module")
def place(tmp_path_factory, empty_store, model_folder):
    folder = tmp_path_factory.mktemp("lies")
    with pytest.MonkeyPatch.context() as environment, ExitStack() as servers:
        uri, stop = servers.enter_context(serving(folder, str(folder / "store"), empty_store))
        proxy = servers.enter_context(faulty(uri))
        environment.setenv("MLFLOW_TRACKING_URI", proxy.url)
        base = write_sweep(folder / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
        one, two = (copy_of(model_folder, folder / which) for which in ("one", "two"))
        first, second = (write_sweep(folder / f"sweep-{model.name}", [0.98] * 5, model=model) for model in (one, two))
        promoted(folder, "one", one, first, gated(folder, "one", first, base, **LAX))
        candidate = {"model": str(two), "sweep": second}
        candidate["gate"] = gated(folder, "two", second, base, champion=first, **LAX)
        yield Place(folder, proxy, candidate, servers, stop)


@pytest.fixture
def name(request, place, monkeypatch):
    """A new registered model, whose version is the champion of `tiny`."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.proxy.url)
    monkeypatch.setenv(leases.VARIABLE, "16")
    name = re.sub("[,']", "", request.node.callspec.id)
    champion, client = registry.champion("tiny"), mlflow.MlflowClient()
    client.create_registered_model(name, registry.required_model("tiny").tags)
    logged = champion.source.rpartition("/")[2]
    client.create_model_version(name, champion.source, champion.run_id, champion.tags, model_id=logged)
    client.set_registered_model_alias(name, "champion", "1")
    return name


@pytest.fixture
def little_patience(monkeypatch):
    """Has calls to MLflow give up sooner than for users, within this context."""
    soon = RetryPolicy(seconds=4, first_wait=0.05, longest_wait=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(server.call_mlflow, "__defaults__", (soon, 3.0))
        patch.setattr(leases, "WRITING", soon)
        patch.setattr(runs, "STAGE", soon)
        for module in (promotion, registry):
            patch.setattr(module, "MODEL_SECONDS", 4.0)
            patch.setattr(module, "SEVERAL", RetryPolicy(tries=1))
        yield patch


def reigns(name: str) -> list[tuple[str, str]]:
    return [(each["before"], each["version"]) for each in champions.changes(registry.required_model(name))]


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_loses_nothing(lie, place, name, tmp_path):
    """What it says is believed, or refused in one line; then the same command ends as if nothing had been."""
    path, change = LIES[lie]
    place.proxy.fault = lambda number, method, asked: Fault(change=change) if re.search(path, asked) else FINE
    try:
        promote(place.config(name, tmp_path / "out"))
    except PosgapError as error:
        assert len(str(error).splitlines()) == 1
    place.proxy.heal()
    assert registry.champion(name).version in ("1", "2")
    promote(place.config(name, tmp_path / "again"))
    assert str(registry.champion(name).version) == "2" and len(registry.versions(name)) == 2
    if lie == "aliases are dropped":  # which is believed: there was no champion before
        assert reigns(name) == [("", "1"), ("", "2")]
    else:
        assert reigns(name) == [("", "1"), ("1", "2")] and str(registry.previous(name).version) == "1"


def assert_completed(place: Place, name: str, out: Path) -> None:
    """The same command promotes, now that MLflow is well: each version is there once, and nobody holds a lease."""
    promote(place.config(name, out))
    assert registry.champion(name).version == "2" and registry.previous(name).version == "1"
    assert len(registry.versions(name)) == 2 and reigns(name) == [("", "1"), ("1", "2")]
    model = registry.required_model(name)
    assert {each["why"] for each in champions.changes(model)} == {"promoted"} and not holders(model)


@pytest.mark.parametrize("broken", BREAKS)
def test_a_promotion_that_mlflow_breaks_off_leaves_the_champion(broken, place, name, tmp_path, little_patience):
    begins, struck, fault = BREAKS[broken]
    has_begun, befallen, out = threading.Event(), [], tmp_path / "out"

    def strike(number: int, method: str, path: str) -> Fault:
        if re.search(begins, f"{method} {path}"):
            has_begun.set()
        if not has_begun.is_set() or not re.search(struck, f"{method} {path}"):
            return FINE
        befallen.append(path)
        return fault

    place.proxy.fault = strike
    with pytest.raises(PosgapError) as told:
        promote(place.config(name, out))
    assert befallen and len(str(told.value).splitlines()) == 1
    assert told.value.code == ("refused" if fault.status == 403 else "no-server"), told.value
    little_patience.undo()
    place.proxy.closing.set()  # lets go what hangs
    place.proxy.heal()
    place.proxy.closing.clear()
    assert registry.champion(name).version == "1" and reigns(name) == [("", "1")] and not out.exists()
    assert len(registry.versions(name)) == (2 if "alias" in broken else 1)
    assert_completed(place, name, out)


@pytest.mark.parametrize("moment", KILLS)
def test_a_server_killed_during_a_promotion_has_it_completed_after_its_restart(
    moment, place, name, tmp_path, little_patience
):
    fatal, which, is_done = KILLS[moment]
    asked_for, out = [], tmp_path / "out"

    def stop(body: bytes = b"") -> bytes:
        place.stop()
        return body

    def kill(number: int, method: str, path: str) -> Fault:
        if not re.search(fatal, f"{method} {path}"):
            return FINE
        asked_for.append(path)
        if len(asked_for) != which:
            return FINE
        if not is_done:
            stop()
        return Fault(drop="after", change=stop)

    place.proxy.fault = kill
    with pytest.raises(PosgapError) as told:
        promote(place.config(name, out))
    assert len(asked_for) >= which and told.value.code == "no-server" and len(str(told.value).splitlines()) == 1
    little_patience.undo()
    place.proxy.heal()
    place.restart()
    assert registry.champion(name).version == ("2" if moment == "once the champion's alias has moved" else "1")
    assert_completed(place, name, out)
