"""No command harms a file that it did not make; one writes an output at a time; what a killed one left is healed."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import mlflow
import pytest
from command_line import fails, run
from copy_stage import CopyConfig
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from refusals import refuses
from warm import SERVER
from warm_forks import command

from posgap.cli.main import main
from posgap.foundation import files
from posgap.foundation.errors import BadOutput, PosgapError, Rejection
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.storage.inputs import read_manifest
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make
from posgap.verbs.frame import stage

FORK = multiprocessing.get_context("fork")


@stage
def shout(config, out, run):
    """Writes the text in capitals, on a way that takes as many steps as a real stage's."""
    text = config.source.read_text()
    kept = files.work_folder(config.out)
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "progress").write_text(text)
    (out / "deep").mkdir()
    (out / "deep" / "a.txt").write_text(text.upper())
    files.write_json(out / "b.json", text)
    if text == "refuse":
        raise Rejection("refused")


@pytest.fixture
def config(tmp_path, monkeypatch) -> CopyConfig:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "source.txt").write_text("hello")
    return CopyConfig(source=tmp_path / "source.txt", out=tmp_path / "run" / "out")


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """All that is in a folder: contents of files, targets of links."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


def names(folder: Path) -> set[str]:
    """What is in a folder but for the home of an output that has only its unlogged run, as MLflow does not answer."""
    homes = {home for home in folder.glob(".posgap-*") if [path.name for path in home.iterdir()] == ["unlogged"]}
    return {path.name for path in folder.iterdir() if path not in homes}


# Whose is it?


def test_the_manifest_lists_every_file_with_its_sha256_and_size(config):
    shout(config)
    listed = read_manifest(config.out)["files"]
    assert listed == {
        name: {"sha256": files.digest_path(config.out / name), "size": (config.out / name).stat().st_size}
        for name in ("b.json", "deep/a.txt")
    }


@pytest.mark.parametrize("content", ["thesis.docx", "manifest.json", "deep/thesis.docx", ".hidden"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_somebody_s_files_is_refused_before_any_work(config, content, force, monkeypatch):
    (config.out / content).parent.mkdir(parents=True)
    (config.out / content).write_text('{"stage": "shout"}')
    before = tree(config.out.parent)
    monkeypatch.setattr("posgap.verbs.frame._make", None)
    with refuses(BadOutput, f"({content})"):
        shout(config.model_copy(update={"force": force}))
    assert tree(config.out.parent) == before


def test_a_file_put_into_a_folder_of_posgap_s_is_not_lost(config):
    shout(config)
    (config.out / "notes.txt").write_text("mine")
    before = tree(config.out)
    shout(config)  # complete, reused
    (config.source).write_text("other")
    with refuses(BadOutput, "(notes.txt)"):
        shout(config)
    assert tree(config.out) == before
    (config.out / "notes.txt").unlink()
    (config.out / ".DS_Store").touch()
    shout(config)
    assert (config.out / "deep" / "a.txt").read_text() == "OTHER"


def test_a_folder_of_another_stage_is_refused(config):
    @stage
    def whisper(config, out, run):
        (out / "a.txt").write_text("psst")

    whisper(config)
    with refuses(BadOutput, "whisper"):
        shout(config)
    assert (config.out / "a.txt").read_text() == "psst"


def test_an_empty_folder_may_be_used(config):
    config.out.mkdir(parents=True)
    shout(config)
    assert tree(config.out).keys() == {"b.json", "deep", "deep/a.txt", "manifest.json"}


def test_somebody_s_rejected_folder_is_refused_and_posgap_s_is_replaced(config):
    config.source.write_text("refuse")
    rejected = config.out.with_name("out.rejected")
    for _ in range(2):
        with pytest.raises(Rejection):
            shout(config)
    assert files.read_json(rejected / "rejected.json")["reason"] == "refused"
    assert read_manifest(rejected) == {}
    assert {path.name for path in files.workspace(config.out).iterdir()} == {"work", "unlogged"}
    (rejected / "notes.txt").touch()
    with refuses(BadOutput, "(notes.txt)", at="out.rejected"):
        shout(config)


def test_a_file_put_at_the_output_s_place_meanwhile_is_kept_and_so_is_the_output(config, monkeypatch):
    calls = []

    @stage
    def slow(config, out, run):
        calls.append(1)
        (out / "a.txt").write_text("made")
        config.out.mkdir(parents=True, exist_ok=True)
        (config.out / "theirs.txt").write_text("theirs")

    with refuses(BadOutput, "(theirs.txt)", at="run/out"):
        slow(config)
    assert tree(config.out) == {"theirs.txt": b"theirs"}
    (config.out / "theirs.txt").unlink()
    slow(config)
    assert len(calls) == 1 and tree(config.out).keys() == {"a.txt", "manifest.json"}
    assert names(config.out.parent) == {"out"}


# Where may it be?

PLACES = {
    "": "current folder",
    ".": "current folder",
    "./": "current folder",
    "..": "`..`",
    "../..": "`..`",
    "/": "current folder",
    "sub/..": "`..`",
    "sub/../../cwd": "current folder",
    "none/../x": "none/.. ",
    "file/../x": "file/.. ",
    "../sub": "home folder",
    "source.txt": "`source`",
    "./source.txt": "`source`",
    "../cwd/source.txt": "`source`",
    "source.txt/x": "`source` (source.txt)",
    "file": "",
    "file/x": "Not a directory",
    "link": " sub",
    "dangling": " nowhere",
    "circle": " circle",
    "circle/x": "Symlink loop",
    "a\0b": "",
    "a\nb": "",
    "a\x1b[31mb": "",
    "\udc80": "",
    "a" * 256: "File name too long",
    "a" * 250: "File name too long",
    "a/" * 3000 + "b": "File name too long",
    "out.": "",
    "out ": "",
    "...": "",
    ".posgap-out": " .posgap- ",
    ".posgap-out/x": " .posgap- ",
    "/proc/x": "",
    "/dev/null": "",
    "/dev/null/x": "Not a directory",
    "sub": "(precious)",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with files, links and a folder in it; the home folder is beside it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name in ("sub", "cwd/sub", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("cwd/sub/precious", "cwd/file", "other/precious"):
        (tmp_path / name).write_text("precious")
    (tmp_path / "cwd" / "source.txt").write_text("hello")
    for name, target in {"link": "sub", "dangling": "nowhere", "circle": "circle", "side": "../other"}.items():
        (tmp_path / "cwd" / name).symlink_to(target)
    monkeypatch.setenv("HOME", str(tmp_path / "sub"))
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def placed(out: str) -> CopyConfig:
    """The stage's parameters, with an output that the config itself may refuse."""
    return CopyConfig(source="source.txt", out="out").model_copy(update={"out": Path(out)})


@pytest.mark.parametrize("out", PLACES, ids=lambda out: ascii(out)[:20])
def test_an_impossible_place_is_refused_in_one_line_and_nothing_changes(here, out):
    before = tree(here)
    with refuses(BadOutput, PLACES[out]) as refused:
        shout(placed(out))
    assert len(str(refused.value).splitlines()) == 1
    assert tree(here) == before


@pytest.mark.parametrize(
    ("source", "out", "named"),
    [
        ("in/deep", "in/deep", "`source`"),
        ("in/deep", "in/deep/out", "`source` (in/deep)"),
        ("in/deep", "in", "`source` (in/deep)"),
        ("in/deep", "alias/deep/out", "`source` (in/deep)"),
        ("alias/deep", "in", "`source` (alias/deep)"),
    ],
)
def test_an_output_is_no_input_nor_in_one_nor_around_one(here, source, out, named):
    Path("in/deep").mkdir(parents=True)
    Path("in/deep/a.txt").write_text("a")
    Path("alias").symlink_to("in")
    before = tree(here)
    with refuses(BadOutput, named):
        shout(CopyConfig(source=source, out=out))
    assert tree(here) == before


hostile = st.text(
    st.one_of(st.sampled_from("./ ~*?'\"\\\0\n-a"), st.characters(exclude_categories=())), min_size=0, max_size=12
)


def lies_in(here: Path, name: str) -> bool:
    """Whether a name leads to a place in the folder where links are followed: what is no name leads nowhere."""
    try:
        return os.path.realpath(here / "cwd" / name).startswith(f"{here}/")
    except ValueError:
        return True


@pytest.mark.full
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(parts=["side", "..", "0"])
@given(st.lists(st.one_of(hostile, st.sampled_from(["..", "side", "sub", "link", "file", "circle"])), max_size=4))
def test_whatever_the_output_is_called_nobody_s_file_is_harmed(here, parts):
    """Each ends with an output in its place, or with one line and everything as it was."""
    name = "/".join(parts).lstrip("/")
    assume(os.path.normpath(here / "cwd" / name).startswith(f"{here}/") and lies_in(here, name))
    precious = {path: path.read_text() for name in ("precious", "file") for path in here.rglob(name)}
    before, links = tree(here), {path: os.readlink(path) for path in here.rglob("*") if path.is_symlink()}
    config = placed(name)
    made = None
    try:
        made = Path(shout(config)).resolve()
    except PosgapError as error:
        assert len(str(error).splitlines()) == 1
        assert {path for path, content in tree(here).items() if content is not None} == {
            path for path, content in before.items() if content is not None
        }
    assert {path: path.read_text() for path in precious} == precious
    assert {path: os.readlink(path) for path in links} == links
    assert {path.name for home in here.rglob(".posgap-*") for path in home.iterdir()} <= {"unlogged"}
    if made is not None:
        assert (made / "b.json").read_text() == '"hello"\n' and here in made.parents
        while made.parent not in (here, here / "cwd", here / "other", here / "sub", here / "cwd" / "sub"):
            made = made.parent
        shutil.rmtree(made)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody who may not write")
def test_a_place_that_may_not_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o755)
    os.chmod(tmp_path, 0o755)
    code = (
        "import os, sys; os.setuid(65534)\n"
        "from posgap.cli.main import main\n"
        f"main(['data', 'make', 'kv', '--out', {str(tmp_path / 'closed' / 'x.jsonl')!r}])"
    )
    # The interpreter's packages may be where nobody may read.
    done = FORK.Process(target=exec, args=(code,))
    done.start()
    done.join()
    assert done.exitcode == 2 and list((tmp_path / "closed").iterdir()) == []


def test_a_full_disk_is_refused_before_any_work(config, monkeypatch):
    def full(path, **_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("posgap.foundation.files.flush", full)
    monkeypatch.setattr("posgap.verbs.frame._make", None)
    with pytest.raises(BadOutput, match="No space left on device"):
        shout(config)
    assert not list(config.out.parent.iterdir())


# Single files


def test_a_file_is_left_where_it_is_the_same_and_kept_where_it_is_another(capsys, tmp_path):
    out = tmp_path / "kv.jsonl"
    data_make(MakeConfig(kind="kv", out=out, n_examples=2))
    made, inode = out.read_bytes(), out.stat().st_ino
    data_make(MakeConfig(kind="kv", out=out, n_examples=2))
    assert out.stat().st_ino == inode
    words = ["data", "make", "kv", "--out", out, "--n-examples", 3]
    assert f"{out}: was not written by this command; --force replaces it" in fails(capsys, *words)
    assert out.read_bytes() == made
    assert run(capsys, *words, "--force")[0] == 0 and out.read_bytes().count(b"\n") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["kv.jsonl"]


def test_a_file_takes_the_place_of_no_folder_and_no_link_and_not_of_its_input(tmp_path):
    data_make(MakeConfig(kind="kv", out=tmp_path / "kv.jsonl", n_examples=2))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("kv.jsonl")
    before = tree(tmp_path)
    for name, named in {
        "folder": "",
        "link": "kv.jsonl",
        "kv.jsonl": "`input`",
        "kv.jsonl/x": "`input` (",
    }.items():
        with refuses(BadOutput, named):
            data_import(ImportConfig(input=tmp_path / "kv.jsonl", out=tmp_path / name, force=True))
    with refuses(BadOutput, "/dev/null"):
        data_make(MakeConfig(kind="kv", out="/dev/null", force=True))
    assert tree(tmp_path) == before


@pytest.mark.full
def test_a_compiled_pipeline_gives_way_to_the_next_and_other_files_do_not(capsys, tmp_path):
    out = tmp_path / "pipeline.yaml"
    assert run(capsys, "pipeline", "compile", "--out", out)[0] == 0
    compiled = out.read_text()
    out.write_text(compiled.replace("description: sweeps", "description: swept", 1))
    assert run(capsys, "pipeline", "compile", "--out", out)[0] == 0 and out.read_text() == compiled
    out.write_text("name: somebody's\n")
    assert "--force replaces it" in fails(capsys, "pipeline", "compile", "--out", out)
    assert out.read_text() == "name: somebody's\n"
    assert run(capsys, "pipeline", "compile", "--out", out, "--force")[0] == 0 and out.read_text() == compiled


@pytest.mark.parametrize(
    "words",
    [["demo", "--smoke"], ["pipeline", "run"]],
    ids=lambda words: words[0],
)
def test_a_run_s_folder_holds_nothing_else(capsys, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("mine")
    assert "it holds what posgap did not write (summary.json)" in fails(capsys, *words, "--out", "out")
    assert tree(tmp_path) == {"out": None, "out/summary.json": b"mine"}


# One writer


def writing(config: CopyConfig, started: Path) -> None:
    @stage
    def shout(config, out, run):
        started.touch()
        time.sleep(600)

    shout(config)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_output_that_is_being_written_is_refused_until_its_writer_is_dead(config, tmp_path):
    writer = FORK.Process(target=writing, args=(config, tmp_path / "started"))
    writer.start()
    try:
        wait_for(tmp_path / "started")
        before = tree(config.out.parent)
        with refuses(BadOutput, f"process {writer.pid} "):
            shout(config)
        assert tree(config.out.parent) == before
    finally:
        writer.kill()
        writer.join()
    shout(config)
    assert names(config.out.parent) == {"out"}


@pytest.mark.full
def test_of_many_commands_at_once_each_makes_the_output_or_is_refused(config):
    @stage
    def shout(config, out, run):
        os.close(os.open(config.source.with_name("busy"), os.O_CREAT | os.O_EXCL))
        time.sleep(0.05)
        (out / "a.txt").touch()
        config.source.with_name("busy").unlink()

    def attempt(results):
        try:
            shout(config.model_copy(update={"force": True}))
            results.put("made")
        except PosgapError as error:
            results.put(str(error))

    results = FORK.Queue()
    writers = [FORK.Process(target=attempt, args=(results,)) for _ in range(12)]
    for writer in writers:
        writer.start()
    ends = [results.get(timeout=120) for _ in writers]
    for writer in writers:
        writer.join()
    assert "made" in ends and all(end == "made" or "is writing it" in end for end in ends), ends
    assert names(config.out.parent) == {"out"}
    assert tree(config.out).keys() == {"a.txt", "manifest.json"}


# Killed

STEPS = ("replace", "mkdir", "unlink", "rmdir", "fsync", "open")


def dying(config: CopyConfig, step: int, done: Path) -> None:
    """Runs the stage and is killed before its `step`th change to the disk, if it makes so many."""
    count = 0

    def counted(call):
        def wrapper(*arguments, **named):
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapper

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    shout(config)
    os.close(os.open(done, os.O_CREAT))


def run_and_die(config: CopyConfig, step: int, done: Path) -> None:
    process = FORK.Process(target=dying, args=(config, step, done))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)


@pytest.mark.nightly
def test_a_kill_at_any_disk_change_leaves_the_old_output_and_the_next_run_heals(config, tmp_path):
    """Every moment at which the disk changes, one after the other, until a run gets through."""
    shout(config)
    old = {name: content for name, content in tree(config.out).items() if name != "manifest.json"}
    config.source.write_text("other")
    new = {**old, "b.json": b'"other"\n', "deep/a.txt": b"OTHER"}
    for step in range(1, 400, 2):
        shutil.rmtree(config.out.parent)
        config.source.write_text("hello")
        shout(config)
        config.source.write_text("other")
        run_and_die(config, step, tmp_path / "done")
        aside = config.out.parent / ".posgap-out" / "old-out"
        there = tree(config.out if config.out.exists() else aside)
        there.pop("manifest.json")
        assert there in (old, new), step
        if (tmp_path / "done").exists():
            break
        if there == new and config.out.exists():
            shout(config)  # complete, reused
            assert names(config.out.parent) == {"out"}, step
        config.source.write_text("hello")
        shout(config)  # finds the old one, wherever it is, or makes it again
        assert {n: c for n, c in tree(config.out).items() if n != "manifest.json"} == old, step
        config.source.write_text("other")
        shout(config)
        assert {n: c for n, c in tree(config.out).items() if n != "manifest.json"} == new, step
        assert names(config.out.parent) == {"out"}, step
    assert step > 30


def test_an_output_whose_files_were_changed_is_made_again_and_a_line_says_why(config, caplog):
    shout(config)
    changes = {
        "b.json has 2 bytes, not 8": lambda: (config.out / "b.json").write_text("{}"),
        "b.json has 0 bytes, not 8": lambda: os.truncate(config.out / "b.json", 0),
        "deep/a.txt is missing": lambda: (config.out / "deep" / "a.txt").unlink(),
        "its inputs, parameters or version were others": lambda: config.source.write_text("salut"),
    }
    for reason, change in changes.items():
        change()
        with caplog.at_level("INFO", logger="posgap"):
            shout(config)
        assert f"shout: {config.out} is made again: {reason}" in caplog.text
        caplog.clear()
    assert (config.out / "deep" / "a.txt").read_text() == "SALUT"


def test_the_run_that_a_killed_command_left_open_is_closed(config, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    writer = FORK.Process(target=writing, args=(config, tmp_path / "started"))
    writer.start()
    wait_for(tmp_path / "started")
    writer.kill()
    writer.join()

    def ended() -> list[str]:
        runs = mlflow.search_runs(experiment_names=["posgap"], output_format="list", order_by=["start_time"])
        return [run.info.status for run in runs]

    assert ended() == ["RUNNING"]
    shout(config)
    assert ended() == ["KILLED", "FINISHED"]


@pytest.mark.full
def test_a_command_killed_at_any_time_is_healed_by_the_next(config, tmp_path):
    """The command itself, with all that it starts, at moments within the time that it takes."""
    words = ["rollout", "predict", "--sequence-length", "16", "--layers", "2", "--heads", "1", "--force"]
    words += ["--out", str(config.out)]

    def ended(log: Path, seconds: float | None = None) -> int:
        process = SERVER.Process(target=command, args=(words, log, dict(os.environ)))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return process.exitcode

    assert ended(tmp_path / "first.log") == 0  # with the time that it may take until processes can be started
    began = time.monotonic()
    assert ended(tmp_path / "second.log") == 0
    before, seconds = tree(config.out).keys(), time.monotonic() - began
    draw, killed = random.Random(0), 0
    for _ in range(4):
        killed += ended(tmp_path / "killed.log", draw.uniform(0, seconds)) == -signal.SIGKILL
        assert config.out.exists() or (files.workspace(config.out) / "old-out").exists()
    assert ended(tmp_path / "last.log") == 0
    assert "done in" in (tmp_path / "last.log").read_text() and killed
    assert tree(config.out).keys() == before and names(config.out.parent) == {"out"}
    assert json.loads((config.out / "manifest.json").read_text())["files"].keys() == before - {"manifest.json"}


# verify


def shown(capsys, *words) -> tuple[int, list[str], str]:
    """Exit code, the lines on standard output, and the last one on the other."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out.splitlines(), said.err.splitlines()[-1]


def test_verify_names_every_file_that_is_not_as_its_manifest_says(config, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shout(config)
    last = tmp_path / "run" / "last"
    shout(CopyConfig(source=config.out / "deep" / "a.txt", out=last))
    other = tmp_path / "run" / "other"
    shout(CopyConfig(source=last / "b.json", out=other))
    code, faults, summary = shown(capsys, "verify", config.out, last, other)
    assert (
        (code, faults) == (0, [])
        and "12 files" in summary
        and "of 3 outputs: everything matches its manifest" in summary
    )
    (config.out / "b.json").write_text('"HELLO"\n')
    (config.out / "deep" / "a.txt").write_text("HELLO!")
    (config.out / "more.txt").touch()
    (config.out / ".hidden").touch()
    (last / "deep" / "a.txt").unlink()
    config.source.unlink()
    code, faults, summary = shown(capsys, "verify", "run/out", last)
    assert code == 1 and summary.startswith("posgap: error: 5 faults in ")
    sha256 = files.digest_path(config.out / "b.json")
    assert faults == [
        "run/out/more.txt: is not in the manifest",
        f"run/out/b.json: has other content, of sha256 {sha256}",
        "run/out/deep/a.txt: has 6 bytes, not 5",
        f"{last}/deep/a.txt: is missing",
        f"{last}: `source`: {config.out}/deep/a.txt has other content now than when this was made",
    ]
    for place, complaint in ((tmp_path, "manifest.json"), ("none", "none")):
        code, faults, summary = shown(capsys, "verify", place)
        assert code == 2 and complaint in summary


def test_verify_follows_the_chain_of_inputs(config, tmp_path, capsys):
    shout(config)

    @stage
    def of_folder(config, out, run):
        (out / "a.txt").write_text((config.source / "b.json").read_text())

    last = of_folder(CopyConfig(source=config.out, out=tmp_path / "last"))
    (config.out / "b.json").write_text('"HELLO"\n')
    code, faults, _ = shown(capsys, "verify", last)
    assert code == 1 and [fault.partition(": ")[0] for fault in faults] == [str(last), str(config.out / "b.json")]
    shutil.rmtree(config.out)
    assert shown(capsys, "verify", last)[:2] == (0, [])
