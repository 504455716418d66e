"""Whether measures of influence agree: against scipy, text by text."""

import numpy as np
import pytest
from scipy import stats

from posgap.rollout.agreement import agreement_text as agreement_summary
from posgap.rollout.agreement import measure_agreement


@pytest.mark.filterwarnings("error")  # of what has no ranks nothing is said
def test_agreement_is_scipy_s_over_each_text_s_documents():
    rng = np.random.default_rng(0)
    one, other = rng.random((9, 6)), rng.random((9, 6))
    flat = np.vstack([np.ones((8, 6)), one[:1]])
    shares = {"rollout": one, "gradient": one**3, "value_norm": -one, "other": other, "flat": flat}
    found = measure_agreement(shares, "documents", 0)
    pairs = {tuple(pair["measures"]): pair for pair in found["pairs"]}
    assert len(pairs) == 10 and pairs["rollout", "gradient"]["spearman_ci95"] == pytest.approx([1, 1])
    assert pairs["rollout", "value_norm"]["spearman"] == pytest.approx(-1)
    each = [stats.spearmanr(a, b).statistic for a, b in zip(one, other)]
    pair = pairs["rollout", "other"]
    assert pair["spearman"] == pytest.approx(np.mean(each)) and pair["texts"] == 9
    spread = np.std(each) / 3
    low, high = pair["spearman_ci95"]
    assert low == pytest.approx(np.mean(each) - 1.96 * spread, abs=0.3 * spread)
    assert high == pytest.approx(np.mean(each) + 1.96 * spread, abs=0.3 * spread)
    assert pairs["rollout", "flat"]["texts"] == 1 and pairs["rollout", "flat"]["spearman_ci95"] is None
    assert "agrees (Spearman) with that by gradient 1.00 (1.00 to 1.00), value norm -1.00" in agreement_summary(found)
    nothing = measure_agreement({"rollout": np.ones((2, 3)), "gradient": one[:2, :3]}, "tokens", 0)
    assert nothing["pairs"][0]["spearman"] is None and "orders no text's tokens" in agreement_summary(nothing)


def test_where_documents_draw_alike_they_share_their_ranks():
    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 3, (2, 7, 5)).astype(float)
    ((pair,), again) = (measure_agreement({"a": one, "b": other}, "documents", seed)["pairs"] for seed in (0, 0))
    each = [stats.spearmanr(a, b).statistic for a, b in zip(one, other) if a.any() and b.any()]
    assert pair["spearman"] == pytest.approx(np.mean(each)) and pair["texts"] == 7 == len(each) and again == [pair]


def test_a_summary_names_measures_made_otherwise_and_their_intervals():
    def pair(one: str, other: str, spearman: float | None, interval: list[float] | None = None):
        return {"measures": [one, other], "spearman": spearman, "spearman_ci95": interval}

    pairs = [
        pair("rollout", "attention", 0.9),
        pair("gradient", "rollout", 0.5, [0.254, 0.746]),
        pair("rollout", "value_norm", -0.125),
        pair("gradient", "value_norm", 0.375),
    ]
    begins = "the order of a text's tokens by {} agrees (Spearman) with that by "
    found = {"of": "tokens", "pairs": pairs}
    assert agreement_summary(found) == begins.format("rollout") + "gradient 0.50 (0.25 to 0.75), value norm -0.12"
    assert agreement_summary(found, "gradient") == begins.format("gradient") + "value norm 0.38"
    assert agreement_summary(found, "attention") == (
        "the attention orders no text's tokens, so that no other measure can agree with it"
    )
    nowhere = {"of": "documents", "pairs": [pair("rollout", "gradient", None), *pairs[3:]]}
    assert agreement_summary(nowhere).startswith("the rollout orders no text's documents")
