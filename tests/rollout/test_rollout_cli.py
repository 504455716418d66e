"""The rollout verbs run, and say in one line what is wrong."""

import json
import re

import numpy as np
import pytest
from command_line import fails, run

from posgap.foundation.errors import BadOption
from posgap.foundation.files import read_json
from posgap.options.rollout_predict import RolloutPredictConfig
from posgap.rollout.architecture_options import build_architecture
from posgap.rollout.files import Measurement
from posgap.verbs.rollout_predict import describe_architecture

ROPE = ["--sequence-length", 8, "--layers", 2, "--heads", 2, "--encoding", "rope"]
DECAY = [*ROPE[:-1], "decay"]


def test_predict_from_the_command_line(capsys, tmp_path):
    words = ["rollout", "predict", "--out", tmp_path / "p", "--sequence-length", 64, "--layers", 4, "--heads", 8]
    code, shown = run(capsys, *words, "--encoding", "alibi")
    assert code == 0 and "without residuals the same attention would put" in shown
    prediction = read_json(tmp_path / "p" / "prediction.json")
    assert sum(prediction["distribution"]) == pytest.approx(1) and prediction["heads"] == 8


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ([], "sequence_length: .*`measurement`"),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--residual", 2], "residual .* 2 of layer 1: "),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--mask", "prefix"], "prefix: "),
        (["--sequence-length", 8, "--layers", 2, "--heads", 2, "--rope-factors", "1,2"], "`encoding` rope"),
        ([*ROPE, "--rope-factors", "1,2,3"], ": 3 .* 2 layers"),
        ([*ROPE, "--slope", "1,2"], "slope: .*`encoding` decay"),
        ([*DECAY, "--slope", "1,2,3"], r"slope: \D* 2 heads"),
        ([*DECAY, "--slope", "1,-2"], r"slope: \D* 2 heads"),
        ([*DECAY, "--residual", "0.5,0.5,0.5"], "residual: 3 .* 2 layers"),
        ([*DECAY, "--residual", "0.5,1.5"], r"residual .* 1\.5 of layer 2: .*\[0, 1\]"),
        ([*DECAY, "--content", "1,2,3"], "content: 3 .* 2 layers"),
        ([*ROPE, "--rope-theta", "10,100,1000"], "rope_theta: 3 .* 2 layers"),
        ([*ROPE, "--rope-theta", "10,-1"], "rope_theta: .* negative"),
        ([*DECAY, "--rope-theta", "10,100"], "rope_theta: .*`encoding` rope"),
        ([*ROPE, "--mask", "window", "--window", "1,2,3"], "window: 3 .* 2 layers"),
        ([*ROPE, "--window", "1,2"], "window: .*`mask` window"),
        ([*ROPE, "--mask", "measured"], "mask: .*`measurement`"),
        (["--measurement", "nowhere"], "measurement: nowhere: "),
    ],
)
def test_bad_options_of_predict(capsys, tmp_path, more, complaint):
    assert re.search(complaint, fails(capsys, "rollout", "predict", "--out", tmp_path / "p", *more))
    assert not (tmp_path / "p").exists()


def twin(n, lambdas, scores, diagonals, seen):
    """The rollout's last row by matrices multiplied one by one: R = (1 - lambda) I + lambda A, A averaged over heads.
    `scores`, `diagonals` and `seen` have a row for each layer; the former two in it a matrix, or a number, a head."""
    product = np.eye(n)
    for strength, of_heads, own, allowed in zip(lambdas, scores, diagonals, seen, strict=True):
        heads = [np.where(allowed, np.exp(each + d * np.eye(n)), 0) for each, d in zip(of_heads, own, strict=True)]
        attention = np.mean([head / head.sum(1, keepdims=True) for head in heads], axis=0)
        product = ((1 - strength) * np.eye(n) + strength * attention) @ product
    return product[-1].tolist()


N, LAMBDAS = 9, [0.9, 0.2, 0.6]
AWAY = np.subtract.outer(np.arange(N), np.arange(N))
WINDOWS = [(AWAY >= 0) & (width > AWAY) for width in (3, N, 4)]  # the second is given as 0: all tokens before it
SLOPES, OWN = [0.1, 0.7], [0.0, 1.5, -0.5]
BASES, FACTORS = [20.0, 0.0, 5.0], [1.0, 1.0, 1.5]  # the second layer has no positions
TURNED = [
    [np.mean([np.cos(AWAY / f * b ** (-k / 64)) for k in range(0, 64, 2)], axis=0) if b else 0 * AWAY] * 2
    for b, f in zip(BASES, FACTORS)
]
SIZES = {"sequence_length": N, "layers": 3, "heads": 2, "residual": LAMBDAS}
WITH_DECAY = SIZES | {"encoding": "decay", "mask": "window", "window": [3, 0, 4]}
WITH_ROPE = SIZES | {"encoding": "rope"}
ARCHITECTURES = [
    (
        SIZES | {"encoding": "decay", "slope": SLOPES, "content": OWN},
        ([[-s * AWAY for s in SLOPES]] * 3, [[own] * 2 for own in OWN], [AWAY >= 0] * 3),
    ),
    (WITH_DECAY | {"slope": [0.4]}, ([[-0.4 * AWAY] * 2] * 3, [[0.0] * 2] * 3, WINDOWS)),
    (
        WITH_ROPE | {"rope_theta": BASES, "rope_factors": FACTORS, "mask": "window", "window": [3, 0, 4]},
        (TURNED, [[0.0] * 2] * 3, WINDOWS),
    ),
]


@pytest.mark.parametrize(("values", "parts"), ARCHITECTURES, ids=["by head", "windows by layer", "rope by layer"])
def test_predict_takes_numbers_for_each_layer_and_head(tmp_path, values, parts):
    """The same as they are typed and as a file has them, and the same as a twin by brute force."""
    options = RolloutPredictConfig(out=tmp_path, **{name: typed(value) for name, value in values.items()})
    in_file = RolloutPredictConfig(out=tmp_path, **values)
    assert in_file.parameter_values() == options.parameter_values()
    architecture, heads = build_architecture(describe_architecture(in_file), None)
    assert architecture.rollout() == pytest.approx(twin(N, LAMBDAS, *parts), rel=1e-10) and heads == 2


def test_predict_takes_windows_and_angles_as_they_were_measured(tmp_path):
    """With scaled angles, a second base, a layer without positions; and at another length, where windows stay."""
    angles = [[1.0, 0.3], [], [0.8, 0.05]]
    measured = Measurement.model_construct(
        sequence_length=N, layers=3, heads=2, lambdas=LAMBDAS, windows=[3, N, 4],
        encoding={"kind": "rope", "theta": 77.0, "head_size": 4, "frequencies": angles},
    )  # fmt: skip
    for n in (N, N + 5):
        away = np.subtract.outer(np.arange(n), np.arange(n))
        scores = [[sum(np.cos(away * a) for a in each) / max(1, len(each)) + 0 * away] * 2 for each in angles]
        seen = [(away >= 0) & (width > away) for width in (3, n, 4)]
        config = RolloutPredictConfig(
            out=tmp_path, mask="measured", encoding="measured", residual=["measured"], sequence_length=n
        )
        architecture, _ = build_architecture(describe_architecture(config), measured)
        assert architecture.rollout() == pytest.approx(twin(n, LAMBDAS, scores, [[0.0] * 2] * 3, seen), rel=1e-10)
    bidirectional = measured.model_copy(update={"windows": [3, None, 4]})
    with pytest.raises(BadOption, match="^mask: layer 2 "):
        build_architecture(describe_architecture(config), bidirectional)
    shorter = config.model_copy(update={"layers": 2, "mask": "causal", "residual": [0.5]})
    with pytest.raises(BadOption, match="encoding: 3 .* 2 layers"):
        build_architecture(describe_architecture(shorter), measured)


def typed(value):
    """A value as it is typed: commas between numbers."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def test_predict_from_a_file(capsys, tmp_path):
    values = {"layers": 2, "heads": 1, "mask": "window", "window": [2, 0], "residual": [1, 1]}
    values["content"] = [0.0, 0.0]
    (tmp_path / "a.yaml").write_text(json.dumps({"rollout predict": values}))
    words = ["--config", tmp_path / "a.yaml", "--sequence-length", 3]
    assert run(capsys, "rollout", "predict", "--out", tmp_path / "p", *words)[0] == 0
    predicted = read_json(tmp_path / "p" / "prediction.json")
    # The last token takes a third of each; the first layer halves what tokens 2 and 3 hold with those before them.
    assert predicted["distribution"] == pytest.approx([1 / 3 + 1 / 6, 1 / 6 + 1 / 6, 1 / 6])
    assert predicted["settings"]["window"] == [2, 0] and predicted["settings"]["layers"] == 2


def test_measure_names_texts_that_are_too_short_or_too_long(capsys, tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 50)
    words = ["rollout", "measure", "--texts", tmp_path / "t.txt", "--model", model_folder, "--out", tmp_path / "m"]
    assert re.search(" 900 tokens; .*`length`", fails(capsys, *words, "--length", 900))
    assert re.search(" 600 tokens .* 512; .*`length`", fails(capsys, *words, "--length", 600))
    assert "'--task': 'sort' " in fails(capsys, *words, "--task", "sort")
