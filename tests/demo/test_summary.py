"""The demo's closing table."""

from posgap.demo.summary import table

GATE = {"outcome": "refused", "rules": [{"outcome": "pass", "value": 5.0, "sentence": "gap: at most 15 for certain"}]}


def figures(positions, accuracy, **more):
    return {"positions": positions, "accuracy": accuracy, "mean": 50.0, "gap": 9.0, "gap_ci95": [8.0, 10.0]} | more


def test_positions_have_a_column_each():
    base = figures([1, 2, 5], [90.0, 1.0, 30.0], n_examples=7)
    shown = table({"base": base, "candidate": base, "gate": GATE, "registry": None})
    assert "accuracy, %        pos 1   pos 5    mean     gap   95 % of the gap" in shown
    assert "base                90.0    30.0    50.0     9.0   (8.0 to 10.0)" in shown
    assert "gate, on 7 examples a position" in shown and "refused: no alias was moved" in shown
    assert "    pass      5.0  gap: at most 15 for certain" in shown
