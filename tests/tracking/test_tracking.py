"""Tracking loses nothing: what a server does not take is kept beside the output, and sent when it can be."""

import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mlflow
import pytest
from fault_proxy import FAULTS, FINE, Fault, faulty
from mlflow_server import serving

from posgap.foundation import files
from posgap.foundation.retries import RetryPolicy
from posgap.options.base import SeededConfig
from posgap.storage.inputs import read_manifest
from posgap.tracking import registry, runs, server
from posgap.tracking.runs import KEY_TAG, log_unlogged, start_run
from posgap.verbs.frame import stage

pytestmark = pytest.mark.full
SEED = int(os.environ.get("CHAOS_SEED", "0"))


class Work(SeededConfig):
    steps: int = 5


@stage
def work(config, out, run):
    for step in range(config.steps):
        run.metrics({"loss": 1 / (1 + step)}, step=step)
    run.tags({"posgap.label": "a"})
    (out / "deep").mkdir()
    (out / "result.txt").write_text("kept")
    (out / "deep" / "more.txt").write_text("kept too")
    run.artifact(out)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, empty_store):
    """A proxy in front of a real MLflow server."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, str(folder / "store"), empty_store) as (uri, _), faulty(uri) as proxy:
        yield proxy


@pytest.fixture
def tracked(proxy, monkeypatch, request):
    """The proxy as the tracking server, with an experiment of this test's own."""
    proxy.heal()
    proxy.seen.clear()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    yield proxy
    proxy.heal()


@pytest.fixture
def impatient(monkeypatch):
    """Within the block tracking gives up sooner than for users."""

    @contextmanager
    def block(seconds=1.5):
        soon = RetryPolicy(seconds=seconds, longest_wait=0.2)
        with monkeypatch.context() as patch:
            patch.setattr(runs, "CALL_SECONDS", 1.0)
            patch.setattr(runs, "STAGE", soon)
            patch.setattr(registry, "call_mlflow", partial(server.call_mlflow, retry_policy=soon, seconds=1.0))
            yield

    return block


def recorded() -> list[mlflow.entities.Run]:
    """The runs of this test."""
    return mlflow.search_runs(experiment_names=[server.experiment()[0]], output_format="list")


def assert_whole(run: mlflow.entities.Run, out: Path) -> None:
    """The run says all that `work` had to say, once, and nothing is left to send."""
    assert not files.workspace(out).exists()
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "0", "steps": "5"}
    assert run.data.tags["posgap.stage"] == "work" and run.data.tags["posgap.label"] == "a"
    assert run.data.tags[KEY_TAG] == read_manifest(out)["mlflow_run_key"]
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(step, 1 / (1 + step)) for step in range(5)]
    names = {file.path for file in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)}
    assert names == {"result.txt", "deep", "manifest.json"}
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/deep/more.txt") == "kept too"


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_the_server_does_the_stage_ends_and_its_run_is_complete_in_the_end(
    name, tracked, impatient, tmp_path, caplog
):
    first = random.Random(f"{SEED} {name}").randrange(12)  # of 15 requests or so
    tracked.fault = lambda number, method, path: FAULTS[name] if number >= first else FINE
    with impatient(), caplog.at_level(logging.WARNING, logger="posgap"):
        work(Work(out=tmp_path / "out"))
    assert (tmp_path / "out" / "result.txt").read_text() == "kept"
    assert len(caplog.records) == 1 or name == "delay", first
    assert len(caplog.text.splitlines()) <= 1
    tracked.heal()
    work(Work(out=tmp_path / "out"))  # is complete, and sends what is left
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


def test_a_server_that_errs_now_and_then_is_borne(tracked, tmp_path, caplog):
    draw = random.Random(SEED)
    now_and_then = [FAULTS[name] for name in ("drop before", "drop after", "truncate", "500", "429", "login page")]
    tracked.fault = lambda number, method, path: draw.choice(now_and_then) if draw.random() < 0.3 else FINE
    with caplog.at_level(logging.INFO, logger="posgap"):
        work(Work(out=tmp_path / "out"))
    tracked.heal()
    log_unlogged(tmp_path / "out")
    assert "trying again in" in caplog.text
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


def test_a_login_page_is_no_thanks_for_a_file(tracked, tmp_path):
    pages = iter([FAULTS["login page"]])
    tracked.fault = lambda number, method, path: next(pages, FINE) if method == "PUT" else FINE
    work(Work(out=tmp_path / "out"))
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


def test_a_run_that_the_server_makes_too_late_is_there_once(tracked, impatient, tmp_path):
    creations = iter(range(100))

    def slow(number, method, path):
        return Fault(delay=2.5) if path.endswith("runs/create") and next(creations) == 0 else FINE

    tracked.fault = slow
    with impatient():
        work(Work(out=tmp_path / "out"))
    tracked.closing.wait(3)  # by then the server has made the run that nobody waited for
    work(Work(out=tmp_path / "out"))
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


def test_a_server_that_is_back_gets_what_it_missed_when_the_stage_ends(tracked, impatient, tmp_path, caplog):
    @stage
    def long(config, out, run):
        run.metrics({"loss": 1.0}, step=0)
        tracked.always(FAULTS["drop before"])
        run.tags({"posgap.label": "a"})
        run.metrics({"loss": 0.5}, step=1)
        (out / "early.txt").write_text("early")
        run.artifact(out)
        (out / "early.txt").unlink()
        tracked.heal()

    with impatient(), caplog.at_level(logging.WARNING, logger="posgap"):
        long(Work(out=tmp_path / "out"))
    (record,) = caplog.records
    assert tracked.url in record.getMessage() and "run the command again" in record.getMessage()
    assert not files.workspace(tmp_path / "out").exists()
    (run,) = recorded()
    assert len(mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")) == 2
    assert "early.txt" in {file.path for file in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)}


def test_what_mlflow_never_takes_is_left_out_and_the_rest_is_there(tracked, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="posgap"), start_run("odd", {}, tmp_path / "out") as run:
        run.metrics({"not a name!": 1.0})
        run.metrics({"infinite": float("inf"), "none": float("nan")})
        run.params({"surrogate": "\udcff", "long": "x" * 100_000})
        run.params({"after": 1})
    (record,) = caplog.records
    assert "not a name!" in record.getMessage() and record.getMessage().endswith("left out")
    (there,) = recorded()
    assert there.info.status == "FINISHED" and there.data.params.keys() == {"surrogate", "long", "after"}
    assert {"infinite", "none"} <= there.data.metrics.keys()


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "delay"])
def test_the_registry_s_answer_is_one_line_whatever_the_server_does(name, tracked, impatient):
    tracked.always(FAULTS[name])
    with impatient(), pytest.raises(server.NoAnswer, match="^MLflow at http://127.0.0.1") as told:
        registry.champion("anyone")
    assert "\n" not in str(told.value)
    tracked.heal()
    assert registry.champion("anyone") is None


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from posgap.tracking.runs import start_run

    with start_run("killed", {}, Path(sys.argv[1])) as run:
        run.metrics({"loss": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("mlflow_store")
def test_the_run_of_a_killed_process_is_closed_by_the_next_command(tmp_path):
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), tmp_path / "out"])
    assert process.returncode == -signal.SIGKILL
    (run,) = recorded()
    assert run.info.status == "RUNNING" and run.data.metrics == {"loss": 1.0}
    log_unlogged(tmp_path / "out")
    (run,) = recorded()
    assert run.info.status == "KILLED" and not files.workspace(tmp_path / "out").exists()


def test_a_command_that_is_disturbed_at_any_request_ends_no_run_otherwise(tracked, impatient, tmp_path, monkeypatch):
    tracked.always(FAULTS["500"])
    with impatient():
        work(Work(out=tmp_path / "out"))
    monkeypatch.setattr(runs, "STAGE", RetryPolicy(seconds=0.2, longest_wait=0.1))
    for allowed in range(30):
        first = len(tracked.seen) + allowed
        tracked.fault = lambda number, method, path, first=first: FAULTS["500"] if number >= first else FINE
        work(Work(out=tmp_path / "out"))
        if not files.workspace(tmp_path / "out").exists():
            break
    assert 5 < allowed < 29  # requests before all was sent
    tracked.heal()
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


@pytest.mark.usefixtures("mlflow_store")
def test_what_is_kept_holds_no_password_and_goes_to_the_server_that_is_named_next(tmp_path, monkeypatch, caplog):
    store = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    work(Work(out=tmp_path / "out"))
    (file,) = files.workspace(tmp_path / "out").glob("unlogged/*/run.json")
    assert "secret" not in file.read_text() + caplog.text and "cannot be reached" in caplog.text
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    work(Work(out=tmp_path / "out"))
    (run,) = recorded()
    assert_whole(run, tmp_path / "out")


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}'])
def test_a_record_that_cannot_be_read_is_removed(text, tmp_path):
    file = files.workspace(tmp_path / "out") / "unlogged" / "a" / "run.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    log_unlogged(tmp_path / "out")
    assert not file.parent.exists() and not recorded()


@pytest.mark.usefixtures("mlflow_store")
def test_what_a_run_that_was_deleted_lacks_is_left_out(tmp_path, monkeypatch, caplog):
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), tmp_path / "out"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")
    log_unlogged(tmp_path / "out")
    assert "is left out" in caplog.text and not files.workspace(tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///{}/store.db", "store.db: is not a SQLite database; move it away"),
        ("mysql+nosuch://host/x", "nosuch"),
        ("nosuch://host", "nosuch"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_and_results_are_kept(uri, said, tmp_path, monkeypatch, caplog):
    (tmp_path / "store.db").write_text("this is text, and no database")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(tmp_path))
    with caplog.at_level(logging.WARNING, logger="posgap"):
        work(Work(out=tmp_path / "out"))
    (record,) = caplog.records
    assert said in record.getMessage() and "\n" not in record.getMessage()
    assert (tmp_path / "out" / "result.txt").read_text() == "kept"


def test_a_slow_machine_may_take_longer_to_create_a_store_than_a_stage_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/slow.db")
    create = server.make_ready
    monkeypatch.setattr(server, "make_ready", lambda file: (time.sleep(1), create(file)))
    assert server.call_mlflow(lambda client: client.tracking_uri, RetryPolicy(tries=1, seconds=0.5)).endswith("slow.db")


def first_use(out: Path) -> None:
    with start_run("first", {}, out):
        pass


def test_several_commands_may_be_the_first_to_use_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/mlflow.db")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=first_use, args=(tmp_path / f"out-{n}",)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [run.info.status for run in recorded()] == ["FINISHED"] * 2
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["mlflow.db"]
