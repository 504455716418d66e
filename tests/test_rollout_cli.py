"""The rollout verbs run, and say in one line what is wrong."""

import pytest
from test_cli import fails, run

from posgap.files import read_json

ROPE = ["--sequence-length", 8, "--layers", 2, "--heads", 2, "--encoding", "rope"]


def test_predict_from_the_command_line(capsys, tmp_path):
    words = ["rollout", "predict", "--out", tmp_path / "p", "--sequence-length", 64, "--layers", 4, "--heads", 8]
    code, shown = run(capsys, *words, "--encoding", "alibi", "--head-weights", "1,1,1,1,1,1,1,2")
    assert code == 0 and "without residuals the same attention would put" in shown
    prediction = read_json(tmp_path / "p" / "prediction.json")
    assert sum(prediction["distribution"]) == pytest.approx(1) and prediction["heads"] == 8


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ([], "sequence_length: must be given, or taken from a `measurement`"),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--residual-strength", 2], "--residual-strength: Input"),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--head-weights", "1"], "give one positive weight for"),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--mask", "prefix"], "prefix: mask prefix needs a size"),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--rope-factors", "1,2"], "give `encoding` rope"),
        ([*ROPE, "--rope-factors", "1,2,3"], "3 given for 2 layers"),
        (["--measurement", "nowhere"], "measurement: nowhere: no such file or folder"),
    ],
)
def test_bad_options_of_predict(capsys, tmp_path, more, complaint):
    assert complaint in fails(capsys, "rollout", "predict", "--out", tmp_path / "p", *more)
    assert not (tmp_path / "p").exists()


def test_measure_names_texts_that_are_too_short_or_too_long(capsys, tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 50)
    words = ["rollout", "measure", "--texts", tmp_path / "t.txt", "--model", model_folder, "--out", tmp_path / "m"]
    assert "no text of 900 tokens; lower `length`" in fails(capsys, *words, "--length", 900)
    assert "texts of 600 tokens exceed the model's context of 512" in fails(capsys, *words, "--length", 600)
    assert "Invalid value for '--task': 'sort' is not one of" in fails(capsys, *words, "--task", "sort")
