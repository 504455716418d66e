"""Each rule of the gate from both sides of its bound, the verdict's three outcomes, and how often they err."""

import json
import logging
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refuses
from scipy import stats
from written_sweeps import ASKED, N, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.gating.demands import Policy
from posgap.gating.rules import Consistency, GateInputs, Mean, Ruling, Useful
from posgap.gating.verdict import Verdict, judge
from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.filling import FillRecord
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.options.plan_gate import PlanGateConfig
from posgap.tasks.registry import TASKS
from posgap.verbs.plan_gate import plan_gate

Z = stats.norm.isf(0.05)
NOTHING_DIFFERS = 100 * Z**2 / (N + Z**2)  # Tango's upper 95 % bound where no example differs: 1.33 points


def wrong(*counts: int) -> np.ndarray:
    """Outcomes [N, 5] of which at each position the first so many are wrong."""
    return (np.arange(N)[:, None] >= counts).astype(float)


def rulings(tmp_path, candidate, base, champion=None, **options) -> dict[str, Ruling]:
    names = {"candidate": candidate, "base": base, "champion": champion}
    folders = {
        name: write_sweep(tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}", outcomes)
        for name, outcomes in names.items()
        if outcomes is not None
    }
    verdict = judge(folders["candidate"], folders["base"], folders.get("champion"), Policy(**options))
    return {ruling.name: ruling for ruling in verdict.rules}


def ruling(claim: str, threshold: float, **more) -> Ruling:
    return Ruling(name="r", meaning="", claim=claim, threshold=threshold, estimate=5.0, interval=(2.0, 8.0), **more)


def test_the_bound_decides_and_not_the_estimate():
    assert [ruling("at most", limit).outcome for limit in (1.9, 2, 7.9, 8)] == ["fail", "unsure", "unsure", "pass"]
    assert [ruling("at least", limit).outcome for limit in (8.1, 8, 2.1, 2)] == ["fail", "unsure", "unsure", "pass"]
    assert ruling("at most", 6).value == 8 and ruling("at least", 4).value == 2
    counted = ruling("at most", 6).model_copy(update={"interval": (5.0, 5.0)})
    assert ruling("at most", 6).found == "5.0 (2.0 to 8.0)" and counted.found == "5.0"


def test_the_gap_is_judged_by_the_largest_bound_of_a_pair(tmp_path):
    better, worse = wrong(0, 0, 0, 0, 8), wrong(0, 0, 60, 0, 0)
    bound = 100 * float(statistics.tango_bound(np.array(8), np.array(0), N, 0.05))
    assert 6 < bound < 8
    for limit, outcome in ((bound + 1e-6, "pass"), (bound - 1e-6, "unsure"), (0, "fail")):
        assert rulings(tmp_path, better, better, max_gap=limit)["gap"].outcome == outcome
    assert rulings(tmp_path, worse, better)["gap"].outcome == "fail"
    assert rulings(tmp_path, wrong(0, 0, 0, 0, 0), better)["gap"].value == pytest.approx(NOTHING_DIFFERS)


def test_the_mean_is_compared_with_the_champion_else_the_base(tmp_path):
    same, less = wrong(20, 20, 20, 20, 20), wrong(30, 30, 30, 30, 30)
    # Of a model that is the base in all but name, 200 examples show no more than that.
    for tolerance, outcome in ((NOTHING_DIFFERS + 1e-6, "pass"), (NOTHING_DIFFERS - 1e-6, "unsure")):
        assert rulings(tmp_path, same, same, mean_tolerance=tolerance)["mean"].outcome == outcome
    ruling = rulings(tmp_path, less, same, mean_tolerance=2)["mean"]
    assert ruling.outcome == "fail" and ruling.estimate == -5
    assert ruling.value == pytest.approx(-100 * float(statistics.tango_bound(np.array(10), np.array(0), N, 0.05)))
    assert rulings(tmp_path, less, less, champion=same, mean_tolerance=2)["mean"].outcome == "fail"
    assert rulings(tmp_path, same, less, champion=same)["mean"].meaning.startswith("mean against the champion")


@pytest.mark.full
def test_a_tolerance_below_0_is_what_the_candidate_must_gain(tmp_path):
    better, base = wrong(20, 20, 20, 20, 20), wrong(40, 40, 40, 40, 40)
    lower = -100 * float(statistics.tango_bound(np.array(0), np.array(20), N, 0.05))
    assert 5 < lower < 10
    for gain, outcome in ((lower - 1e-6, "pass"), (lower + 1e-6, "unsure"), (99, "fail")):
        assert rulings(tmp_path, better, base, mean_tolerance=-gain)["mean"].outcome == outcome
    same = rulings(tmp_path, base, base, mean_tolerance=-5)["mean"]
    assert same.outcome == "fail" and same.threshold == 5 and same.claim == "at least"


def test_the_best_position_is_that_of_the_reference(tmp_path):
    base, champion = wrong(0, 40, 60, 40, 20), wrong(30, 10, 30, 30, 30)
    candidate = wrong(8, 20, 20, 20, 20)
    ruling = rulings(tmp_path, candidate, base)["advantageous"]
    assert ruling.estimate == -4 and "position 1" in ruling.meaning
    assert ruling.value == pytest.approx(-100 * float(statistics.tango_bound(np.array(8), np.array(0), N, 0.05)))
    ruling = rulings(tmp_path, candidate, base, champion=champion)["advantageous"]
    assert ruling.estimate == -5 and "position 2" in ruling.meaning


@pytest.mark.full
@pytest.mark.parametrize(
    ("right", "options", "outcome"),
    [
        (0.0, {}, "fail"),
        (0.2, {}, "unsure"),  # one record of five is right by chance
        (0.2, {"n_docs": 50}, "pass"),
        (0.06, {"n_docs": 50}, "unsure"),
        (0.03, {"n_docs": 50}, "fail"),
        (0.5, {}, "pass"),
        (0.5, {"min_mean": 60.0}, "fail"),
    ],
)
def test_a_model_must_be_better_than_guessing(tmp_path, right, options, outcome):
    n_docs = options.pop("n_docs", 5)
    folder = write_sweep(tmp_path / "guesser", [right] * 5, n_docs=n_docs)
    verdict = judge(folder, folder, None, Policy(max_gap=100, **options))
    (useful,) = [rule for rule in verdict.rules if rule.name == "useful"]
    assert useful.outcome == outcome


def test_of_a_sweep_at_a_length_guessing_is_among_all_documents_of_its_prompts(tmp_path):
    """Its placements are depths: of 5 depths among 50 documents one answer of fifty is right by chance, not of five."""
    sweep = read_sweep(write_sweep(tmp_path / "at-a-length", [0.06] * 5))
    filled = FillRecord(length="1k", tokens=1024, depths=[0, 25, 50, 75, 100], seed=0, pool="p", documents=50)
    at_length = sweep.model_copy(update={"filled": filled})
    case = GateInputs(
        *[
            SimpleNamespace(sweep=each, correct=wrong(188, 188, 188, 188, 188), baselines={})
            for each in (at_length,) * 2
        ],
        None,
    )
    ruling = Useful().judge(Useful.Limits(min_mean=0), case)
    assert (ruling.threshold, ruling.estimate) == (2, 6)


@pytest.mark.full
def test_rules_that_ask_for_nothing_are_left_out_and_others_are_asked_for(tmp_path):
    outcomes = wrong(10, 20, 40, 20, 10)
    least = rulings(tmp_path, outcomes, outcomes, min_mean=0, max_unanswered=100, max_unclean=100)
    assert least.keys() == {"gap", "mean", "advantageous"}
    without_documents = rulings(tmp_path, outcomes, outcomes, min_mean=95)["useful"]
    assert without_documents.threshold == 95 and without_documents.outcome == "fail"
    asked = rulings(tmp_path, outcomes, outcomes, min_worst=70)
    assert asked.keys() == {"gap", "mean", "advantageous", "useful", "worst", "answered", "clean"}
    # Wilson's one-sided bound of 160 of 200 right.
    low = 100 * (0.8 + Z**2 / 400 - Z * np.sqrt(0.8 * 0.2 / 200 + Z**2 / 160000)) / (1 + Z**2 / 200)
    assert asked["worst"].value == pytest.approx(low) and asked["worst"].outcome == "pass"
    assert rulings(tmp_path, outcomes, outcomes, min_worst=90)["worst"].outcome == "fail"


def wilson(rights: int, error: float) -> tuple[float, float]:
    """Wilson's bounds, in points, of so many rights of N, each wrong with chance `error`."""
    share, z2 = rights / N, stats.norm.isf(error) ** 2
    centre, half = share + z2 / (2 * N), np.sqrt(z2 * (share * (1 - share) / N + z2 / (4 * N**2)))
    return tuple(100 * (centre + side * half) / (1 + z2 / N) for side in (-1, 1))


def test_what_is_claimed_of_the_candidate_alone_is_read_from_it_alone(tmp_path):
    candidate, base = wrong(10, 20, 40, 20, 10), wrong(60, 30, 70, 80, 30)
    asked = rulings(tmp_path, candidate, base, min_worst=70)
    assert asked["gap"].estimate == 15 and asked["gap"].interval == statistics.gap_interval(candidate)
    assert asked["useful"].estimate == 90 and asked["useful"].threshold == 20  # one record of five by chance
    means = candidate.mean(axis=1)
    assert asked["useful"].interval == pytest.approx(statistics.mean_interval(means, 0.05).tolist())
    # Every position must be shown to be good enough; of the five, one that is not could be so by chance.
    assert asked["worst"].estimate == 80
    assert asked["worst"].interval == pytest.approx((wilson(160, 0.05)[0], wilson(160, 0.01)[1]))


def test_without_a_base_the_rules_that_compare_with_none_judge_alike(tmp_path):
    folder = write_sweep(tmp_path / "a", wrong(10, 20, 40, 20, 10))
    policy = Policy(max_gap=18, min_worst=70)
    alone, beside = (judge(folder, base, None, policy).rules for base in (None, folder))
    assert [rule.name for rule in alone] == ["gap", "useful", "worst", "answered", "clean"]
    assert alone == [rule for rule in beside if rule.name not in ("mean", "advantageous")]


def test_every_claim_is_a_sentence(tmp_path):
    one_half, other_half = np.arange(N) % 2 == 0, np.arange(N) % 2 == 1
    outcomes = np.zeros((N, 10))
    outcomes[one_half, 8] = outcomes[other_half, 1] = 1
    folder = write_sweep(tmp_path / "a", outcomes, placements=[[i] for i in range(1, 11)], n_docs=10)
    policy = Policy(min_worst=50)
    assert [rule.sentence for rule in judge(folder, folder, folder, policy).rules] == [
        "gap, best minus worst position: at most 10 for certain",
        "mean against the champion: at least -3.5 for certain",
        "accuracy where the champion is best (position 2 or 9), against it: at least -7 for certain",
        "mean, against guessing: at least 10 for certain",
        "accuracy at the worst position: at least 50 for certain",
        "prompts without an answer, in percent, at the worst position: at most 2",
        "answers that repeat the prompt or are cut, in percent, at the worst position: at most 10",
    ]


def unanswered(folder: Path, most: int) -> Path:
    """A sweep of which at the positions 1 to 5 the first 0, 1, `most`, 1 and 0 prompts have no response."""
    rows = [row for _, row in read_jsonl(folder / "predictions.jsonl")]
    for row in rows:
        (position,) = row["placement"]
        row["response"] = "" if int(row["id"][1:]) < (0, 1, most, 1, 0)[position - 1] else "said"
    write_jsonl(folder / "predictions.jsonl", rows)
    return folder


def test_what_was_not_answered_is_counted_where_it_is_most(tmp_path):
    at_most, more = (unanswered(write_sweep(tmp_path / str(n), wrong(5, 5, 5, 5, 5)), n) for n in (4, 5))
    for folder, outcome in ((at_most, "pass"), (more, "fail")):
        (ruling,) = [r for r in judge(folder, None, None, Policy(max_unanswered=2)).rules if r.name == "answered"]
        share = 100 * (4 if folder == at_most else 5) / N
        assert (ruling.outcome, ruling.estimate, ruling.interval) == (outcome, share, (share, share))
    # What base or champion did not answer would flatter the candidate.
    answered = write_sweep(tmp_path / "answered", wrong(5, 5, 5, 5, 5))
    assert judge(answered, at_most, at_most, Policy(max_unanswered=2)).evidence_gaps == []
    for sweeps, role in (((more, at_most), "base"), ((at_most, more), "champion"), ((more, None), "base")):
        (complaint,) = judge(answered, *sweeps, Policy(max_unanswered=2)).evidence_gaps
        assert complaint == (
            f"{role}: 7 of 1000 prompts were not answered (empty 7), at most 2.5 % at a placement (3), and the gate "
            "allows 2 %"
        )


def verdict(*outcomes: str, evidence_gaps=None) -> Verdict:
    limits = {"pass": 9, "unsure": 5, "fail": 1}
    rules = [ruling("at most", limits[outcome], needs=100 * i or None) for i, outcome in enumerate(outcomes)]
    return Verdict(
        model_digest="",
        evidence_gaps=evidence_gaps or [],
        asked_otherwise=[],
        policy=Policy(),
        evidence={},
        rules=rules,
    )


def test_a_verdict_has_three_outcomes():
    assert verdict("pass", "pass").outcome == "admitted"
    assert verdict("pass", "unsure").outcome == "not enough evidence"
    assert verdict("fail", "unsure").outcome == "refused"
    assert verdict("pass", evidence_gaps=["9 examples"]).outcome == "not enough evidence"
    assert verdict("fail", evidence_gaps=["9 examples"]).outcome == "refused"
    assert verdict().outcome == "not enough evidence"  # who asks for nothing has shown nothing
    assert [v.passed for v in (verdict("pass"), verdict("unsure"), verdict("fail"), verdict())] == [True, *[False] * 3]
    assert [verdict(*v).error("m").exit_code for v in (["fail"], ["unsure"], [])] == [3, 7, 7]
    assert str(verdict("fail", "unsure").error("m")) == "the gate refused m: r 5.0 (2.0 to 8.0), threshold 1"
    unsure = verdict("unsure", "pass", "unsure").model_copy(update={"needs": 250})
    assert str(unsure.error("m")).endswith("; sweep at least 250 examples")


def test_what_a_file_says_of_its_outcome_is_not_believed():
    edited = json.loads(verdict("fail").model_dump_json()) | {"outcome": "admitted", "passed": True}
    edited["rules"][0] |= {"passed": True, "outcome": "pass", "value": 0.0}
    assert Verdict.model_validate(edited).outcome == "refused"


@pytest.mark.parametrize(
    ("flat", "limit", "code"),
    [(0.995, 10, 0), (0.9, 6, 7), (0.995, 1, 7)],
)
def test_the_exit_code_says_which(tmp_path, capsys, flat, limit, code):
    base = write_sweep(tmp_path / "base", [0.9, 0.6, 0.3, 0.6, 0.9])
    new = write_sweep(tmp_path / "new", [flat] * 5)
    words = ["--candidate", new, "--base", base, "--max-gap", limit, "--out", tmp_path / "gate"]
    with pytest.raises(SystemExit) as stopped:
        main(["gate", *map(str, words)])
    assert (stopped.value.code or 0) == code
    told = capsys.readouterr().err.splitlines()[-1]
    assert code == 0 or ("not enough evidence" in told and "sweep at least" in told and "Traceback" not in told)


@cache
def difficulty(mean: float, spread: float = 2.0) -> float:
    """Where the logistic of a normal number with this spread has this mean."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    at = np.linspace(-12, 12, 4001)
    return float(np.interp(mean, (stats.logistic.cdf(at[:, None] + spread * nodes) @ weights) / weights.sum(), at))


def simulated(curve, n: int, rng) -> np.ndarray:
    places = np.array([difficulty(mean) for mean in curve])
    return (rng.random((n, len(curve))) < stats.logistic.cdf(places + 2 * rng.standard_normal((n, 1)))).astype(float)


def test_a_flat_model_passes_the_gap_rule_and_one_with_a_hole_of_that_size_does_not():
    rng, runs = np.random.default_rng(0), 40
    flat, hole = np.full(20, 0.9), np.full(20, 0.9)
    hole[7] -= 0.1
    passed = {
        name: np.mean([statistics.gap_interval(simulated(curve, 500, rng))[1] <= 10 for _ in range(runs)])
        for name, curve in {"flat": flat, "hole": hole}.items()
    }
    assert passed["flat"] >= 0.9 and passed["hole"] <= 0.05


@pytest.mark.nightly
def test_a_plan_says_what_the_policy_needs(capsys, caplog):
    caplog.set_level(logging.INFO)
    told = plan_gate(PlanGateConfig(mean=90, correlation=0.3, n_docs=5))
    assert json.loads(capsys.readouterr().out) == told
    examples, low, high = told["examples"], *told["range"]
    assert examples.keys() == {"gap", "mean", "advantageous", "useful", "policy", "check"}
    # Of the rules that need no base, the gap wants the most.
    assert examples["useful"] <= examples["gap"] == examples["check"] < examples["policy"]
    alone = f"posgap check, which needs no base: a flat model passes in 80 % with {examples['check']} or more"
    assert alone in caplog.messages
    assert 180 < examples["gap"] < 220 and max(examples["mean"], low) < examples["policy"] < high < 1.2 * low
    needed = f"with {examples['policy']} or more ({low} to {high}, by 1,024 simulated sweeps)"
    assert f"the policy, that is all of them: a flat model passes in 80 % {needed}" in caplog.messages
    strict = plan_gate(PlanGateConfig(mean=90, correlation=0.3, n_docs=5, max_gap=5, min_worst=80))["examples"]
    assert strict["gap"] > 3 * examples["gap"] and "worst" in strict


@pytest.mark.full
def test_what_no_number_of_examples_shows_has_none(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("posgap.gating.passing.MAX_PROMPTS", 20_000)  # which takes less time
    told = plan_gate(PlanGateConfig(mean=90, n_docs=2, min_worst=95))
    assert told["examples"]["worst"] is told["examples"]["policy"] is None and told["range"] == [None, None]
    assert "the policy, that is all of them: no number is enough up to 500,000 prompts" in caplog.messages


@pytest.mark.full
def test_the_gate_says_how_many_examples_it_wants(tmp_path):
    rng = np.random.default_rng(4)
    flat = simulated([0.9] * 5, N, rng)
    ruling = rulings(tmp_path, flat, flat, max_gap=5)["gap"]
    assert ruling.outcome == "unsure"
    enough = [statistics.gap_interval(simulated([0.9] * 5, ruling.needs, rng))[1] <= 5 for _ in range(100)]
    assert 0.6 < np.mean(enough) <= 0.97


def test_consistency_is_the_share_of_examples_with_one_choice_in_every_order(tmp_path):
    folder = write_sweep(tmp_path / "judged", wrong(0, 0, 0, 0, 0))
    rows = [row for _, row in read_jsonl(folder / "predictions.jsonl")]
    for row in rows:  # the right item wherever it stands, but for ten examples the first one
        row["response"] = "ABCDE"[row["placement"][0] - 1] if int(row["id"][1:]) >= 10 else "A"
    write_jsonl(folder / "predictions.jsonl", rows)
    sweep = SimpleNamespace(asked_task=TASKS["options"], n_docs=5)
    case = GateInputs(SimpleNamespace(sweep=sweep, path=folder, sample=Evidence(folder).sample))
    for least, outcome in ((90, "pass"), (95, "unsure"), (99, "fail")):
        asked = Consistency.Limits(min_consistency=least)
        ruling = Consistency().judge(asked, case)
        assert Consistency().is_asked(asked) and (ruling.outcome, ruling.estimate) == (outcome, pytest.approx(95))
    assert not Consistency().is_asked(Consistency.Limits())
    sweep.asked_task = TASKS["kv"]
    with refuses(PosgapError, "min_consistency", "kv"):
        Consistency().judge(asked, case)


@pytest.mark.parametrize("left", [0, 2])
def test_what_a_champion_left_unanswered_hides_no_loss(tmp_path, left):
    """A candidate loses at one position what the champion left unanswered at another: a loss, and none to make up."""
    lost = np.ones((N, 5))
    lost[:left, 2] = 0
    candidate = Evidence(write_sweep(tmp_path / "candidate", lost, order=range(N - 1, -1, -1)))
    folder = write_sweep(tmp_path / "champion", wrong(left, 0, 0, 0, 0))
    rows = read_predictions(folder)
    for row in rows:
        if not row["correct"]:
            row["outcome"] = "failed"
    champion = Evidence(folder, None, rows).reorder_like(candidate)
    gains = candidate.gains_over(champion)
    assert gains.mean(axis=0).tolist() == [0, 0, -left / N, 0, 0] and not gains[:, 0].any()
    # The other way round nothing is taken back: what a candidate leaves unanswered is wrong.
    assert champion.gains_over(candidate).mean(axis=0).tolist() == [-left / N, 0, left / N, 0, 0]
    ruling = Mean().judge(Mean.Limits(), GateInputs(candidate, champion, None))
    assert ruling.estimate == pytest.approx(-100 * left / N / 5)


def test_of_several_samples_the_share_that_a_champion_answered_counts(tmp_path):
    asked = ASKED.model_copy(update={"samples": 2})
    folder = write_sweep(tmp_path / "champion", np.ones((N, 5)))
    sweep = read_sweep(folder).model_copy(update={"asked": asked})
    once = read_predictions(folder)
    twice = [row | {"sample": 1, "correct": False, "outcome": "failed"} for row in once]
    champion = Evidence(folder, sweep, once + twice)
    candidate = Evidence(folder, sweep, once + [row | {"sample": 1} for row in once])
    assert (champion.correct == 0.5).all() and (candidate.gains_over(champion) == 0).all()
