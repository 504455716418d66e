"""The study's rows of replicates (benchmarks/study.py), and what is said of them: known answers on made scores."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study

    monkeypatch.setattr(study, "STORE", tmp_path)
    return study


def keep(study, number: int, method: str, *accuracy: int) -> None:
    """Keeps a row of 100 questions, of which so many are right at each position."""
    right = {str(i): "".join(str(int(i < points)) for points in accuracy) for i in range(100)}
    row = {"figures": {"right": right}}
    (study.STORE / f"replicate-{number}-{method}.json").write_text(json.dumps(row), encoding="utf-8")


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_t_intervals_stand_over_replicates_and_not_below_three(study):
    for number, mean in enumerate((10, 20, 30), start=1):
        keep(study, number, "base", mean + 20, mean - 5, mean - 5, mean - 5, mean - 5)
    keep(study, 1, "kl", 60, 50, 50, 50, 50)
    keep(study, 2, "kl", 70, 60, 60, 60, 60)
    base, kl = cells(study.replicate_means())
    # Mean 20, sd 10, t of two degrees of freedom 4.303: 20 +- 4.303 * 10 / sqrt(3); every gap is 25.
    assert base == [
        "base",
        "3",
        "40, 15, 15, 15, 15",
        "20.0 (-4.8 to 44.8)",
        "+25.0 (+25.0 to +25.0)",
        "25.0 (25.0 to 25.0)",
    ]
    assert kl == ["kl", "2", "65, 55, 55, 55, 55", "57.0", "+10.0", "10.0"]


def test_contrasts_are_paired_within_replicates(study):
    for number, (kl, seqkd) in enumerate([(10, 14), (50, 55), (30, 36)], start=1):
        keep(study, number, "kl", *[kl] * 5)
        keep(study, number, "seqkd", *[seqkd] * 5)
    keep(study, 4, "kl", *[0] * 5)  # of a replicate that is not whole yet
    (contrast,) = cells(study.replicate_contrasts())
    # Differences 4, 5, 6: 5 +- 4.303 / sqrt(3), where the methods themselves differ by 40 between replicates.
    assert contrast == ["words, not distributions: seqkd - kl", "3", "+5.0 (+2.5 to +7.5)", "+0.0 (+0.0 to +0.0)"]


def test_every_answer_of_a_replicate_is_kept_by_question_and_position():
    """Whatever a page says of a pair can be computed again."""
    asked: dict[str, set] = {}
    for file in sorted((ROOT / "benchmarks" / "study").glob("replicate-*.json")):
        figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
        if not file.stem.endswith("-teacher"):
            right = figures["right"]
            assert len(right) == 40 and {len(answers) for answers in right.values()} == {len(figures["positions"])}
            assert set("".join(right.values())) <= {"0", "1"}
            asked.setdefault(file.stem.split("-")[1], set()).add(tuple(right))
    assert all(len(questions) == 1 for questions in asked.values())  # a replicate's methods are paired
