"""Whether measures of influence agree: against scipy, text by text."""

import numpy as np
import pytest
from scipy import stats

from posgap.rollout.agreement import agreement
from posgap.rollout.agreement import summary_text as agreement_summary


def test_agreement_is_scipy_s_over_each_text_s_documents():
    rng = np.random.default_rng(0)
    one, other = rng.random((9, 6)), rng.random((9, 6))
    flat = np.vstack([np.ones((8, 6)), one[:1]])
    shares = {"rollout": one, "gradient": one**3, "value_norm": -one, "other": other, "flat": flat}
    found = agreement(shares, "documents", 0)
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
    nothing = agreement({"rollout": np.ones((2, 3)), "gradient": one[:2, :3]}, "tokens", 0)
    assert nothing["pairs"][0]["spearman"] is None and "orders no text's tokens" in agreement_summary(nothing)
