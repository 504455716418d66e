"""`posgap pipeline submit` against a local KFP server that refuses what a real one would."""

import copy
import json
import os
import signal
import time

import pytest
from kfp_server import Server, conforms, served
from toy_pipeline import GIVEN, ROOT_OF_TOYS, fails, posgap, toy

from posgap.pipelines import compilation, transport
from posgap.pipelines.compilation import load
from posgap.pipelines.transport import TRIES
from posgap.verbs import pipeline_compile

HTML = (200, {"Content-Type": "text/html"}, "<html>Log in</html>")


pytestmark = pytest.mark.usefixtures("no_kfp_settings")


@pytest.fixture
def submit(toy_file):
    return lambda server, *more: ["submit", "--host", server.url, "--file", toy_file, *GIVEN, *more]


def at(path: str, answer, until: int = 99, method: str = "POST"):
    """Answers so, the first `until` times."""
    return lambda m, p, times: answer if (m, p) == (method, f"/apis/v2beta1/{path}") and times < until else None


def failing(status: int, reason: str = "", times: int = 99, path: str = "runs", method: str = "POST"):
    return at(path, (status, {}, reason), times, method)


def test_a_run_is_sent_as_the_api_wants_it(capsys, submit):
    with served(Server()) as server:
        more = (
            "--param",
            "steps=7",
            "--param",
            "rate=1",
            "--param",
            "fast=true",
            "--param",
            "shards=[2]",
            "--name",
            "mine",
        )
        code, out, _ = posgap(capsys, *submit(server, *more, "--experiment", "trials", "--service-account", "robot"))
    (run,) = server.runs.values()
    (experiment,) = server.experiments.values()
    assert code == 0
    assert out.splitlines() == [f"run {run['run_id']}", f"{server.url}/#/runs/details/{run['run_id']}"]
    assert experiment["display_name"] == "trials" and run["experiment_id"] == experiment["experiment_id"]
    assert run["display_name"] == "mine" and run["service_account"] == "robot"
    sent = {"data": "s3://bucket/examples.jsonl.gz", "steps": 7, "rate": 1.0, "fast": True, "shards": [2]}
    assert run["runtime_config"] == {"parameters": sent, "pipeline_root": ROOT_OF_TOYS}
    spec, platform = run["pipeline_spec"]["pipeline_spec"], run["pipeline_spec"]["platform_spec"]
    assert spec["pipelineInfo"]["name"] == "toy"
    assert "exec-train" in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


@pytest.mark.full
def test_the_mitigation_pipeline_is_what_is_submitted(capsys):
    with served(Server()) as server:
        uris = [w for name in ("data_train", "data_eval", "base_model") for w in ("--param", f"{name}=s3://b/{name}")]
        code, *_ = posgap(capsys, "submit", "--host", server.url, "--smoke", "--param", "n_docs=4", *uris)
    (run,) = server.runs.values()
    values = run["runtime_config"]["parameters"]
    assert run["runtime_config"]["pipeline_root"] == "s3://posgap/kfp"  # of ClusterConfig
    assert code == 0 and values["n_docs"] == 4 and values["registered_name"] == "posgap-demo"
    assert run["service_account"] == "posgap-pipeline"  # the one that infra/kubernetes gives its roles to
    assert run["display_name"].startswith("posgap-mitigation 20")


@pytest.fixture
def upload(capsys, monkeypatch):
    """Uploads the toy pipeline, or another one."""

    def upload(server, *more, pipeline=toy, code=0):
        monkeypatch.setattr(compilation, "pipeline", lambda name: pipeline)
        monkeypatch.setattr(pipeline_compile, "pipeline", lambda name: pipeline)
        words = ("compile", "--host", server.url, *more)
        return posgap(capsys, *words)[:2] if not code else fails(capsys, *words, code=code)

    return upload


@pytest.mark.full
def test_a_version_is_uploaded_once_and_runs_and_schedules_name_it(capsys, upload, tmp_path):
    ours = copy.deepcopy(toy)
    ours.pipeline_spec.pipeline_info.name = "posgap-mitigation"
    with served(Server()) as server:
        by_version = ["--host", server.url, *GIVEN, "--version"]
        missing = fails(capsys, "submit", *by_version, "latest")
        assert missing == "pipeline posgap-mitigation: not found; `posgap pipeline compile --host` uploads it"
        code, out = upload(server, pipeline=ours)
        (pipeline,), (version,) = server.pipelines.values(), server.versions.values()
        page = f"{pipeline['pipeline_id']}/version/{version['pipeline_version_id']}"
        said, address = out.splitlines()
        assert code == 0 and address == f"{server.url}/#/pipelines/details/{page}"
        assert (
            said == f"posgap-mitigation version {version['name']}: uploaded" and pipeline["name"] == "posgap-mitigation"
        )
        assert version["pipeline_spec"]["pipeline_spec"]["pipelineInfo"]["name"] == "posgap-mitigation"
        again = upload(server, "--out", tmp_path / "toy.yaml", pipeline=ours)[1]
        assert again.split("\n")[:2] == [said.replace("uploaded", "unchanged"), address]
        assert load(tmp_path / "toy.yaml").name == "posgap-mitigation", "both a file and a version"
        other = copy.deepcopy(ours)
        other.pipeline_spec.pipeline_info.description = "another"
        refused = upload(server, "--version", version["name"], pipeline=other, code=2)
        assert "exists with other content; give --version another name" in refused
        upload(server, "--version", "second", pipeline=other)
        newest = [*server.versions.values()][-1]["pipeline_version_id"]
        assert len(server.pipelines) == 1 and len(server.versions) == 2
        for wanted, id_of in {version["name"]: version["pipeline_version_id"], "latest": newest}.items():
            assert posgap(capsys, "submit", *by_version, wanted)[0] == 0
            run = [*server.runs.values()][-1]
            named = {"pipeline_id": pipeline["pipeline_id"], "pipeline_version_id": id_of}
            assert run["pipeline_version_reference"] == named and not run.get("pipeline_spec")
        weekly = ["schedule", "weekly", "--cron", "0 3 * * 1", *by_version]
        wanted = version["name"], version["name"], "latest"
        said = [posgap(capsys, *weekly, each)[1].split()[1] for each in wanted]
        assert said == ["created", "unchanged", "replaced"]
        (schedule,) = server.schedules.values()
        assert schedule["pipeline_version_reference"] == named
        unknown = fails(capsys, "submit", *by_version, "third")
        assert unknown == f"posgap-mitigation: no version third; the newest are second, {version['name']}"
        wrong = fails(capsys, "submit", *by_version, "second", "--param", "stepz=7")
        assert wrong == "--param stepz: the pipeline has no such parameter; did you mean steps?"
        assert "--no-cache cannot change" in fails(capsys, "submit", *by_version, "second", "--no-cache")


def test_a_lost_answer_to_an_upload_makes_no_second_version(upload):
    lost = (503, {}, "", True)
    with served(Server(misbehave=at("pipelines/upload_version", lost, until=1))) as server:
        assert upload(server)[0] == 0
        assert server.seen["POST", "/apis/v2beta1/pipelines/upload_version"] == 1 == len(server.versions)


def test_the_experiment_is_made_once(capsys, submit):
    with served(Server()) as server:
        for _ in range(2):
            assert posgap(capsys, *submit(server))[0] == 0
    assert len(server.experiments) == 1 and len(server.runs) == 2
    assert len({run["display_name"] for run in server.runs.values()}) == 2


@pytest.mark.parametrize("namespace", ["", "team"])
def test_the_namespace_goes_into_the_experiment(capsys, submit, namespace):
    with served(Server()) as server:
        assert posgap(capsys, *submit(server, "--namespace", namespace))[0] == 0
    (experiment,) = server.experiments.values()
    assert experiment.get("namespace", "") == namespace


def test_no_cache_reaches_every_step(capsys, submit):
    with served(Server()) as server:
        posgap(capsys, *submit(server, "--service-account", ""))
        posgap(capsys, *submit(server, "--no-cache"))
    assert not next(iter(server.runs.values())).get("service_account")
    cached, uncached = [json.dumps(run["pipeline_spec"]).count('"enableCache": true') for run in server.runs.values()]
    assert cached == 6 and uncached == 0


def test_host_and_token_come_from_the_environment(capsys, submit, tmp_path, monkeypatch):
    words = submit(Server())[3:]
    with served(Server(token="right")) as server:
        monkeypatch.setenv("KF_PIPELINES_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("KFP_HOST", server.url + "/")
        assert fails(capsys, "submit", *words).endswith("; set KFP_TOKEN")
        (tmp_path / "token").write_text("wrong")
        assert fails(capsys, "submit", *words).endswith(f" {tmp_path / 'token'}")
        (tmp_path / "token").write_text("right\n")
        assert posgap(capsys, "submit", *words)[0] == 0
        monkeypatch.setenv("KFP_TOKEN", "secret")
        code, out, err = posgap(capsys, "submit", *words)
        assert code == 2 and "401 Unauthorized" in err and "KFP does not accept the token in KFP_TOKEN" in err
        assert "secret" not in out + err
        monkeypatch.setenv("KFP_TOKEN", " right\n")
        assert posgap(capsys, "submit", *words)[0] == 0
    assert server.seen["GET", "/apis/v2beta1/experiments"] == 6, "a refusal is not asked about again"


@pytest.mark.parametrize(
    ("param", "complaint"),
    [
        ("stps=7", "--param stps: the pipeline has no such parameter; did you mean steps?"),
        ("x=7", "--param x: the pipeline has no such parameter; there are data, fast, pool"),
        ("steps=7.5", "--param steps: '7.5' is not a whole number"),
        ("rate=fast", "--param rate: 'fast' is not a number"),
        ("rate=nan", "--param rate: 'nan' is not a number"),
        ("fast=1", "--param fast: '1' is not true or false"),
        ("shards=1,2", "--param shards: '1,2' is not a JSON list, like [1, 5]"),
        ("pool=[1]", "--param pool: '[1]' is not a JSON object"),
        ("steps", "--param: write NAME=VALUE, got "),
    ],
)
def test_parameters_are_checked_before_anything_is_sent(capsys, submit, param, complaint):
    with served(Server()) as server:
        assert fails(capsys, *submit(server, "--param", param)).startswith(complaint)
        told = fails(capsys, *submit(server)[:5])
        assert "--param data=" in told
    assert not server.seen


def test_a_host_is_needed_with_its_protocol(capsys, submit):
    words = submit(Server())[3:]
    assert "--host or set KFP_HOST" in fails(capsys, "submit", *words)
    assert fails(capsys, "submit", *words, "--host", "kfp:8080").startswith("--host: 'kfp:8080' ")


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (
            403,
            '{"message": "no access to team"}',
            "403 Forbidden: no access to team; the token's owner has no permission for this",
        ),
        (404, "nothing here", "404 Not Found: nothing here"),
        (409, '{"message": "it exists"}', "409 Conflict: it exists"),
        (400, '{"details": [{"message": "short"}], "message": "long"}', "400 Bad Request: short"),
    ],
)
def test_refusals_are_one_line_and_not_asked_about_again(capsys, submit, status, body, complaint):
    with served(Server(misbehave=failing(status, body))) as server:
        assert complaint in fails(capsys, *submit(server))
    assert server.seen["POST", "/apis/v2beta1/runs"] == 1


def test_redirects_to_a_login_page_and_other_web_pages_are_seen_through(capsys, submit):
    for answer, complaint in (
        ((302, {"Location": "/dex/auth"}, ""), "302 Found; set KFP_TOKEN"),
        (HTML, "the answer is not KFP's: '<html>Log in</html>'"),
    ):
        with served(Server(misbehave=at("experiments", answer, method="GET"))) as server:
            assert complaint in fails(capsys, *submit(server))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_failing_server_is_asked_again(capsys, submit, status):
    def misbehave(method, path, times):
        return (status, {}, "busy") if times < 2 else None

    with served(Server(misbehave=misbehave)) as server:
        assert posgap(capsys, *submit(server))[0] == 0
    assert len(server.runs) == 1 and len(server.experiments) == 1


def test_a_server_that_goes_on_failing_is_given_up_in_one_line(capsys, submit):
    with served(Server(misbehave=lambda *_: (503, {}, "upstream\nconnect error"))) as server:
        complaint = fails(capsys, *submit(server))
    assert complaint == f"{server.url}: 503 Service Unavailable: upstream connect error"
    assert server.seen["GET", "/apis/v2beta1/experiments"] == TRIES


def test_a_server_that_cannot_be_reached_is_named(capsys, submit):
    with served(Server()) as server:
        pass
    complaint = fails(capsys, *submit(server))
    assert complaint.startswith(f"{server.url}: cannot be reached (") and complaint.endswith(
        "is this the address of KFP?"
    )


def test_a_server_that_does_not_answer_is_given_up_after_the_time_limit(capsys, submit, monkeypatch):
    monkeypatch.setattr(transport, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(transport, "TRIES", 2)
    with served(Server(misbehave=at("experiments", 5, method="GET"))) as server:
        started = time.monotonic()
        complaint = fails(capsys, *submit(server))
    assert complaint == f"{server.url}: no answer within 0.2 s" and time.monotonic() - started < 3


@pytest.mark.parametrize("lost", [(502, {}, "bad gateway", True), 0.6])
def test_a_run_whose_answer_was_lost_is_found_and_not_started_twice(capsys, submit, lost, monkeypatch):
    monkeypatch.setattr(transport, "ANSWER_SECONDS", 0.3)
    with served(Server(misbehave=at("runs", lost, until=1))) as server:
        posgap(capsys, *submit(server, "--name", "nightly"))
        code, out, _ = posgap(capsys, *submit(server, "--name", "nightly"))
    assert code == 0 and len(server.runs) == 2, "a name may come again, but each submission is one run"
    assert out.splitlines()[0] == f"run {list(server.runs)[1]}"


def test_a_quicker_submission_may_make_the_experiment_meanwhile(capsys, submit):
    with served(Server(misbehave=at("experiments", (409, {}, "{}", True), until=1))) as server:
        assert posgap(capsys, *submit(server))[0] == 0
    assert len(server.experiments) == len(server.runs) == 1


WAIT = ("--wait",)


def test_waiting_ends_with_success(capsys, submit):
    with served(Server()) as server:
        server.states = ["PENDING", None, "RUNNING", "RUNNING", "SUCCEEDED"]
        code, _, err = posgap(capsys, *submit(server, *WAIT))
    assert code == 0
    states = [line.rsplit(": ", 1)[1] for line in err.splitlines() if line.startswith("posgap | run ")]
    assert states == ["PENDING", "RUNNING", "SUCCEEDED"]


def task(name: str, state: str, second: int) -> dict:
    return {"display_name": name, "state": state, "end_time": f"2026-11-21T12:00:{second:02d}Z"}


def test_a_failed_run_is_reported_with_its_step_and_code_4(capsys, submit):
    tasks = [
        task("root-driver", "SUCCEEDED", 1),
        task("toy-x7k2p", "FAILED", 9),
        task("exit-handler-1", "FAILED", 8),
        task("prepare", "SUCCEEDED", 2),
        task("search-driver", "FAILED", 7),
        task("train", "FAILED", 6),
        task("executor", "FAILED", 5),
    ]

    def fail(method, path, times):
        for run in server.runs.values():
            run["run_details"] = {"task_details": tasks}
            run["error"] = {"code": 13, "message": "child 'toy-x7k2p'\nfailed"}

    with served(Server(misbehave=fail)) as server:
        server.states = ["RUNNING", "FAILED"]
        complaint = fails(capsys, *submit(server, *WAIT), code=4)
    (run,) = server.runs
    assert complaint == (
        f"run {run} failed in train R1 and search: child 'toy-x7k2p' failed: see {server.url}/#/runs/details/{run}"
    )


@pytest.mark.parametrize("state", ["CANCELED", "SKIPPED"])
def test_a_cancelled_run_ends_the_wait_with_code_5(capsys, submit, state):
    with served(Server()) as server:
        server.states = ["RUNNING", "CANCELING", state]
        assert f" was {state.lower()}: {server.url}/#/runs" in fails(capsys, *submit(server, *WAIT), code=5)


def test_the_wait_ends_with_code_6_when_the_time_is_up(capsys, submit):
    with served(Server()) as server:
        server.states = ["PENDING", None]
        complaint = fails(capsys, *submit(server, *WAIT, "--timeout", "0.2"), code=6)
    assert "has not ended after 0.2 s (last seen PENDING); it goes on: http" in complaint


def test_the_wait_outlives_a_server_that_is_down_for_a_while(capsys, submit):
    def misbehave(method, path, times):
        return (503, {}, "down") if "runs/" in path and 1 <= times < 6 else None

    with served(Server(misbehave=misbehave)) as server:
        server.states = ["RUNNING", "SUCCEEDED"]
        code, _, err = posgap(capsys, *submit(server, *WAIT))
    assert code == 0 and "503 Service Unavailable: down; trying again" in err


@pytest.mark.parametrize(
    ("number", "code", "how"), [(signal.SIGINT, 130, "stopped"), (signal.SIGTERM, 143, "stopped by SIGTERM")]
)
def test_a_signal_ends_the_wait_and_not_the_run(capsys, submit, number, code, how):
    def stop(method, path, times):
        if "runs/" in path and times == 1:
            os.kill(os.getpid(), number)

    with served(Server(misbehave=stop)) as server:
        server.states = ["RUNNING"]
        complaint = fails(capsys, *submit(server, *WAIT), code=code)
    assert complaint.startswith(f"{how}; run 0") and f" goes on: {server.url}/#/runs/details/" in complaint


def test_the_local_server_itself_refuses_what_is_not_as_the_api_says():
    for body in ({"display_nam": "x"}, {"display_name": 3}, {"runtime_config": {"parameters": []}}):
        with pytest.raises(Exception, match="body"):
            conforms(body, "V2beta1Run")
    with pytest.raises(Exception, match="none of"):
        conforms({"mode": "ENABLED"}, "V2beta1RecurringRun")
    conforms({"mode": "ENABLE", "max_concurrency": "1"}, "V2beta1RecurringRun")
