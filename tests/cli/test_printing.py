"""What every verb prints: with `--json` one document and nothing else, with `--quiet` no progress; and colours."""

import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command_line import below
from places import ROOT

from posgap.cli import main as cli
from posgap.cli.main import build, example_command, main
from posgap.foundation import errors, printing, tables
from posgap.foundation.errors import Findings, GateRefusal, PosgapError, Rejection
from posgap.foundation.locations import is_uri
from posgap.foundation.printing import Lines, NoteFormatter, join_lines, show
from posgap.foundation.progress import track
from posgap.options.table import SECTIONS, VERBS
from posgap.tracking.runs import _texts

log = logging.getLogger("posgap.test")


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return (ended.value.code or 0, *capsys.readouterr())


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Replaces every verb's work by what says a lot, and has a result where its verb says that it has."""
    monkeypatch.chdir(tmp_path)
    raised: list[Exception] = []

    def function(words: str):
        verb = VERBS[words]

        def say(config):
            print("a library greets")
            log.info("a note")
            log.warning("a warning")
            list(track(range(2), 2, "progress"))
            if verb.results:
                folder = Path(f"{config.out}.rejected" if raised and isinstance(raised[0], Rejection) else config.out)
                folder.mkdir(parents=True)
                (folder / verb.results[0]).write_text('{"made": true}')
                log.log(printing.RESULT, "the result")
            else:
                printing.show("the result", {"made": True})
            if raised:
                raise raised[0]

        return say

    monkeypatch.setattr(cli, "_work_of", function)
    return raised


ON_DISK = [words for words, verb in VERBS.items() if not (verb.results and is_uri(verb.example.split()[-1]))]


@pytest.mark.parametrize("words", ON_DISK)
def test_a_verb_s_result_is_one_json_document_and_nothing_else(words, work, capsys):
    code, out, err = run(capsys, *shlex.split(example_command(words))[1:], "--json")
    assert code == 0, err
    assert json.loads(out) == {"made": True} and "a library greets" in err and "a note" in err


GREETING = """
import ctypes, subprocess
from posgap.cli import main as cli
from posgap.foundation import errors, printing, tables
def work(config):
    subprocess.run(["echo", "a child greets"], check=True)
    ctypes.CDLL(None).puts(b"a library greets")
    printing.show("the result", {"made": 100_000 * "x"})
cli._work_of = lambda verb: work
cli.main(["doctor", "--json"])
"""


@pytest.mark.full
def test_the_document_stands_alone_whoever_writes_to_the_descriptor_itself():
    command = [sys.executable, "-c", GREETING]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"made": 100_000 * "x"}
    assert sorted(done.stderr.splitlines()) == ["a child greets", "a library greets"]
    for closed, printed in (("2>&-", done.stdout), ("| head -c 1", "{")):
        ended = subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *command], capture_output=True, text=True)
        assert ended.stdout == printed and "internal error" not in ended.stderr


REFUSAL = """
import os, sys
from posgap.cli import main as cli
from posgap.foundation import errors, printing, tables
from posgap.foundation.errors import GateRefusal
def work(config):
    with open(sys.argv[1], "w") as file:
        printing.show("refused", {})
        print("refused", printing.colour_word("refused", sys.stdout), file=sys.stderr)
        os.write(1, b"of a library")
        os.write(2, b"of a library")
        file.write("whole")
    raise GateRefusal("no")
cli._work_of = lambda verb: work
cli.main(["doctor"])
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_exit_code_and_gets_nobody_else_s_descriptor(tmp_path, closed):
    file = tmp_path / "output"
    command = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", REFUSAL, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert file.read_text() == "whole"


@pytest.mark.parametrize("words", VERBS)
def test_what_a_verb_refuses_is_one_json_document_too(words, capsys):
    code, out, err = run(capsys, *words.split(), "--json", "--colour", "red")
    told = {"error": err.removeprefix("posgap: error: ").strip(), "exit_code": 2}
    assert (code, json.loads(out)) == (2, told | {"code": json.loads(out)["code"]})
    assert "No such option '--colour'" in err


def test_a_pipe_that_nobody_reads_ends_a_command_quietly():
    command = f"{Path(sys.executable).with_name('posgap')} policy | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        ("gate", GateRefusal("no"), 3),
        ("verify", Findings("no"), 1),
        ("validate", Rejection("no"), 2),
        ("sweep", PosgapError("no"), 2),
    ],
)
def test_a_refusal_prints_its_result_and_other_errors_never_an_earlier_one(words, error, code, work, capsys):
    work.append(error)
    ended, out, err = run(capsys, *shlex.split(example_command(words))[1:], "--json")
    assert ended == code and err.endswith("posgap: no\n" if words == "gate" else "posgap: error: no\n")
    assert json.loads(out) == (
        {"error": "no", "code": "bad-input", "exit_code": 2} if words == "sweep" else {"made": True}
    )


def test_json_is_asked_for_by_the_environment_too_and_only_once(work, capsys, monkeypatch):
    monkeypatch.setenv("POSGAP_DOCTOR_JSON", "1")
    assert json.loads(run(capsys, "doctor")[1]) == {"made": True}
    monkeypatch.delenv("POSGAP_DOCTOR_JSON")
    assert run(capsys, "doctor")[1] == "a library greets\nthe result\n"


@pytest.mark.parametrize("words", ["doctor", "merge"])
@pytest.mark.parametrize("quiet", [[], ["-q"], ["--quiet"]])
def test_quiet_leaves_the_result_and_errors(words, quiet, work, capsys, monkeypatch):
    work.append(PosgapError("no"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, err = run(capsys, *shlex.split(example_command(words))[1:], *quiet)
    assert "the result" in out + err and "posgap: error: no" in err
    for more in ("a note", "a warning", "progress"):
        assert (more in err) == (not quiet)


def test_colours_are_for_terminals_alone_and_not_where_nobody_wants_them(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(capsys, "sweeep")[2].startswith("posgap: error: No such command")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(capsys, "sweeep")[2].startswith("posgap: \x1b[31merror:\x1b[0m No such command")
    assert printing.colour_word("admitted", sys.stderr) == "\x1b[32madmitted\x1b[0m"
    assert printing.colour_word("fail   ", sys.stderr) == "\x1b[31mfail   \x1b[0m"
    assert printing.colour_word("unsure", sys.stderr) == "unsure"
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(capsys, "sweeep")[2].startswith("posgap: error: ")


def from_python(capsys, quiet: bool = False) -> str:
    """What standard error has of some work that is called from Python."""
    with printing.from_python(quiet):
        log.info("a note")
        log.warning("a warning with token=abcdefghijkl")
        list(track(range(2), 2, "progress"))
    return capsys.readouterr().err


def plain_logging(monkeypatch) -> logging.Logger:
    """posgap's logger where logging is as a new process has it, without pytest's own handlers."""
    posgap = logging.getLogger("posgap")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(posgap, "handlers", [])
    monkeypatch.setattr(posgap, "level", logging.NOTSET)
    posgap.manager._clear_cache()
    return posgap


def test_a_call_from_python_shows_notes_and_progress_and_leaves_logging_as_it_was(capsys, monkeypatch):
    logger = plain_logging(monkeypatch)
    note, warning, progress = from_python(capsys).splitlines()
    assert (note, warning) == ("posgap | a note", "posgap | a warning with token=***")
    assert progress.startswith("posgap | progress: 2 of 2 in 00:00")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.NOTSET, True)
    log.info("afterwards")
    assert capsys.readouterr().err == ""


def test_a_call_from_python_shows_a_bar_on_a_terminal(capsys, monkeypatch):
    plain_logging(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "progress: 100%" in from_python(capsys)


def test_a_quiet_call_from_python_or_one_without_standard_error_shows_no_progress(capsys, monkeypatch):
    plain_logging(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "a note" not in (err := from_python(capsys, quiet=True)) and "progress" not in err
    monkeypatch.setattr(sys, "stderr", None)
    assert from_python(capsys) == ""


def test_the_first_process_of_a_launch_alone_shows_progress(capsys, monkeypatch):
    plain_logging(monkeypatch)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "progress" not in from_python(capsys)


def test_whoever_configured_the_logger_has_its_lines_there_and_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    logger, stream = plain_logging(monkeypatch), io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))
    logger.setLevel(logging.INFO)
    assert from_python(capsys) == ""
    assert [line[:6] for line in stream.getvalue().splitlines()] == ["a note", "a warn", "progre"]


@pytest.mark.parametrize(("level", "above"), [(logging.INFO, 3), (logging.WARNING, 0)])
def test_a_line_that_the_program_s_own_logging_shows_is_shown_once(level, above, capsys, monkeypatch):
    """As in Colab, whose root logger has a handler before anybody configured anything."""
    plain_logging(monkeypatch)
    root, stream = logging.getLogger(), io.StringIO()
    root.addHandler(logging.StreamHandler(stream))
    monkeypatch.setattr(root, "level", level)
    root.manager._clear_cache()
    err = from_python(capsys)
    assert (len(stream.getvalue().splitlines()), len(err.splitlines())) == (above, 3 - above)


def test_help_lists_every_verb_once_under_a_heading_and_ends_each_with_its_example():
    root = build()
    shown = CliRunner().invoke(root, ["--help-all"], prog_name="posgap").output
    rows = [line.split()[0] for line in shown.partition("\nMeasure:\n")[2].splitlines() if re.match(r"  \S", line)]
    assert (
        "..." not in shown.partition("\nMeasure:\n")[2]
        and sorted(rows) == sorted(below(root))
        and [*SECTIONS]
        == [line[:-1] for line in shown.splitlines() if line[:1].strip() and line.endswith(":") and line != "Options:"]
    )
    for words in VERBS:
        verb = root
        for word in words.split():
            verb = below(verb)[word]
        assert verb.get_help(click.Context(verb)).endswith(f"\n\n  Example:\n    {example_command(words)}")


COMPLETED = """
source <(_POSGAP_COMPLETE=bash_source posgap)
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _posgap_completion posgap; echo ${COMPREPLY[*]}; }
ask posgap sw
ask posgap gate --js
ask posgap sweep --config nowhere.yaml --question ''
ask posgap data make ''
"""


@pytest.mark.full
def test_bash_completes_verbs_options_and_values():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", COMPLETED], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "sweep",
        "--json",
        "after before both",
        "kv qa needle two-hop choice favorite",
    ]
    assert not done.stderr


def test_what_a_command_was_asked_for_is_forgotten_when_it_ends(work, capsys):
    run(capsys, "doctor", "--json", "--quiet")
    build().main(["doctor", "--json", "-q"], standalone_mode=False)  # no command of posgap's: nobody would end it
    capsys.readouterr()
    printing.show("text", {"made": True})
    assert capsys.readouterr().out == "text\n" and not printing.is_quiet()


HOSTILE = "m\x1b[2J\x07\r\nposgap: error: forged\n::set-output name=a::b\u202e\x9b31m##[group]x"


def test_what_others_wrote_stays_text(capsys, tmp_path):
    formatter = NoteFormatter()
    lines = [formatter.format(logging.LogRecord("posgap", logging.INFO, "", 1, "%s: %r", (HOSTILE, HOSTILE), None))]
    show(f"{tables.markdown(['name'], [[HOSTILE]])}\n{join_lines([HOSTILE])}\n::set-env name=x", None)
    _, hostile, shown = run(capsys, "validate", "--examples", tmp_path / HOSTILE, "--out", tmp_path / "out")
    lines += [*hostile.splitlines(), *shown.splitlines(), *_texts({"label": HOSTILE})["label"].splitlines()]
    assert [line for line in lines if not line.isprintable()] == []
    assert not any(line.startswith(("::", "posgap: error: forged")) or "##[" in line for line in lines)


def test_the_text_of_a_note_keeps_its_own_line_ends_numbers_and_colours():
    record = logging.LogRecord("posgap", logging.INFO, "", 1, "%s of %d:\n%s", ("a\nb", 3, Lines("1\n2")), None)
    assert NoteFormatter().format(record) == "posgap | a\\nb of 3:\n1\n2"
    assert join_lines([click.style("pass", fg="green"), "a\x1b[35m"]) == "\x1b[32mpass\x1b[0m\na\\x1b[35m"


def test_every_code_of_an_error_is_explained():
    table = (ROOT / "docs" / "conventions.md").read_text().partition("## Codes of errors")[2]
    explained = re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    classes = [PosgapError]
    for each in classes:
        classes += each.__subclasses__()
    others = {errors.INTERNAL_ERROR, errors.OUT_OF_MEMORY, errors.STOPPED, errors.SYSTEM_ERROR}
    assert sorted(explained) == sorted({each.code for each in classes} | others)
