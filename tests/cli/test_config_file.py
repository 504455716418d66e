"""`--config FILE`, of options."""

import os

import pytest
import yaml

from posgap.cli import config_file
from posgap.cli import main as cli
from posgap.cli.main import main


@pytest.fixture
def taken(monkeypatch):
    """The configs that verbs were called with, instead of doing their work."""
    configs = []
    monkeypatch.setattr(cli, "_work_of", lambda verb: configs.append)
    return configs


@pytest.fixture
def written(tmp_path):
    """Writes a config file; returns its name."""

    def write(content) -> str:
        file = tmp_path / "posgap.yaml"
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return str(file)

    return write


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return ended.value.code


SWEEP = {"model": "tiny", "examples": "kv.jsonl", "out": "run", "n-docs": 7, "limit": 3, "seed": 5}


def test_a_flag_comes_before_the_environment_and_that_before_the_file(taken, written, monkeypatch):
    file = written({"sweep": SWEEP, "gate": {"nothing": "of that is read here"}})
    monkeypatch.setenv("POSGAP_SWEEP_SEED", "6")
    monkeypatch.setenv("POSGAP_SWEEP_LIMIT", "4")
    assert run("sweep", "--config", file, "--seed", 7) == 0
    monkeypatch.delenv("POSGAP_SWEEP_SEED")
    monkeypatch.setenv(config_file.VARIABLE, file)
    assert run("sweep") == 0
    first, second = taken
    assert (first.n_docs, first.limit, first.seed) == (7, 4, 7)
    assert (second.n_docs, second.limit, second.seed) == (7, 4, 5) and second.model == "tiny"


def test_lists_dictionaries_and_flags_are_as_yaml_has_them(taken, written):
    # YAML 1.1 takes 1:30 for ninety.
    more = {"label": "1:30"} | {
        "stop": ["a", "b,c"],
        "template_args": {"enable_thinking": False},
        "force": True,
    }
    file = written(yaml.safe_dump({"sweep": SWEEP | more}).replace("'1:30'", "1:30"))
    assert run("sweep", "--config", file) == 0
    compare = {"sweeps": ["one", "two"], "out": "compared"}
    pipeline = {"out": "run", "param": {"text": "a=b", "times": 3}}
    assert run("compare", "--config", written({"compare": compare})) == 0
    assert run("pipeline", "run", "--config", written({"pipeline run": pipeline})) == 0
    swept, compared, piped = taken
    assert swept.stop == ["a", "b,c"] and swept.template_args == {"enable_thinking": False}
    assert swept.label == "1:30" and swept.force is True
    assert [str(each) for each in compared.sweeps] == ["one", "two"]
    assert piped.param == {"text": "a=b", "times": "3"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"sweep": SWEEP | {"n-doc": 3}}, "sweep: no option is called n-doc; did you mean n-docs?"),
        ({"sweeep": SWEEP}, "no verb is called sweeep; did you mean sweep?"),
        ({"sweep": SWEEP | {"n-docs": [1]}}, "--n-docs: write one value, got [1]"),
        ({"sweep": SWEEP | {"n-docs": True}}, "'--n-docs': 'True' is not a valid integer"),
        ({"sweep": SWEEP | {"force": 3}}, "'--force': '3' is not a valid boolean"),
        ({"sweep": SWEEP | {"label": True}}, "--label: "),
        ({"sweep": SWEEP | {"out": ["x"]}}, "--out: expected a path, got ['x']"),
        ({"sweep": SWEEP | {"header": 3}}, "--header: write NAME=VALUE\n"),  # which may be secret
        ({"sweep": [1]}, "sweep: write options below it"),
        ({"sweep": SWEEP, "tracking": 3}, "tracking: write the address"),
        ("sweep: [", "posgap.yaml: not YAML: "),
        ("sweep:\n  n-docs: 1\n  n-docs: 2", "'n-docs' is there twice in line 2"),
        ("- 1", "write a section for each verb"),
        ("\0", "not YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(content, said, taken, written, capsys):
    assert run("sweep", "--config", written(content)) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1 and not taken


def test_a_file_that_is_not_there_is_one_line(taken, tmp_path, capsys):
    for name in (tmp_path / "none.yaml", tmp_path, "a\0b"):
        assert run("sweep", "--config", name) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("posgap: error: --config: ") and shown.count("\n") == 1 and not taken


def test_runs_go_where_the_file_says_unless_the_environment_does(taken, written, monkeypatch):
    file = written({"sweep": SWEEP, "tracking": "sqlite:///of-the-file.db"})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///another.db")
    assert run("sweep", "--config", file) == 0 and os.environ["MLFLOW_TRACKING_URI"] == "sqlite:///another.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert run("sweep", "--config", file) == 0
    assert os.environ["MLFLOW_TRACKING_URI"] == "sqlite:///of-the-file.db"
