"""`posgap init`: what four answers become."""

import sys

import pytest
import yaml
from conftest import kv_example, qa_example
from endpoint import Endpoint, served

from posgap.cli import init as start
from posgap.cli.main import main
from posgap.foundation.files import read_json
from posgap.measurement.config import SweepConfig
from posgap.tasks.reading import read_examples, write_examples


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(**answers) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", *(f"--{name}={value}" for name, value in answers.items())])
    return ended.value.code


def files(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_flags_answer_everything_and_the_file_is_what_a_sweep_takes(folder, capsys):
    assert init(model="tiny", examples="made", task="kv", tracking="sqlite:///runs.db") == 0
    assert files(folder) == {"posgap.yaml", "data/examples.jsonl.gz"}
    assert capsys.readouterr().out.splitlines()[-1].endswith("posgap sweep --config posgap.yaml")
    written = yaml.safe_load((folder / "posgap.yaml").read_text())
    assert written["tracking"] == "sqlite:///runs.db"
    swept = SweepConfig(**{name.replace("-", "_"): value for name, value in written["sweep"].items()})
    assert (str(swept.model), swept.task, str(swept.examples)) == ("tiny", "kv", "data/examples.jsonl.gz")
    made = read_examples(folder / "data" / "examples.jsonl.gz")
    assert len(made) == start.N_EXAMPLES and {len(each.records) for each in made} == {swept.n_docs}
    # A judge is not shown twenty answers.
    assert init(model="tiny", examples="made", task="judge", tracking="none", force="true") == 0
    assert yaml.safe_load((folder / "posgap.yaml").read_text())["sweep"]["n-docs"] == start.N_CHOICES


def test_questions_are_asked_where_there_is_a_terminal(folder, monkeypatch, capsys):
    write_examples(folder / "mine.jsonl", [qa_example(0, 19)])
    # There is no such file, and no such task: both are asked for again.
    monkeypatch.setenv("HOME", str(folder))
    answers = iter(["tiny", "min.jsonl", "~/mine.jsonl", "kvv", "qa", "none"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(answers))
    assert init() == 0 and next(answers, None) is None
    text = (folder / "posgap.yaml").read_text()
    assert yaml.safe_load(text) == {
        "sweep": {"model": "tiny", "task": "qa", "examples": "~/mine.jsonl", "out": "runs/sweep"}
    }
    assert "# Nothing is tracked; for runs in MLflow: tracking: sqlite:///mlflow.db" in text
    assert files(folder) == {"posgap.yaml", "mine.jsonl"}


def test_the_sweep_has_no_more_documents_than_the_examples(folder, capsys):
    write_examples(folder / "mine.jsonl", [qa_example(0, 19), qa_example(1, 4)])
    assert init(model="tiny", examples="mine.jsonl", task="qa", tracking="none") == 0
    assert yaml.safe_load((folder / "posgap.yaml").read_text())["sweep"]["n-docs"] == 5


@pytest.mark.parametrize(("task", "said"), [("multihop-cot", "gold"), ("kv", "mine.jsonl:1: ")])
def test_examples_that_no_sweep_could_ask_about_are_refused(folder, capsys, task, said):
    (folder / "mine.jsonl").write_text("{}\n")
    if task != "kv":
        write_examples(folder / "mine.jsonl", [qa_example(0, 19)])
    assert init(model="tiny", examples="mine.jsonl", task=task, tracking="none") == 2
    assert said in capsys.readouterr().err and files(folder) == {"mine.jsonl"}


def test_the_next_command_works_as_it_is_printed(folder, capsys, model_folder):
    write_examples(folder / "mine.jsonl", [kv_example(i) for i in range(2)])
    assert init(model=model_folder, examples="mine.jsonl", task="kv", tracking="none") == 0
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("next:").split()
    assert command[0] == "posgap"
    with pytest.raises(SystemExit) as ended:
        main(command[1:])
    assert ended.value.code == 0 and read_json(folder / "runs" / "sweep" / "sweep.json")["n_docs"] == 6


@pytest.mark.parametrize("name", ["", "#served"])
def test_with_an_endpoint_the_next_command_works_too(name, folder, capsys):
    write_examples(folder / "mine.jsonl", [kv_example(i) for i in range(2)])
    with served(Endpoint()) as endpoint:
        endpoint.models = ["served"]
        assert init(model=f"{endpoint.url}{name}", examples="mine.jsonl", task="kv", tracking="none") == 0
        section = yaml.safe_load((folder / "posgap.yaml").read_text())["sweep"]
        assert (section["model"], section["base-url"]) == ("served", endpoint.url)
        command = capsys.readouterr().out.splitlines()[-1].removeprefix("next:").split()
        with pytest.raises(SystemExit) as ended:
            main(command[1:])
    swept = read_json(folder / "runs" / "sweep" / "sweep.json")
    assert ended.value.code == 0 and (swept["model"], swept["mean"]) == ("served", 100.0)


def test_without_a_terminal_what_is_not_answered_is_named(folder, capsys):
    assert init(model="tiny", task="kv") == 2
    assert "no terminal to ask at; give --examples, --tracking" in capsys.readouterr().err
    assert init(model="tiny", task="kv", examples="none.jsonl", tracking="none") == 2
    assert "none.jsonl: no such file or folder" in capsys.readouterr().err
    assert files(folder) == set()


@pytest.mark.parametrize("there", ["posgap.yaml", "data/examples.jsonl.gz"])
def test_what_is_there_is_replaced_only_when_asked(there, folder, capsys):
    (folder / there).parent.mkdir(exist_ok=True)
    (folder / there).write_text("mine")
    answers = {"model": "tiny", "examples": "made", "task": "kv", "tracking": "none"}
    assert init(**answers) == 2
    assert f"{there}: is there already" in capsys.readouterr().err and (folder / there).read_text() == "mine"
    assert files(folder) == {there}
    assert init(**answers, force="true") == 0 and (folder / there).read_bytes() != b"mine"
