"""compare and `plan sweep`: what they conclude, refuse and write."""

import json
import re

import mlflow
import numpy as np
import pytest
from written_sweeps import ASKED, N, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.measurement.comparison import Comparison, _where, compare_sweeps
from posgap.measurement.evidence import Evidence
from posgap.measurement.statistics import (
    EACH_END,
    difference_interval,
    gap_difference,
    paired_difference,
    placement_differences,
)
from posgap.options.compare import CompareConfig
from posgap.storage.inputs import read_manifest
from posgap.verbs.compare import compare

LOST = [0.95, 0.6, 0.5, 0.6, 0.9]


def compared(tmp_path, *sweeps, **more) -> Comparison:
    out = compare(CompareConfig(out=tmp_path / "comparison", sweeps=list(sweeps), **more))
    return Comparison.model_validate_json((out / "comparison.json").read_text())


def test_a_closed_gap_is_said_in_words_and_figures(tmp_path):
    base = write_sweep(tmp_path / "base", LOST)
    (found,) = compared(
        tmp_path, base, write_sweep(tmp_path / "new", [0.95, 0.93, 0.93, 0.93, 0.9], seed=1)
    ).differences
    assert found.mean > 15 and found.mean_ci95[0] > 10
    assert found.gap < -25 and found.gap_ci95[1] < -15
    assert found.better == [[2], [3], [4]] and found.worse == []
    assert re.fullmatch(
        r"m \(new\) is better than m \(base\) in the mean \(\+[\d.]+ points, \+[\d.]+ to \+[\d.]+\); its gap is "
        r"smaller \(-[\d.]+ points, -[\d.]+ to -[\d.]+\); it is better at 2 to 4\.",
        found.verdict,
    )


@pytest.mark.parametrize(
    ("found", "of", "said"),
    [
        ([[1], [2], [3]], [[1], [2], [3]], "every placement"),
        ([[1], [2], [4], [5], [6], [9]], [[i] for i in range(1, 11)], "1, 2, 4 to 6, 9"),
        ([[5], [10], [15]], [[1], [5], [10], [15]], "5 to 15"),
        ([[1, 2], [2, 1]], [[1, 2], [2, 1], [5, 6]], "1+2, 2+1"),
        ([[1, 2], [2, 1], [5, 6]], [[1, 2], [2, 1], [5, 6], [8, 9]], "every placement but 8+9"),
    ],
)
def test_places_are_named_in_few_words(found, of, said):
    assert _where(found, of) == said


def test_a_worse_model_is_called_worse(tmp_path):
    sweeps = write_sweep(tmp_path / "a", [0.9] * 5), write_sweep(tmp_path / "b", [0.5] * 5, seed=1)
    (found,) = compared(tmp_path, *sweeps).differences
    assert "is worse than" in found.verdict and "it is worse at every placement" in found.verdict
    assert "its gap may be as large" in found.verdict and "cannot be told" not in found.verdict


def test_what_is_worse_somewhere_is_not_said_to_be_indistinguishable(tmp_path):
    sweeps = write_sweep(tmp_path / "a", [0.9] * 5), write_sweep(tmp_path / "b", [0.97, 0.97, 0.6, 0.97, 0.97], seed=1)
    (found,) = compared(tmp_path, *sweeps).differences
    assert found.mean_ci95[0] < 0 < found.mean_ci95[1] and found.worse == [[3]]
    assert "cannot be told" not in found.verdict and "may be as good as m (a) in the mean" in found.verdict


def test_a_model_does_not_differ_from_itself(tmp_path):
    sweeps = write_sweep(tmp_path / "a", LOST), write_sweep(tmp_path / "b", LOST)
    (found,) = compared(tmp_path, *sweeps).differences
    assert found.mean == found.gap == 0 and set(found.accuracy) == {0}
    assert -2 < found.mean_ci95[0] == -found.mean_ci95[1] < 0 and found.gap_ci95[0] < 0 < found.gap_ci95[1]
    assert "cannot be told from" in found.verdict and "no single placement differs for certain" in found.verdict
    assert all(low < 0 < high for low, high in found.ci95)


@pytest.mark.nightly
def test_equal_models_are_told_apart_at_some_position_in_few_of_many_comparisons(tmp_path):
    rng, false_alarms = np.random.default_rng(0), 0
    for _ in range(400):
        old, new = rng.random((2, 80, 20)) < 0.7
        together = placement_differences(new, old, comparisons=20)
        false_alarms += ((together[:, 0] > 0) | (together[:, 1] < 0)).any()
    assert false_alarms / 400 <= 0.07


def test_of_several_models_all_intervals_may_hold_together(tmp_path):
    """As those of `posgap mitigate` do: each end is wrong as rarely as Bonferroni asks for three models."""
    folders = [write_sweep(tmp_path / str(seed), LOST, seed=seed) for seed in range(4)]
    evidence = [Evidence(folder) for folder in folders]
    reference = evidence[0].correct
    for together, error in ((False, EACH_END), (True, EACH_END / 3)):
        for model, found in zip(evidence[1:], compare_sweeps(evidence, together=together).differences):
            assert (found.mean, found.mean_ci95) == paired_difference(model.correct, reference, error)
            assert (found.gap, found.gap_ci95) == gap_difference(model.correct, reference, error)
            each = difference_interval(np.subtract(model.correct, reference, dtype=float), error)
            np.testing.assert_allclose(found.ci95, each)


@pytest.mark.nightly
def test_the_best_of_six_that_change_nothing_is_seldom_called_better():
    """In its mean; the other half of the error is left to the gap."""
    rng = np.random.default_rng(0)
    base, *others = rng.random((7, 100, 2000)) < rng.random((100, 2000))
    differences = np.subtract(others, base, dtype=float).transpose(1, 2, 0)
    better = [(difference_interval(differences, error)[..., 0] > 0).any(axis=1) for error in (EACH_END, EACH_END / 6)]
    alone, together = np.mean(better, axis=1)
    assert alone > 0.08 and 0.01 < together <= 0.03


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"examples": "other"}, r": examples \(other, .*\w{12}\)"),
        ({"order": [*range(1, N), 1]}, ": examples"),
        ({"placements": [[i + 1] for i in (0, 1, 2, 4, 3)]}, r"placements \(1 2 3 5 4, .*1 2 3 4 5\)"),
        ({"asked": ASKED.model_copy(update={"shuffle": 3})}, r"shuffle \(3, .*0\)"),
    ],
)
def test_sweeps_of_other_questions_are_refused(tmp_path, change, complaint):
    sweeps = write_sweep(tmp_path / "a", LOST), write_sweep(tmp_path / "b", LOST, **change)
    with pytest.raises(PosgapError, match=complaint):
        compared(tmp_path, *sweeps)


def test_examples_are_paired_by_content_whatever_their_order_and_ids(tmp_path):
    base, new = write_sweep(tmp_path / "a", LOST), write_sweep(tmp_path / "b", [0.95] * 5)
    turned = write_sweep(tmp_path / "c", [0.95] * 5, order=range(N)[::-1])
    (ordered,), (other,) = compared(tmp_path, base, new).differences, compared(tmp_path, base, turned).differences
    assert other.ci95 == ordered.ci95 and other.mean == ordered.mean


def test_a_prompt_that_may_differ_is_named_in_the_verdict(tmp_path):
    sweeps = [write_sweep(tmp_path / f, LOST, asked=ASKED.model_copy(update={"prompt": f})) for f in "ab"]
    (found,) = compared(tmp_path, *sweeps, allow=["prompt"]).differences
    assert found.asked_otherwise == ["prompt"] and found.verdict.endswith("what was asked differs in prompt.")


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.usefixtures("pictures")
def test_the_page_the_picture_and_the_run(tmp_path):
    sweeps = [write_sweep(tmp_path / name, LOST, seed=i) for i, name in enumerate("abc")]
    out = compare(CompareConfig(out=tmp_path / "out", sweeps=sweeps))
    page = (out / "comparison.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<img" not in page and page.count("<svg") == 4 and "Differences to m" in page
    assert "difference compares placements on one half of the examples" in page
    assert all(found["verdict"] in page for found in json.loads((out / "comparison.json").read_text())["differences"])
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    manifest = read_manifest(out)
    assert manifest["inputs"].keys() == {"sweeps.1", "sweeps.2", "sweeps.3"}
    run = mlflow.get_run(manifest["mlflow_run_id"])
    assert run.data.tags["posgap.input.sweeps.3.path"] == str(sweeps[2])


def test_pairs_are_compared_too(tmp_path):
    placements = [[1, 2], [4, 5], [1, 5], [2, 1], [5, 1]]
    sweeps = [write_sweep(tmp_path / name, LOST, seed=i, placements=placements) for i, name in enumerate("ab")]
    assert compared(tmp_path, *sweeps).placement_names == ["1+2", "4+5", "1+5", "2+1", "5+1"]


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    shown = capsys.readouterr()
    return stopped.value.code or 0, shown.out, shown.err


def test_sweeps_are_named_one_by_one_or_with_commas(capsys, tmp_path):
    a, b = write_sweep(tmp_path / "a", LOST), write_sweep(tmp_path / "b", LOST, seed=1)
    for words in ([a, b], [f"{a},{b}"]):
        code, _, shown = run(capsys, "compare", *words, "--out", tmp_path / "out")
        assert code == 0
    assert "compare: " in shown and "reused" in shown


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["a"], "sweeps: List should have at least 2 items"),
        ([], "Missing argument 'SWEEPS...'"),
        (["a", "none"], "none: no such file or folder"),
    ],
)
def test_what_cannot_be_compared_is_named(capsys, tmp_path, names, complaint):
    write_sweep(tmp_path / "a", LOST)
    code, _, shown = run(capsys, "compare", *(tmp_path / name for name in names), "--out", tmp_path / "out")
    assert code == 2 and complaint in shown and "Traceback" not in shown


def test_a_plan_from_assumptions_and_from_a_sweep(capsys, tmp_path):
    code, out, shown = run(capsys, "plan", "sweep", "--detect", 10, "--n-docs", 5)
    assert code == 0 and json.loads(out)["examples"].keys() == {"gap", "mean_difference", "placement_difference"}
    assert "a gap of one model of 10 points: " in shown
    swept = write_sweep(tmp_path / "a", LOST)
    code, out, shown = run(capsys, "plan", "sweep", "--sweep", swept)
    assert code == 0 and "over 5 placements, a correlation of 0.0" in shown
    code, out, _ = run(capsys, "sweep", "--help")
    assert code == 0 and "`posgap plan sweep` says how many examples" in out
    code, _, shown = run(capsys, "plan", "sweep", "--detect", "1e-308")  # as many as no number can say
    assert code == 2 and "--detect: Input should be greater than or equal to 0.01" in shown
