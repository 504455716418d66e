"""Every verb with values and files that nobody would give it: it ends with a documented exit code, and in one line.

`CHAOS_FUZZ_SECONDS` says how long each test goes on with other ones; without it a few are tried, the same each time.
"""

import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from command_line import below
from examples import kv_example
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from posgap.cli.main import build, main
from posgap.data.reading import write_examples
from posgap.foundation.files import write_json, write_jsonl

pytestmark = pytest.mark.full

SECONDS = float(os.environ.get("CHAOS_FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "0"))
MAX_SHOWN = 120  # seconds of a command; the slowest takes ten on a busy machine
SECRET = "hunter22"
# What trains for minutes or asks other machines once its options are right: one option is always wrong.
NEVER_RIGHT = {"demo", "rollout experiment", "pipeline run", "pipeline submit", "train-job"}
NEVER_RIGHT |= {"pipeline schedule"}
HOSTILE = {
    "integer": ["-1", "0", "1", "2", "5", "4294967296", "1" + "0" * 30, "9" * 5000, "1.5", "x", "", "nan"],
    "float": ["-1", "0", "0.5", "1", "5", "nan", "inf", "-inf", "1e308", "1e-308", "1e999", "x", "", "9" * 5000],
    "text": ["1+1", "9/0", "a=b", "", "x", "1", "1,2", "0,-1", "nan", "../x", "' or 1=1 --", "a\nb", "a\udcff", "[NaN]",
             "\u202e\u0000", "x" * 3000, "[" * 9999, "{", '{"a": 1}', "s3:/", "s3://", f"http://u:{SECRET}@127.0.0.1:9"],
}  # fmt: skip


def verbs(group: click.Group, above: str = "") -> dict[str, click.Command]:
    """Every command by what is typed for it."""
    leaves: dict[str, click.Command] = {}
    for name, command in below(group).items():
        words = f"{above} {name}".strip()
        leaves |= verbs(command, words) if isinstance(command, click.Group) else {words: command}
    return leaves


VERBS = verbs(build())
# Parameters that are paths, and of which of the valid ones they want.
PATHS = {"examples": "examples", "input": "examples", "exclude": "examples", "data_train": "examples",
         "data_eval": "examples", "targets": "examples", "data": "examples", "texts": "text", "model": "model",
         "base_model": "model",
         "sweep": "sweep", "sweeps": "sweep", "base": "sweep", "candidate": "sweep", "champion": "sweep",
         "folder": "gate", "folders": "sweep", "gate": "gate", "responses": "responses", "scaling": "scaling",
         "measurement": "measurement", "prediction": "prediction", "work": "sweep", "prefix": "sweep",
         "like": "sweep", "file": "examples"}  # fmt: skip


@pytest.fixture(scope="module")
def valid(tmp_path_factory, model_folder, empty_store) -> dict[str, Path]:
    """What verbs read as it should be, by name: examples, a model, and folders that stages wrote."""
    folder = tmp_path_factory.mktemp("valid")
    examples, text = folder / "examples.jsonl", folder / "text.txt"
    write_examples(examples, [kv_example(i) for i in range(3)])
    text.write_text("0123456789abcdef" * 8)
    prompts = ["--examples", examples, "--model", model_folder, "--n-docs", 3, "--max-new-tokens", 1]
    runs = {
        "sweep": ["sweep", *prompts],
        "measurement": ["rollout", "measure", "--texts", text, "--model", model_folder, "--length", 8],
        "responses": ["teacher", *prompts, "--advantageous", 1, "--keep-incorrect"],
        "scaling": ["scale", "search", *prompts, "--metric", "contains_any", "--population", 3, "--generations", 1],
        "gate": ["gate", "--candidate", folder / "sweep", "--base", folder / "sweep", "--max-unanswered", "50"],
    }
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        for name, words in runs.items():
            code, shown = typed([*words, "--out", folder / name])
            assert code == (3 if name == "gate" else 0), shown  # its answers are cut at one token
    return {"examples": examples, "text": text, "model": model_folder} | {name: folder / name for name in runs}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> list[str]:
    """Files and folders that are not what they are taken for, and names of nothing."""
    folder = tmp_path_factory.mktemp("hostile")
    names = ("sweep", "gate", "scaling", "measurement", "prediction", "manifest", "config", "comparison")
    contents = {
        "empty": "",
        "object": "{}",
        "list": "[]",
        "deep": "[" * 99_999,
        "digits": "9" * 5000,
        "nan": '{"a": NaN}',
    }
    for kind, text in contents.items():
        (folder / kind).mkdir()
        for file in [*(f"{name}.json" for name in names), "predictions.jsonl", "responses.jsonl", "examples.jsonl.gz"]:
            (folder / kind / file).write_text(text)
        (folder / f"{kind}.jsonl").write_text(f"{text}\n")
        (folder / f"{kind}.json").write_text(text)
    (folder / "bytes.jsonl.gz").write_bytes(bytes(range(256)))
    (folder / "surrogate.jsonl").write_text('{"id": "\\ud800"}\n')
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "bare").mkdir()
    os.mkfifo(folder / "pipe")
    strange = ["/dev/null", "/dev/zero", "/", ".", "", "run/none", "a\0b", "a\udcff", "x" * 300]
    return [*sorted(map(str, folder.iterdir())), str(folder / "nothing"), *strange]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder to write to, where nothing outside of this machine is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("KFP_HOST", "KF_PIPELINES_ENDPOINT", "POSGAP_WEBHOOK_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(words: list) -> tuple[int, str]:
    """The exit code of a command, and what it showed on either stream."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0, shown.getvalue()


@contextlib.contextmanager
def limited(seconds: int, what: str) -> Iterator[None]:
    """Fails where the block takes longer."""

    def stop(*_):
        pytest.fail(f"{what} did not end in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(words: list) -> int:
    """Types a command, which must end as the head of cli.py says: with a code it knows, and one line where it fails.
    Returns the code."""
    command = " ".join(repr(str(word))[:200] for word in words)
    with limited(MAX_SHOWN, command):
        code, shown = typed(words)
    errors = [line for line in shown.splitlines() if line.startswith("posgap: ")]
    account = f"{command} ended with {code}:\n{shown[-3000:]}"
    assert not any(bad in shown for bad in ("Traceback", "internal error", SECRET)), account
    assert code in (0, 2, 3, 7) or (code == 1 and (words[0] == "verify" or words[:2] == ["pipeline", "lint"])), account
    assert len(errors) == (code != 0) or words[0] == "verify", account
    return code


def again_and_again(attempt: Callable[[st.DataObject], None], times: int) -> None:
    """Calls `attempt` with what it draws from: so many times, the same each time, or with others for so long."""
    few = settings(
        max_examples=times,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    end = time.monotonic() + SECONDS
    if not SECONDS:
        few(given(st.data())(attempt))()
    draw = random.Random(SEED)
    while time.monotonic() < end:
        settings(few, derandomize=False)(seed(draw.getrandbits(64))(given(st.data())(attempt)))()


def values_of(
    parameter: click.Parameter, valid: dict[str, Path], hostile: list[str], verb: str
) -> st.SearchStrategy[str]:
    if parameter.name in PATHS:
        # It looks through all that is below.
        below = [path for path in hostile if path != "/" or verb != "verify"]
        right = st.just(str(valid[PATHS[parameter.name]]))
        return right | right | st.sampled_from(below) | st.sampled_from([str(path) for path in valid.values()])
    if isinstance(parameter.type, click.Choice):
        return st.sampled_from([*parameter.type.choices, "x", ""])
    return st.sampled_from(HOSTILE.get(parameter.type.name, HOSTILE["text"]))


def test_any_verb_with_any_values_ends_in_one_line(valid, hostile, elsewhere, record_property):
    ends: list[int] = []
    numbers = iter(range(10**9))

    def attempt(data):
        verb = data.draw(st.sampled_from(sorted(VERBS)))
        words: list[str] = verb.split()
        for parameter in VERBS[verb].params:
            if parameter.name == "out":
                words += ["--out", str(elsewhere / f"out-{next(numbers)}")]
                continue
            if not parameter.required and not data.draw(st.sampled_from([False, False, False, True])):
                continue
            value = data.draw(values_of(parameter, valid, hostile, verb))
            if isinstance(parameter, click.Argument):
                words.append(value)
            elif parameter.is_flag:
                words.append(parameter.opts[0])
            else:
                words.append(f"{parameter.opts[0]}={value}")
        ends.append(ends_well([*words, *(["--no-such-option"] if verb in NEVER_RIGHT else [])]))

    again_and_again(attempt, 100)
    record_property("commands", len(ends))


# What reads a folder, and how: {} is the folder whose file is not as it was written.
READERS = {
    "sweep/sweep.json": ["compare {} {sweep}", "merge {}", "gate --candidate {} --base {sweep}",
                         "plan sweep --sweep {}", "report --sweeps {}",
                         "teacher --examples {examples} --model {model} --sweep {} --n-docs 3 --max-new-tokens 1",
                         "rollout predict --measurement {measurement} --sweep {}",
                         "promote --model {model} --gate {gate} --sweep {} --name x"],
    "sweep/predictions.jsonl": ["compare {} {sweep}", "merge {}", "gate --candidate {sweep} --base {}"],
    "sweep/manifest.json": ["compare {} {sweep}", "gate --candidate {} --base {sweep}"],
    "measurement/measurement.json": ["rollout predict --measurement {} --encoding measured --residual measured",
                                     "rollout predict --measurement {} --content heads"],
    "scaling/scaling.json": ["apply --model {model} --found {}"],
    "gate/gate.json": ["promote --model {model} --gate {} --sweep {sweep} --name x", "verify {}"],
    "responses/responses.jsonl": ["distill --examples {examples} --model {model} --responses {} --epochs 1 --k 1"],
}  # fmt: skip
ODD = [None, True, -1, 0, 1, 10**18, 1e308, -0.5, "", "x", "\u202e", [], {}, [[]], [None], {"a": {}}, "1+2", [1] * 50]
GONE = object()


def ways(value: object, before: tuple = ()) -> list[tuple]:
    """The way to each part of a JSON value, as keys and indices."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(way for key, part in inner for way in ways(part, (*before, key)))]


def changed(value, way: tuple, to: object):
    """The value with another part at the end of a way, or without that part."""
    if not way:
        return to
    value = copy.deepcopy(value)
    part = value
    for key in way[:-1]:
        part = part[key]
    if to is GONE:
        del part[way[-1]]
    else:
        part[way[-1]] = to
    return value


def test_a_file_that_is_not_as_it_was_written_is_refused_in_one_line(valid, elsewhere, record_property):
    ends: list[int] = []
    numbers = iter(range(10**9))
    commands = [(file, reader) for file, readers in READERS.items() for reader in readers]

    def attempt(data):
        file, reader = data.draw(st.sampled_from(commands))
        folder, name = file.split("/")
        there, out = elsewhere / f"in-{next(numbers)}", elsewhere / f"out-{next(numbers)}"
        there.mkdir()
        for each in valid[folder].iterdir():
            if each.name != name:
                (there / each.name).symlink_to(each)
        text = (valid[folder] / name).read_text()
        in_lines = name.endswith(".jsonl")
        content = [json.loads(line) for line in text.splitlines()] if in_lines else json.loads(text)
        for _ in range(data.draw(st.integers(1, 3))):
            way = data.draw(st.sampled_from(ways(content)))
            content = changed(content, way, data.draw(st.sampled_from([*ODD, GONE] if way else [[], {}])))
        if isinstance(content, list) and in_lines:
            write_jsonl(there / name, [row if isinstance(row, dict) else {"row": row} for row in content])
        else:
            write_json(there / name, content)
        words = reader.replace("{}", str(there)).format(**valid).split()
        ends.append(ends_well([*words, *([] if words[0] == "plan" or words[0] == "verify" else ["--out", out])]))

    again_and_again(attempt, 40)
    record_property("commands", len(ends))
