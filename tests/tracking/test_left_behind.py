"""What killed commands left behind in MLflow is shown, and removed when that is asked for."""

import json
import time

import mlflow
import pytest
from command_line import fails

from posgap.cli.main import main
from posgap.tracking import champions, leases, registry
from posgap.tracking.server import experiment_id

pytestmark = pytest.mark.usefixtures("mlflow_store")

NOTHING_DONE = "\nNothing was changed. With --left-behind remove it is.\n"


@pytest.fixture
def left(monkeypatch):
    """A registry with one of everything, and what is to stay: by name, ids of runs, logged models and versions."""
    monkeypatch.setenv(leases.VARIABLE, "2")
    client = mlflow.MlflowClient()
    experiment = experiment_id(client)
    ids = {}
    for name, tags in {"dead": {"posgap.stage": "promote"}, "done": {"posgap.stage": "promote"}, "other": {}}.items():
        ids[name] = client.create_run(experiment, tags=tags).info.run_id
    client.set_terminated(ids["done"])
    for name, source in {"orphan": "dead", "used": "done", "foreign": "other"}.items():
        ids[name] = client.create_logged_model(experiment, source_run_id=ids[source]).model_id
    client.create_registered_model("tiny", tags={f"{leases.FLAG}00000001.{int(1000 * time.time())}-dead": "{}"})
    looked_at = {registry.DIGEST: "1", registry.PROMOTION_RUN: ids["done"]}
    for tags in (looked_at, {registry.DIGEST: "2"}, {registry.DIGEST: "3"}, {}):
        client.create_model_version("tiny", f"models:/{ids['used']}", ids["done"], tags=tags)
    client.set_registered_model_alias("tiny", "champion", "1")
    client.set_registered_model_alias("tiny", "kept", "3")
    return client, ids


def cleaned(capsys, *words, how="show") -> str:
    """What the command prints."""
    with pytest.raises(SystemExit) as stopped:
        main(["sync", "--left-behind", how, *words])
    assert not stopped.value.code
    return capsys.readouterr().out


def remaining(client) -> tuple[list[str], list[str], set[str]]:
    experiment = experiment_id(client)
    versions = sorted(str(version.version) for version in client.search_model_versions("name='tiny'"))
    models = {model.model_id for model in client.search_logged_models([experiment])}
    running = [each.info.run_id for each in client.search_runs([experiment], "attributes.status = 'RUNNING'")]
    return versions, sorted(running), models


@pytest.mark.full
def test_what_was_left_behind_is_shown_and_removed_only_when_asked_to(left, capsys, monkeypatch):
    client, ids = left
    monkeypatch.setattr(leases, "SECONDS", 1.0)
    before = remaining(client)
    assert cleaned(capsys) == "nothing was left behind\n"  # all of it is young
    # A change that broke off is completed whenever that was.
    change = champions.Change(
        tag=f"{champions.CHANGE}1-x", at="", version="3", before="1", previous="1", why="promoted"
    )
    client.set_registered_model_tag("tiny", champions.UNDER_WAY, change.model_dump_json())
    shown = cleaned(capsys, "--older-than", "0")
    kinds = [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("| ")][1:]
    assert kinds == ["lease", "version", "logged model", "run"]
    assert ids["dead"] in shown and ids["orphan"] in shown and "tiny version 2" in shown
    told = json.loads(cleaned(capsys, "--older-than", "0", "--json"))
    assert [each["kind"] for each in told["remains"]] == kinds and told["removed"] is False and told["sent"] == []
    assert told["remains"][2].items() >= {"name": ids["orphan"], "becomes": "deleted"}.items()
    assert [*told["remains"][2]] == ["kind", "name", "since", "becomes"]
    assert remaining(client) == before and leases.holders(client.get_registered_model("tiny"))
    assert cleaned(capsys, "--older-than", "0", "--name", "tiny", how="remove") in shown.replace(NOTHING_DONE, "")
    versions, running, models = remaining(client)
    assert versions == ["1", "3", "4"] and running == [ids["other"]]
    assert models == {ids["used"], ids["foreign"]}
    assert client.get_run(ids["dead"]).info.status == "KILLED"
    model = client.get_registered_model("tiny")
    assert not leases.holders(model) and champions.alias_version(model, "champion") == "3"
    assert cleaned(capsys, "--older-than", "0") == "nothing was left behind\n"


def test_a_run_lives_as_long_as_a_stage_below_it(capsys):
    client = mlflow.MlflowClient()
    experiment, now = experiment_id(client), int(1000 * time.time())

    def started(hours_ago: float, parent: str = "") -> str:
        tags = {"posgap.stage": "demo", **({"mlflow.parentRunId": parent} if parent else {})}
        return client.create_run(experiment, start_time=now - int(hours_ago * 3_600_000), tags=tags).info.run_id

    alive, dead = started(60), started(60)
    training, ended = started(50, alive), started(50, dead)
    client.log_metric(training, "loss", 1.0, timestamp=now - 3_600_000)
    client.set_terminated(ended, end_time=now - 45 * 3_600_000)
    shown = cleaned(capsys)
    assert dead in shown and alive not in shown and training not in shown


def test_a_name_that_is_not_there_is_a_line(capsys):
    assert (
        fails(capsys, "sync", "--left-behind", "show", "--name", "none")
        == "none: no registered model of this name in MLflow"
    )


@pytest.mark.full
def test_what_lies_on_a_later_page_is_found(capsys, monkeypatch):
    """MLflow returns a hundred registered models at a time."""
    client = mlflow.MlflowClient()
    for number in range(101):
        client.create_registered_model(f"model-{number:03}")
    client.set_registered_model_tag("model-100", champions.UNDER_WAY, "{}")
    assert "| model-100 " in cleaned(capsys)


def test_a_model_whose_version_lies_on_a_later_page_is_not_deleted(left, monkeypatch, capsys):
    client, ids = left
    whole = type(client).search_model_versions

    def one_at_a_time(self, filter_string=None, **more):
        return whole(self, filter_string, **more | {"max_results": 1, "order_by": ["version_number DESC"]})

    # Of another model, so that the versions that use this one come later.
    client.create_registered_model("zebra")
    client.create_model_version("zebra", "elsewhere")
    monkeypatch.setattr(type(client), "search_model_versions", one_at_a_time)
    shown = cleaned(capsys, "--older-than", "0")
    assert ids["orphan"] in shown and ids["used"] not in shown
