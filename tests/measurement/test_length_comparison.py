"""Models beside each other at several lengths: the table, and what is worse for certain."""

from posgap.measurement.comparison import Comparison, Difference
from posgap.measurement.length_comparison import AtLength, LengthComparison, ModelCurve


def at_length(name: str, base: list[float], trained: list[float], mean_ci95, worse=()) -> AtLength:
    means = [sum(curve) / len(curve) for curve in (base, trained)]
    gaps = [max(curve) - min(curve) for curve in (base, trained)]
    curves = [
        ModelCurve(label=label, accuracy=curve, mean=mean, gap=gap)
        for label, curve, mean, gap in zip(("base", "r1"), (base, trained), means, gaps)
    ]
    difference = Difference(
        label="r1",
        accuracy=[b - a for a, b in zip(base, trained)],
        ci95=[(-1, 1)] * len(base),
        mean=means[1] - means[0],
        mean_ci95=mean_ci95,
        gap=gaps[1] - gaps[0],
        gap_ci95=(-1, 1),
        better=[],
        worse=[[place] for place in worse],
        asked_otherwise=[],
        verdict="",
    )
    placements = [[place] for place in range(1, len(base) + 1)]
    about = {"reference": "base", "metric": "sub_em", "n_examples": 40, "n_docs": len(base), "placements": placements}
    return AtLength(length=name, curves=curves, comparison=Comparison(**about, differences=[difference]))


def test_the_table_has_first_middle_and_last_with_gap_and_mean():
    fine = at_length("20 documents", [90, 0, 30, 5, 75], [100, 90, 95, 90, 100], (40.0, 60.0))
    worse = at_length("40 documents", [46, 50, 96, 50, 58], [20, 80, 94, 80, 66], (2.0, 12.0), worse=[1])
    found = LengthComparison(reference="base", lengths=[fine, worse])
    head, rows = found.table()
    assert len(head) == 4 and found.title == "r1 against base, by length"
    assert rows == [
        ["20 documents", "90, 30, 75 (90; 40)", "100, 95, 100 (10; 95)", "+55.0 (+40.0 to +60.0)"],
        ["40 documents", "46, 96, 58 (50; 60)", "20, 94, 66 (74; 68)", "+8.0 (+2.0 to +12.0)"],
    ]
    assert found.losses() == ["At 40 documents r1 is worse than base for certain at position 1."]


def test_a_lower_mean_is_a_loss_only_if_its_interval_is_below_0():
    lengths = [at_length("5", [90, 90], [80, 80], (-20.0, -1.0)), at_length("9", [90, 90], [80, 80], (-20.0, 0.0))]
    found = LengthComparison(reference="base", lengths=lengths)
    assert found.losses() == ["At 5 r1 is worse than base for certain in the mean."]
