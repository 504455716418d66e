"""The variables of the environment: a name that is nearly one that posgap reads is pointed out."""

import re

import pytest
from places import ROOT

from posgap.cli import variables
from posgap.cli.main import build, main


def of(name: str) -> list[str]:
    return variables.complaints(build(), {name: "1", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POSGAP_WEBHOOK", "POSGAP_WEBHOOK_URL"),
        ("POSGAP_CAHCE", "POSGAP_CACHE"),
        ("POSGAP_SIGNING_KEYS", "POSGAP_SIGNING_KEY"),
        ("POSGAP_SWEEP_NDOCS", "POSGAP_SWEEP_N_DOCS"),
        ("POSGAP_SCALE_SEARCH_POPULATON", "POSGAP_SCALE_SEARCH_POPULATION"),
    ],
)
def test_the_nearest_variable_is_named(name, meant):
    assert of(name) == [f"{name}: no variable of posgap is called so; did you mean {meant}?"]


@pytest.mark.parametrize(
    "name",
    [
        *("POSGAP_SWEEP_N_DOCS", "POSGAP_PIPELINE_RUN_OUT", "POSGAP_CONFIG", "POSGAP_CACHE"),  # known
        *("POSGAP_MLFLOW_SERVICE_PORT", "POSGAP_MLFLOW_PORT_5000_TCP_ADDR"),  # of a service in Kubernetes
        *("POSGAP_MINE", "_POSGAP_COMPLETE", "OTHER_CAHCE"),
    ],
)
def test_what_is_known_and_what_is_nobody_s_mistake_is_not_mentioned(name):
    assert of(name) == []


def test_every_variable_that_posgap_reads_is_known():
    read = re.compile(r'"(POSGAP_[A-Z_]+)"')
    folders = ("src/posgap", "components", "pipelines")
    texts = [file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = {name for text in texts for name in read.findall(text)}
    assert found and found <= variables.KNOWN | set(variables._of_options(build(), "POSGAP"))


def test_a_command_warns_and_goes_on(capsys, monkeypatch):
    monkeypatch.setenv("POSGAP_CAHCE", "elsewhere")
    with pytest.raises(SystemExit) as stopped:
        main(["policy"])
    shown = capsys.readouterr()
    assert not stopped.value.code and "max_gap" in shown.out
    assert "POSGAP_CAHCE: no variable of posgap is called so; did you mean POSGAP_CACHE?" in shown.err
