"""The gate's verdict: what it records of itself, and what people read of it."""

import json
from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
from scipy import stats
from written_sweeps import ASKED, N, write_sweep

from posgap.foundation.files import digest_of, digest_path, write_json
from posgap.foundation.registry import Parameters
from posgap.gating.demands import Policy
from posgap.gating.evidence import read_gate_inputs
from posgap.gating.passing import POLICY, PassRates
from posgap.gating.rules import GateInputs, Ruling
from posgap.gating.verdict import (
    LATER,
    Verdict,
    _with_need,
    asked_rules,
    digests,
    examples_needed,
    judge,
    log_verdict,
    markdown,
    read_verdict,
)
from posgap.measurement.evidence import Evidence
from posgap.measurement.power import assumptions_from_pair
from posgap.tracking.runs import start_run

GOOD = [0.995] * 5
Z_NEXT = stats.norm.isf(0.05 * LATER)


def ruling(name: str, limit: float, needs: int | None = None) -> Ruling:
    """Of a gap that is estimated as 5 and lies between 2 and 8."""
    return Ruling(
        name=name,
        meaning=name,
        claim="at most",
        threshold=limit,
        estimate=5.04,
        interval=(2.0, 8.0),
        needs=needs,
    )


PASSED, FAILED = ruling("wide", 12.5), ruling("narrow", 1)
UNSURE, MORE_UNSURE = ruling("gap", 5, needs=300), ruling("mean", 4, needs=200)


def verdict(*rules: Ruling, evidence_gaps=(), otherwise=(), needs=None) -> Verdict:
    return Verdict(
        model_digest="",
        evidence_gaps=list(evidence_gaps),
        asked_otherwise=list(otherwise),
        policy=Policy(),
        evidence={},
        rules=list(rules),
        needs=needs,
        measured="measured at 5 documents of task kv alone",
    )


MEASURED = "\nThis verdict was measured at 5 documents of task kv alone.\n"
TABLE = f"""# Refused

|            | rule                           | value | threshold | estimate |     bounds | examples needed |
|------------|--------------------------------|------:|----------:|---------:|-----------:|----------------:|
| pass       | wide: at most 12.5 for certain |   8.0 |      12.5 |      5.0 | 2.0 to 8.0 |                 |
| **unsure** | gap: at most 5 for certain     |   8.0 |         5 |      5.0 | 2.0 to 8.0 |             300 |
| **fail**   | narrow: at most 1 for certain  |   8.0 |         1 |      5.0 | 2.0 to 8.0 |                 |
{MEASURED}"""


def test_a_verdict_is_read_as_a_table():
    assert markdown(verdict(PASSED, UNSURE, FAILED)) == TABLE


def test_below_the_table_stands_what_is_lacking_and_what_was_allowed():
    table = markdown(verdict(PASSED)).removeprefix("# Admitted\n").removesuffix(MEASURED)
    evidence_gaps, otherwise = ["9 examples, and the gate asks for 100", "x"], ["prompt", "shuffle"]
    little = "\nThere is too little to judge by: 9 examples, and the gate asks for 100; x.\n"
    note = "\nThe sweeps were not asked alike, as was allowed: prompt, shuffle.\n"
    both = verdict(PASSED, evidence_gaps=evidence_gaps, otherwise=otherwise)
    assert markdown(both) == f"# Not enough evidence\n{table}{little}{note}{MEASURED}"
    assert markdown(verdict(PASSED, otherwise=otherwise)) == f"# Admitted\n{table}{note}{MEASURED}"
    more = (
        "\nWith 420 examples (each group of related ones counts once), a model that is flat and has lost nothing "
        "would be admitted in 80 % of all cases.\n"
    )
    assert (
        markdown(verdict(PASSED, evidence_gaps=evidence_gaps, needs=420))
        == f"# Not enough evidence\n{table}{little}{more}{MEASURED}"
    )


@pytest.mark.parametrize(
    ("reached", "line"),
    [
        (
            verdict(PASSED, FAILED, UNSURE, ruling("worst", 0)),
            "the gate refused m: narrow 5.0 (2.0 to 8.0), threshold 1; worst 5.0 (2.0 to 8.0), threshold 0",
        ),
        (
            verdict(PASSED, MORE_UNSURE, UNSURE, ruling("worst", 7), evidence_gaps=["few", "holes"], needs=420),
            "there is not enough evidence to admit m: mean 5.0 (2.0 to 8.0), threshold 4 (wants 200 examples); "
            "gap 5.0 (2.0 to 8.0), threshold 5 (wants 300 examples); "
            "worst 5.0 (2.0 to 8.0), threshold 7; few; holes; sweep at least 420 examples",
        ),
        (verdict(PASSED, evidence_gaps=["few"]), "there is not enough evidence to admit m: few"),
        (verdict(), "there is not enough evidence to admit m: no rule was asked"),
    ],
    ids=["refused", "unsure", "too little", "nothing asked"],
)
def test_the_reasons_are_told_in_one_line(reached, line):
    assert str(reached.error("m")) == line


def test_a_verdict_records_what_it_rests_on(tmp_path, model_folder):
    asked = ASKED.model_copy(update={"prompt": "q"})
    folders = {
        "candidate": write_sweep(tmp_path / "new", GOOD, model=model_folder, examples="e"),
        "base": write_sweep(tmp_path / "old", [0.9] * 5, asked=asked, examples="e"),
        "champion": write_sweep(tmp_path / "best", [0.95] * 5, seed=1, examples="e"),
    }
    policy = Policy(max_gap=12.5, allow=["prompt", "decoding"])
    reached = judge(*folders.values(), policy)
    assert reached.model_digest == digest_path(model_folder)
    assert reached.evidence_gaps == [] and reached.asked_otherwise == ["prompt"] and reached.policy == policy
    assert reached.evidence.keys() == folders.keys()
    for role, record in reached.evidence.items():
        assert record.files["sweep.json"] == digest_path(folders[role] / "sweep.json")
    assert judge(folders["candidate"], folders["base"], None, policy).evidence.keys() == {"candidate", "base"}
    alone = judge(folders["candidate"], None, None, policy)
    assert alone.evidence.keys() == {"candidate"} and [rule.name for rule in alone.rules] == [
        "gap",
        "useful",
        "answered",
        "clean",
    ]
    assert digests(alone) == {
        "candidate": {
            "model": digest_path(model_folder),
            "examples": "e",
            "settings": digest_of({}),
            "sweep.json": digest_path(folders["candidate"] / "sweep.json"),
            "predictions.jsonl": digest_path(folders["candidate"] / "predictions.jsonl"),
        }
    }
    few = judge(*folders.values(), policy.model_copy(update={"least_examples": 201}))
    assert few.evidence_gaps == ["200 examples, and the gate asks for 201"] and few.outcome == "not enough evidence"
    write_json(tmp_path / "gate.json", json.loads(reached.model_dump_json()))
    assert read_verdict(tmp_path) == read_verdict(tmp_path / "gate.json") == reached


def test_each_rule_is_asked_with_its_own_parameters():
    policy = Policy(max_gap=3, min_mean=0, min_worst=50)
    asked = {rule.name: parameters.model_dump() for rule, parameters in asked_rules(policy)}
    assert asked == {
        "gap": {"max_gap": 3.0},
        "mean": {"mean_tolerance": 3.5},
        "advantageous": {"advantageous_tolerance": 7.0},
        "worst": {"min_worst": 50.0},
        "answered": {"max_unanswered": 2.0},
        "clean": {"max_unclean": 10.0},
    }


def test_only_a_rule_that_is_unsure_says_how_many_examples_it_needs(tmp_path):
    right = write_sweep(tmp_path / "right", np.ones((N, 5)))
    rules = {rule.name: rule for rule in judge(right, right, None, Policy(max_gap=2, mean_tolerance=1), look=1).rules}
    assert {name: rule.outcome for name, rule in rules.items()} == {
        "gap": "pass", "mean": "unsure", "advantageous": "pass", "useful": "pass", "answered": "pass", "clean": "pass"
    }  # fmt: skip
    # Of n examples that are all alike, Tango's upper bound is z^2 / (n + z^2), and the next look's is stricter.
    assert rules["mean"].needs == pytest.approx(99 * Z_NEXT**2, rel=0.01)
    assert rules["gap"].needs is rules["advantageous"].needs is rules["useful"].needs is None
    checked = [judge(right, None, None, Policy(max_gap=1), look=look).rules[0].needs for look in (1, 2, None)]
    z = stats.norm.isf([0.05 * LATER, 0.05 * LATER**2, 0.05])  # the next look is not stricter where none is counted
    assert checked == pytest.approx(99 * z**2, rel=0.01)


@pytest.mark.nightly
def test_models_that_err_on_other_examples_need_more_of_them(tmp_path):
    wrong = np.arange(N)[:, None].repeat(5, axis=1) // 20  # the first twenty, the next twenty ...
    new, alike, apart = (write_sweep(tmp_path / f, wrong != i) for f, i in (("new", 0), ("alike", 0), ("apart", 1)))
    needs = [judge(new, base, None, Policy(mean_tolerance=1), look=1).rules[1].needs for base in (alike, apart)]
    assert needs[0] == pytest.approx(99 * Z_NEXT**2, rel=0.01)
    # A difference of two such models varies by 0.18: the number is that of a paired test with 80 % power.
    assert needs[1] == pytest.approx(0.18 * ((Z_NEXT + stats.norm.isf(0.2)) / 0.01) ** 2, rel=0.06)


@pytest.mark.full
def test_the_number_of_examples_for_a_verdict_is_that_for_all_rules_together(tmp_path):
    """Two rules that are passed in 80 % each are both passed in less."""
    rng = np.random.default_rng(8)
    one, other = (write_sweep(tmp_path / name, (rng.random((N, 5)) < 0.9).astype(float)) for name in ("one", "other"))
    policy = Policy(max_gap=6, mean_tolerance=1, advantageous_tolerance=4)
    reached = judge(one, other, None, policy, look=1)
    assert reached.outcome == "not enough evidence"
    case, _ = read_gate_inputs(one, other, None, [])
    assumed = assumptions_from_pair(case.candidate.correct, case.reference.correct)._replace(share=LATER)

    passing = PassRates(asked_rules(policy), assumed)
    assert passing.pass_rate(POLICY, round(reached.needs / 1.02)) < 0.8 <= passing.pass_rate(POLICY, reached.needs)
    assert reached.needs > max(rule.needs for rule in reached.rules if rule.needs)


def test_no_more_examples_are_wanted_where_a_flat_model_passes_with_these(tmp_path):
    outcomes = np.ones((N, 5))
    outcomes[:8, 4] = 0  # an uneven model: it is not the number of examples that it lacks
    uneven = write_sweep(tmp_path / "uneven", outcomes)
    for max_gap, is_asked_for_more in ((6, False), (4.2, True)):
        reached = judge(uneven, uneven, None, Policy(max_gap=max_gap), look=1)
        assert reached.rules[0].outcome == "unsure" and bool(reached.rules[0].needs) == is_asked_for_more
        assert bool(reached.needs) == is_asked_for_more
        (threshold,) = reached.rules[0].would_do.values()
        wants = f"wants {reached.rules[0].needs:,} examples, or max" if is_asked_for_more else "wants max"
        assert f"{wants}_gap {threshold:g} with these" in str(reached.error("m"))
        assert judge(uneven, uneven, None, Policy(max_gap=threshold), look=1).rules[0].passed
        assert not judge(uneven, uneven, None, Policy(max_gap=threshold - 0.1), look=1).rules[0].passed
    assert N < judge(uneven, uneven, None, Policy(max_gap=4.2)).needs < reached.needs  # no look is counted
    outcomes[:60, 4] = 0
    worse = write_sweep(tmp_path / "worse", outcomes)
    refused = judge(worse, worse, None, Policy(max_gap=5))
    assert refused.outcome == "refused" and refused.needs is None  # no number of examples makes up for it
    assert judge(uneven, uneven, None, Policy(max_gap=50)).needs is None


@pytest.mark.full
def test_no_fewer_examples_are_asked_for_than_the_policy_does(tmp_path):
    right = write_sweep(tmp_path / "right", np.ones((N, 5)))
    uneven = np.ones((N, 5))
    uneven[:8, 4] = 0
    unsure = write_sweep(tmp_path / "unsure", uneven)
    uneven[:60, 4] = 0
    worse = write_sweep(tmp_path / "worse", uneven)

    def needs(folder, least: int, max_gap: float = 4.2) -> int | None:
        return judge(folder, folder, None, Policy(max_gap=max_gap, least_examples=least), look=1).needs

    assert (needs(right, N), needs(right, N + 1), needs(right, 500)) == (None, N + 1, 500)
    # What cannot admit is no look, so that the next one has all of the error.
    by_rules, later = needs(unsure, N + 1), needs(unsure, N)
    assert N + 1 < by_rules < 220 < 280 < later < 320
    assert (needs(unsure, by_rules), needs(unsure, by_rules + 1)) == (by_rules, by_rules + 1)
    assert needs(unsure, N + 1, max_gap=6) == N + 1  # where no number would do by the rules
    assert needs(worse, 500) is None


@pytest.mark.usefixtures("mlflow_store")
def test_a_run_is_told_the_verdict_and_the_figures_that_it_rests_on(tmp_path):
    folder = write_sweep(tmp_path / "right", np.ones((N, 5)))
    reached = judge(folder, None, None, Policy(max_gap=12.5))
    swept = Evidence(folder).sweep.model_copy(update={"label": "after", "gap": 1.5, "mean": 98.5})
    with start_run("gate", {}, tmp_path / "gate") as run:
        log_verdict(reached, swept, run)
    (logged,) = mlflow.search_runs(experiment_names=["posgap"], output_format="list")
    values = {f"{rule.name}_value": pytest.approx(rule.value) for rule in reached.rules}
    assert values.keys() == {"gap_value", "useful_value", "answered_value", "clean_value"}
    assert logged.data.metrics == {"gap": 1.5, "mean": 98.5, **values}
    tags = {name: logged.data.tags[f"posgap.{name}"] for name in ("gate", "label", "policy_digest")}
    assert tags == {"gate": "admitted", "label": "after", "policy_digest": reached.policy_digest}


def test_a_rule_that_cannot_say_how_often_it_is_passed_names_no_number_of_examples(tmp_path):
    right = Evidence(write_sweep(tmp_path / "right", np.ones((N, 5))))
    rule = SimpleNamespace(
        name="gap", is_simulated=False, judge=lambda limits, inputs: ruling("gap", 5), threshold_for=lambda bound: {}
    )
    case = GateInputs(right, right, None)
    needed = examples_needed([(rule, Parameters())], case, LATER)
    assert _with_need(rule, ruling("gap", 5), needed) == ruling("gap", 5)
