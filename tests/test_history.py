"""The history of a registered model, and the way back."""

import mlflow
import pytest
from test_cli import fails, run
from test_gate import base as base
from test_gate import copy_of, promotion

from posgap.cli import main
from posgap.stages.promote import promote
from posgap.tracking import champions


def test_history_shows_who_was_champion_and_rollback_brings_the_former_back(tmp_path, base, model_folder, capsys):
    assert fails(capsys, "history", "tiny") == "tiny: no registered model of this name in MLflow"
    assert "no version has the alias `champion`" in fails(capsys, "rollback", "tiny", "--reason", "x")
    promote(promotion(tmp_path, "one", copy_of(model_folder, tmp_path / "one"), base))
    assert "no version has the alias `previous`" in fails(capsys, "rollback", "tiny", "--reason", "x")
    promote(promotion(tmp_path, "two", copy_of(model_folder, tmp_path / "two"), base))
    assert run(capsys, "rollback", "tiny", "--reason", "answers in French")[0] == 0
    client = mlflow.MlflowClient()
    aliases = {name: str(number) for name, number in client.get_registered_model("tiny").aliases.items()}
    assert aliases == {"champion": "1", "previous": "2"}
    with pytest.raises(SystemExit):
        main(["history", "tiny"])
    out = capsys.readouterr().out
    first, second, changes = out.splitlines()[2], out.splitlines()[3], out.splitlines()[-3:]
    assert "| champion " in first and "| previous " in second
    told = [[cell.strip() for cell in line.split("|")[2:-1]] for line in changes]
    assert told == [["", "1", "promoted"], ["1", "2", "promoted"], ["2", "1", "rolled back: answers in French"]]


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * 301])
def test_a_reason_is_one_line(reason, capsys):
    assert "--reason" in fails(capsys, "rollback", "tiny", "--reason", reason)


def test_somebody_s_tag_is_no_part_of_the_history():
    client = mlflow.MlflowClient()
    client.create_registered_model("tiny", tags={f"{champions.CHANGE}note": "hello", "other": "x"})
    assert champions.changes(client.get_registered_model("tiny")) == []
