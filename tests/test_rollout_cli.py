"""The rollout verbs run, and say in one line what is wrong."""

import numpy as np
import pytest
from test_cli import fails, run

from posgap.files import read_json

ROPE = ["--sequence-length", 8, "--layers", 2, "--heads", 2, "--encoding", "rope"]
DECAY = [*ROPE[:-1], "decay"]


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
        ([*ROPE, "--slopes", "1,2"], "slopes: they are those of a decay: give `encoding` decay"),
        ([*DECAY, "--slopes", "1,2,3"], "slopes: give one that is not negative for each of 2 heads"),
        ([*DECAY, "--slopes", "1,-2"], "slopes: give one that is not negative for each of 2 heads"),
        ([*DECAY, "--residual-strengths", "0.5"], "residual_strengths: 1 given for 2 layers"),
        ([*DECAY, "--residual-strengths", "0.5,1.5"], "residual strength 1.5 of layer 2: must lie in [0, 1]"),
        ([*DECAY, "--content-scores", "1,2,3"], "content_scores: 3 given for 2 layers"),
        (["--measurement", "nowhere"], "measurement: nowhere: no such file or folder"),
    ],
)
def test_bad_options_of_predict(capsys, tmp_path, more, complaint):
    assert complaint in fails(capsys, "rollout", "predict", "--out", tmp_path / "p", *more)
    assert not (tmp_path / "p").exists()


def test_predict_takes_a_number_for_each_layer_and_head(capsys, tmp_path):
    """The same as matrices multiplied one by one: R = (1 - lambda) I + lambda A, A averaged over heads."""
    n, lambdas, slopes, diagonals = 9, [0.9, 0.2, 0.6], [0.1, 0.7], [0.0, 1.5, -0.5]
    words = ["--sequence-length", n, "--layers", 3, "--heads", 2, "--encoding", "decay"]
    lists = {"--residual-strengths": lambdas, "--slopes": slopes, "--content-scores": diagonals}
    given = [word for name, values in lists.items() for word in (name, ",".join(map(str, values)))]
    assert run(capsys, "rollout", "predict", "--out", tmp_path / "p", *words, *given)[0] == 0
    i, j = np.indices((n, n))
    product = np.eye(n)
    for strength, diagonal in zip(lambdas, diagonals):
        heads = [np.where(j <= i, np.exp(-slope * (i - j) + diagonal * (i == j)), 0) for slope in slopes]
        attention = np.mean([head / head.sum(1, keepdims=True) for head in heads], axis=0)
        product = ((1 - strength) * np.eye(n) + strength * attention) @ product
    predicted = read_json(tmp_path / "p" / "prediction.json")
    assert predicted["distribution"] == pytest.approx(product[-1].tolist(), rel=1e-12)
    assert predicted["lambdas"] == lambdas


def test_measure_names_texts_that_are_too_short_or_too_long(capsys, tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 50)
    words = ["rollout", "measure", "--texts", tmp_path / "t.txt", "--model", model_folder, "--out", tmp_path / "m"]
    assert "no text of 900 tokens; lower `length`" in fails(capsys, *words, "--length", 900)
    assert "texts of 600 tokens exceed the model's context of 512" in fails(capsys, *words, "--length", 600)
    assert "Invalid value for '--task': 'sort' is not one of" in fails(capsys, *words, "--task", "sort")
