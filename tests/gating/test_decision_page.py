"""The page of a verdict: why, by how much, where, and what would decide it."""

import re

import pytest
from report_pages import Reader
from written_sweeps import write_sweep

from posgap.gating.decision_page import decision_page, explain_verdict, more_examples
from posgap.gating.demands import Policy
from posgap.gating.rules import GATE_RULES
from posgap.gating.verdict import judge
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.verbs.gate import judge_and_write

FLAT, U_SHAPED, NOISY = [0.995] * 5, [1.0, 0.6, 0.3, 0.6, 0.9], [0.94] * 5
PAIRS = [[1, 2], [4, 5], [1, 4], [2, 1], [5, 4]]


def judged(tmp_path, candidate, base=U_SHAPED, policy=None, placements=None, label="r1"):
    """The verdict on a candidate, and its sweep and the base's by role."""
    probabilities = {"candidate": candidate, "base": base} if base else {"candidate": candidate}
    folders = {role: write_sweep(tmp_path / role, p, placements=placements) for role, p in probabilities.items()}
    verdict = judge(folders["candidate"], folders.get("base"), None, policy or Policy())
    sweeps = {role: read_sweep(folder).model_copy(update={"label": role}) for role, folder in folders.items()}
    return verdict, sweeps | {"candidate": sweeps["candidate"].model_copy(update={"label": label})}


def said(page: str) -> str:
    return " ".join(Reader(page).text.split())


def test_a_refusal_says_which_rule_by_how_much_and_where(tmp_path):
    verdict, sweeps = judged(tmp_path, U_SHAPED)
    (gap,) = [rule for rule in verdict.rules if rule.name == "gap"]
    text = said(decision_page(verdict, sweeps))
    low, swept = gap.interval[0], sweeps["candidate"]
    assert "r1: refused r1 was refused, because some positions are much worse than others (gap" in text
    assert f"at least {low:.1f} for certain, and at most 10 is allowed)" in text
    assert f"broken by at least {low - 10:.1f} points" in text
    for placement, words in ((swept.advantageous, "its best"), (swept.worst.placement, "its worst")):
        at = swept.placements.index(placement)
        (least, most), accuracy = swept.ci95[at], swept.accuracy[at]
        figures = f"{accuracy:.1f} % ({least:.1f} to {most:.1f}) with the answer at position {placement[0]}, {words}"
        assert figures in text
    assert "The base reaches an accuracy of" in text
    assert more_examples(verdict, swept) in text and "would hardly change this" in text


def test_what_was_counted_is_not_said_to_be_certain_of_other_examples(tmp_path):
    """Three answers a position, all cut, were called "at least 100.0 for certain"."""
    verdict, sweeps = judged(tmp_path, FLAT)
    rules = [rule.model_copy(update={"estimate": 100.0, "interval": (100.0, 100.0)} if rule.name == "clean" else {})
             for rule in verdict.rules]  # fmt: skip
    refused = verdict.model_copy(update={"rules": rules})
    assert (
        refused.outcome == "refused"
        and "percent, at the worst position: 100.0, and at most 10 is allowed"
        in explain_verdict(refused, sweeps["candidate"])
    )
    assert "were counted in this sweep" in more_examples(refused, sweeps["candidate"])


def test_an_admission_says_what_is_certain(tmp_path):
    verdict, sweeps = judged(tmp_path, FLAT)
    text = said(decision_page(verdict, sweeps))
    assert all(rule.help in explain_verdict(verdict, sweeps["candidate"]) for rule in GATE_RULES if rule.name in
               {ruling.name for ruling in verdict.rules})  # fmt: skip
    spare = [f"holds, with {abs(rule.threshold - rule.value):.1f} points to spare" for rule in verdict.rules]
    assert len(spare) == 6 and all(words in text for words in spare)
    assert more_examples(verdict, sweeps["candidate"]) == ""


def test_want_of_evidence_says_how_many_examples_would_do(tmp_path):
    verdict, sweeps = judged(tmp_path, NOISY, policy=Policy(mean_tolerance=2, advantageous_tolerance=5))
    assert verdict.outcome == "not enough evidence"
    assert verdict.needs > max(rule.needs for rule in verdict.rules if rule.needs) > 200
    text = said(decision_page(verdict, sweeps))
    assert "reference's best position." in text
    assert f"200 examples are too few to tell. With {verdict.needs} examples (each group" in text


def test_too_few_examples_are_said_to_be_too_few(tmp_path):
    verdict, sweeps = judged(tmp_path, FLAT, policy=Policy(least_examples=500))
    assert explain_verdict(verdict, sweeps["candidate"]).endswith("200 examples, and the gate asks for 500.")


@pytest.mark.parametrize("placements", [None, PAIRS])
@pytest.mark.parametrize("base", [U_SHAPED, None])
def test_pages_are_whole_need_no_network_and_escape_names(tmp_path, base, placements):
    verdict, sweeps = judged(tmp_path, FLAT, base, placements=placements, label="<script>x</script>")
    text = decision_page(verdict, sweeps)
    read = Reader(text)
    assert not re.search(r"https?:|url\(|@import|<link|<img", text)
    assert not {"src", "href"} & {name for _, name, _ in read.attributes}
    assert "<script>x</script>" in read.text and verdict.policy_digest in read.text
    assert ("<svg" in text) == (placements is None) and ('class="heat"' in text) == (placements is not None)


def test_the_gate_writes_it_for_refusals_too(tmp_path):
    base = write_sweep(tmp_path / "base", U_SHAPED)
    folder = judge_and_write(GateConfig(candidate=base, base=base, out=tmp_path / "gate"))
    assert "refused" in said((folder / "gate.html").read_text())
