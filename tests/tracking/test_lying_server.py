"""An MLflow server that answers, and says what is not so: one line, and whatever it said before is still there."""

import json
import re
from collections.abc import Callable

import mlflow
import pytest
from fault_proxy import FINE, Fault, faulty
from mlflow_server import serving
from written_sweeps import copy_of, gated, promoted, write_sweep

from posgap.foundation.errors import PosgapError
from posgap.foundation.retries import RetryPolicy
from posgap.options.promote import PromoteConfig
from posgap.tracking import champions, leases, registry, server
from posgap.verbs.promote import promote

pytestmark = pytest.mark.full
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


@pytest.fixture(scope="module")
def place(tmp_path_factory, empty_store, model_folder):
    """A server, a proxy in front of it, and a candidate that was judged beside the champion `tiny`."""
    folder = tmp_path_factory.mktemp("lies")
    with (
        pytest.MonkeyPatch.context() as environment,
        serving(folder, str(folder / "store"), empty_store) as (uri, _),
        faulty(uri) as proxy,
    ):
        environment.setenv("MLFLOW_TRACKING_URI", uri)
        base = write_sweep(folder / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
        one, two = (copy_of(model_folder, folder / which) for which in ("one", "two"))
        first, second = (write_sweep(folder / f"sweep-{model.name}", [0.98] * 5, model=model) for model in (one, two))
        promoted(folder, "one", one, first, gated(folder, "one", first, base, **LAX))
        candidate = {"model": str(two), "sweep": second}
        candidate["gate"] = gated(folder, "two", second, base, champion=first, **LAX)
        yield uri, proxy, candidate


# With every change a write that is lost and a success that is none; the others each night: each takes a promotion.
EACH_TIME = ("aliases are dropped", "200 with an error, of all")


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=[] if lie in EACH_TIME else pytest.mark.nightly) for lie in LIES]
)
def test_a_server_that_lies_loses_nothing(lie, place, tmp_path, monkeypatch):
    """What it says is believed, or refused in one line; then the same command ends as if nothing had been."""
    uri, proxy, candidate = place
    name = lie.replace(",", "")
    monkeypatch.setattr(server, "VERB", RetryPolicy(seconds=2, first_wait=0.05, longest_wait=0.2))
    monkeypatch.setenv(leases.VARIABLE, "8")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    champion, client = registry.champion("tiny"), mlflow.MlflowClient()
    client.create_registered_model(name, registry.required_model("tiny").tags)
    logged = champion.source.rpartition("/")[2]
    client.create_model_version(name, champion.source, champion.run_id, champion.tags, model_id=logged)
    client.set_registered_model_alias(name, "champion", "1")
    path, change = LIES[lie]
    proxy.fault = lambda number, method, asked: Fault(change=change) if re.search(path, asked) else FINE
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    try:
        promote(PromoteConfig(out=tmp_path / "out", name=name, **candidate))
    except PosgapError as error:
        assert len(str(error).splitlines()) == 1
    proxy.heal()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert registry.champion(name).version in ("1", "2")
    promote(PromoteConfig(out=tmp_path / "again", name=name, **candidate))
    assert str(registry.champion(name).version) == "2" and len(registry.versions(name)) == 2
    reigns = [(each["before"], each["version"]) for each in champions.changes(registry.required_model(name))]
    if lie == "aliases are dropped":  # which is believed: there was no champion before
        assert reigns == [("", "1"), ("", "2")]
    else:
        assert reigns == [("", "1"), ("1", "2")] and str(registry.previous(name).version) == "1"
