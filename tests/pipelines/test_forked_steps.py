"""Steps of a local pipeline run that begin as forks of one server."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import warm  # noqa: F401  as there, its libraries are those of a run

from posgap.foundation.errors import TerminationSignal
from posgap.foundation.interruption import raise_on_termination
from posgap.pipelines import LIBRARIES, forked_steps

pytestmark = pytest.mark.full
SCRIPT = "python3 -m kfp.dsl.executor_main"


@pytest.fixture
def run(tmp_path, capsys):
    """Runs a component with this body, which takes and returns nothing; returns how it ended and what it printed."""

    def run(body: str, **environment: str) -> tuple[int, str]:
        request = ["--executor_input", json.dumps({"outputs": {"outputFile": str(tmp_path / "out" / "output.json")}})]
        code = f"def work():\n    {body}\n"
        ended = forked_steps.run(["sh", "-ec", SCRIPT, code, *request, "--function_to_execute", "work"], environment)
        return ended, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("raise OSError('no')", marks=pytest.mark.nightly),
        pytest.param("import sys; sys.exit(3)", marks=pytest.mark.nightly),
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_a_step_that_does_not_reach_its_end_has_failed(run, body):
    ended, shown = run(f"print('began'); {body}")
    assert ended == 1 and "began\n" in shown and ("SIGKILL" in shown) == ("os.kill" in body)
    assert ("OSError: no\n" in shown) == ("OSError" in body)


def test_a_step_sees_only_its_run_s_environment_and_folder_and_the_libraries(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONG", "x" * 100_000)
    imported = f"print([name in sys.modules for name in {LIBRARIES}], 'posgap.options.validate' in sys.modules)"
    ended, shown = run(
        f"import os, sys; print(len(os.environ['LONG']), os.environ['MORE'], os.getcwd()); {imported}",
        MORE="ü",
    )
    assert ended == 0 and f"100000 ü {tmp_path}\n{[True] * len(LIBRARIES)} False\n" in shown


def test_a_step_finds_modules_where_its_run_does(run, tmp_path):
    (tmp_path / "added_later.py").write_text("NAME = 'of the run'")
    ended, shown = run("import added_later; print(added_later.NAME)", PYTHONPATH=f"{tmp_path}:/nowhere")
    assert ended == 0 and "of the run\n" in shown


def test_what_a_step_leaves_to_its_end_is_done(run, tmp_path):
    """A thread that is not waited for, then what is registered with `atexit`, and text that was not written yet."""
    thread = "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()"
    ended, shown = run(f"import atexit, threading, time; atexit.register(print, 'at exit'); {thread}; print('body')")
    assert ended == 0 and [line for line in shown.split("\n") if not line.startswith("[")][-4:] == [
        *("body", "thread", "at exit", "")
    ]


def test_sigterm_ends_the_steps_of_every_thread_and_no_other_one_begins(run, monkeypatch):
    """As of a loop, whose threads KFP waits for."""
    before = signal.getsignal(signal.SIGTERM)
    raise_on_termination()
    try:
        with pytest.raises(TerminationSignal), forked_steps.forked_steps(), ThreadPoolExecutor(1) as pool:
            sleeping = pool.submit(run, "import time; time.sleep(600)")
            while not forked_steps._RUNNING:
                time.sleep(0.01)
            later = pool.submit(run, "print('began')")
            signal.raise_signal(signal.SIGTERM)
        assert sleeping.result()[0] == later.result()[0] == 1 and "began" not in later.result()[1]
        with forked_steps.forked_steps():
            assert run("print('began')")[0] == 0, "of the next run"
    finally:
        signal.signal(signal.SIGTERM, before)
