"""Who may do what on a real MLflow server with its basic-auth app: steps log, and promotion alone changes a protected
name."""

import os
import sys
import urllib.error
import urllib.request

import mlflow
import pytest
from mlflow.server import get_app_client
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow_server import serving
from places import ROOT
from refusals import refuses
from warm import SERVER
from warm_forks import command
from written_sweeps import copy_of, write_sweep

sys.path.append(str(ROOT / "infra" / "kubernetes" / "base" / "namespaced" / "mlflow"))
import access

from posgap.foundation.errors import Contradiction
from posgap.options.gate import GateConfig
from posgap.tracking import champions, flavor, registered, registry
from posgap.tracking.server import RequestRefused, call_mlflow
from posgap.verbs.gate import judge_and_write

pytest.importorskip("flask_wtf", reason="mlflow's basic-auth app wants Flask-WTF: install the extra mlflow[auth]")
pytestmark = pytest.mark.full
ADMIN = {"MLFLOW_AUTH_ADMIN_PASSWORD": "the-administrator's", "MLFLOW_FLASK_SERVER_SECRET_KEY": "secret"}
NAME, LAX = "guarded", {"max_gap": 30, "advantageous_tolerance": 30, "mean_tolerance": 30, "allow": ["trial"]}


@pytest.fixture
def server(tmp_path, empty_store):
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "auth.ini").write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder}/auth.db\nadmin_username = admin\n"
        "auth_cache_ttl_seconds = 60\nauthorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    for user in (access.PIPELINE, access.PROMOTE):
        (folder / user).mkdir()
        (folder / user / access.USERNAME).write_text(f"posgap-{user}")
        (folder / user / access.PASSWORD).write_text(f"the password of {user}\n")
    variables = ADMIN | {"MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini")}
    with serving(folder, str(folder / "store"), empty_store, ["--app-name", "basic-auth"], variables) as (url, _):
        yield url, folder


def test_only_promotion_s_log_in_changes_a_protected_name(server, tmp_path, model_folder, monkeypatch, capsys):
    (url, folder), counted = server, iter(range(9))

    def become(user):
        login = access.read_login(folder / user)
        environment = {access.USERNAME: login.name, access.PASSWORD: login.password, "MLFLOW_TRACKING_URI": url}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    def posgap(user, *words):
        """What a process with that user's log-in shows, and whether it succeeded."""
        become(user)
        log = tmp_path / f"{next(counted)}.log"
        started = SERVER.Process(target=command, args=(list(words), log, dict(os.environ)))
        started.start()
        started.join()
        return started.exitcode == 0, log.read_text().splitlines()[-1]

    place = copy_of(model_folder, tmp_path / "model")
    swept = write_sweep(tmp_path / "sweep", [0.95] * 5, model=place)
    base = write_sweep(tmp_path / "base", [0.9] * 5)
    judged = judge_and_write(GateConfig(out=tmp_path / "gate", candidate=swept, base=base, **LAX))
    promotion = [
        "promote",
        "--name",
        NAME,
        "--model",
        str(place),
        "--sweep",
        str(swept),
        "--gate",
        str(judged),
        "--out",
        f"{place}-out",
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    for name, value in ADMIN.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):  # the second time changes nothing
        access.main([NAME, "--users", str(folder)])
    assert "guarded: only promote's user may change these" in capsys.readouterr().out
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/api/2.0/mlflow/experiments/get?experiment_id=0")

    refused = f"posgap: error: MLflow at {url}: the log-in posgap-pipeline may not do this"
    made, said = posgap(access.PIPELINE, *promotion)
    assert not made and refused in said, said
    assert not registry.versions(NAME)
    made, said = posgap(access.PROMOTE, *promotion)
    assert made and aliases() == ("1", ""), said
    become(access.PROMOTE)
    one = registry.get_version(NAME, "1")
    model_id = one.source.rpartition("/")[2]
    call_mlflow(lambda client: client.create_model_version(NAME, one.source, one.run_id, model_id=model_id))
    champions.in_turn(NAME, lambda lease, _: champions.set_champion(lease, "2", "promoted", "1"))

    made, said = posgap(access.PIPELINE, "rollback", NAME, "--reason", "worse")
    assert not made and refused in said, said
    become(access.PIPELINE)
    (experiment,) = [each.experiment_id for each in mlflow.search_experiments() if each.name == "posgap"]
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_metric("gap", 1.0)
        mlflow.log_text("kept", "note.txt")
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/note.txt") == "kept"
    assert registry.bring_model(f"models:/{NAME}@champion", tmp_path / "brought").is_dir()
    users = get_app_client("basic-auth", url)
    for forbidden in (
        lambda client: client.set_registered_model_alias(NAME, "champion", "1"),
        lambda client: client.delete_registered_model_alias(NAME, "champion"),
        lambda client: client.create_model_version(NAME, run.info.artifact_uri, run.info.run_id),
        lambda client: client.set_model_version_tag(NAME, "2", registry.DIGEST, "0"),
        lambda client: client.set_registered_model_tag(NAME, registry.POLICY, "{}"),
        lambda client: client.rename_registered_model(NAME, "other"),
        lambda client: client.delete_model_version(NAME, "1"),
        lambda client: client.delete_registered_model(NAME),
        lambda client: client.delete_run(run.info.run_id),
        lambda client: client.delete_experiment(experiment),
        lambda _: users.grant_user_permission("posgap-pipeline", "registered_model", NAME, "MANAGE"),
    ):
        with pytest.raises(RequestRefused, match=access.PIPELINE):
            call_mlflow(forbidden)
    assert aliases() == ("2", "1")

    made, said = posgap(access.PROMOTE, "rollback", NAME, "--reason", "worse")
    assert made and aliases() == ("1", "2"), said
    # A step may write over files of the experiment's runs: whoever loads the champion by posgap notices.
    become(access.PIPELINE)
    logged = call_mlflow(lambda client: client.get_logged_model(model_id))
    get_artifact_repository(logged.artifact_location).log_artifact(tmp_path / "gate" / "gate.json", flavor.DATA)
    with refuses(Contradiction, f"models:/{NAME}"):
        registered.RegisteredVersion(f"models:/{NAME}@champion").fetch()
    monkeypatch.setenv(access.PASSWORD, "another")
    with pytest.raises(RequestRefused, match=f"{url}.*{access.PIPELINE}"):
        call_mlflow(lambda client: client.get_registered_model(NAME))


def aliases():
    model = registry.registered_model(NAME)
    return champions.alias_version(model, champions.CHAMPION), champions.alias_version(model, champions.PREVIOUS)
