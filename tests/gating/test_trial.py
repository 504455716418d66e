"""What a version is asked again before it serves, and that edited responses are found by it."""

import logging
import random
import re
import shutil

import numpy as np
import pytest
from examples import kv_example
from refusals import refuses
from written_sweeps import LAX, N, example, write_sweep

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction, PosgapError
from posgap.foundation.files import read_json, write_json, write_jsonl
from posgap.gating import trial
from posgap.gating.demands import Policy
from posgap.gating.evidence import read_gate_inputs
from posgap.gating.rules import GateInputs, Mean
from posgap.gating.trial import DecidingEdits, require_answers, require_references, require_triable
from posgap.gating.verdict import asked_rules
from posgap.generation.generator import Completion
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.predictions import read_predictions
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.tracking import answering


def curve(*wrong):
    """Scores [N, 5] with so many wrong ones at each position, each of other examples."""
    scores = np.ones((N, 5))
    at = 0
    for column, count in enumerate(wrong):
        scores[(np.arange(count) + at) % N, column] = 0
        at += count
    return scores


HONEST = curve(2, 4, 26, 24, 3)
FORGED = curve(2, 4, 4, 4, 3)


@pytest.fixture
def answers(monkeypatch):
    """Has models answer as these scores say; what was asked again is kept."""
    said = {"scores": FORGED, "asked": [], "cut": False, "say": lambda example, text: text}

    class Answers:
        def __init__(self, *_):
            pass

        def answer(self, rows):
            said["asked"] += rows
            responses = []
            for row in rows:
                number = int(row["id"][1:])
                is_right = said["scores"][number, row["placement"][0] - 1]
                text = f'"{example(number).answers[0]}"' if is_right else "said"
                responses.append(Completion(said["say"](example(number), text), [], cut=said["cut"]))
            return responses

    monkeypatch.setattr(trial, "SweptAnswers", Answers)
    monkeypatch.setattr(trial, "why_not_tried", lambda *_: "")
    return said


def judged(tmp_path, scores, base=None, **demands):
    """What is tried of a sweep with these scores, beside a base with the same ones or with others."""
    tmp_path.mkdir(exist_ok=True)
    base = write_sweep(tmp_path / "base", scores if base is None else base)
    swept = write_sweep(tmp_path / "swept", scores)
    policy = Policy(**demands)
    return read_gate_inputs(swept, base, None, [])[0], policy, swept_examples(swept), swept


def test_a_model_that_answers_as_it_was_swept_is_asked_where_the_verdict_rests(tmp_path, answers, caplog):
    caplog.set_level(logging.INFO)
    inputs, policy, examples, swept = judged(tmp_path, FORGED)
    require_answers(tmp_path, inputs, policy, examples, swept)
    asked = answers["asked"]
    assert caplog.messages == [f"candidate: {len(asked)} of {len(asked)} sampled responses match the sweep"]
    edits = DecidingEdits(inputs, asked_rules(policy))
    assert min(edits.made_right) < 15, "so few edits at one position change the verdict"
    assert 16 <= len(asked) < 0.6 * FORGED.size


@pytest.mark.nightly
def test_edits_that_turn_the_verdict_are_found_in_nineteen_of_twenty(tmp_path, answers, monkeypatch):
    """Of 750 responses 31 had been written right at the worst positions, and were promoted three times of three."""
    inputs, policy, examples, swept = judged(tmp_path, FORGED)
    honest, *_ = judged(tmp_path / "honest", HONEST)
    rules = asked_rules(policy)
    assert all(rule.judge(limits, inputs).passed for rule, limits in rules)
    assert not all(rule.judge(limits, honest).passed for rule, limits in rules)
    answers["scores"] = HONEST
    found = 0
    for seed in range(20):
        monkeypatch.setattr(trial.random, "SystemRandom", lambda seed=seed: random.Random(seed))
        try:
            require_answers(tmp_path, inputs, policy, examples, swept)
        except PosgapError as error:
            assert re.search("not admit it: gap|right responses have a lower score", str(error))
            found += 1
    assert found >= 19


def test_few_near_ties_that_fall_otherwise_do_no_harm(tmp_path, answers):
    inputs, policy, examples, swept = judged(tmp_path, FORGED)
    answers["scores"] = FORGED.copy()
    answers["scores"][150:152, 2] = 0
    for _ in range(3):
        require_answers(tmp_path, inputs, policy, examples, swept)


def test_a_cut_that_a_row_hides_is_seen(tmp_path, answers):
    """Many cut answers are a refusal by themselves."""
    inputs, policy, examples, swept = judged(tmp_path, FORGED)
    answers["cut"] = True
    with refuses(Contradiction, "is cut"):
        require_answers(tmp_path, inputs, policy, examples, swept)


def test_responses_edited_to_hide_that_they_repeat_the_prompt_are_found(tmp_path, answers):
    """Their scores stay: records that are listed hold the right one."""
    inputs, policy, examples, swept = judged(tmp_path, FORGED)

    def list_records(example, text):
        records = ", ".join(f'"{key}": "{value}"' for key, value in example.records)
        return text if int(example.id[1:]) % 3 else f"{{{records}}}"

    answers["say"] = list_records
    with refuses(Contradiction, "repeat the prompt"):
        require_answers(tmp_path, inputs, policy, examples, swept)


def test_a_model_whose_right_answers_were_all_written_is_no_champion(tmp_path, answers):
    inputs, policy, examples, swept = judged(tmp_path, FORGED, max_gap=100)
    answers["scores"] = np.zeros((N, 5))
    with refuses(Contradiction, "only "):
        require_answers(tmp_path, inputs, policy, examples, swept)


@pytest.mark.parametrize("change", [{"zzz": 1}, {"temperature": 0.5}, {"backend": "openai"}, {"backend": "their own"}])
def test_no_setting_switches_the_trial_off_but_a_policy_may(tmp_path, model_folder, change):
    swept = write_sweep(tmp_path / "swept", FORGED, model=model_folder)
    told = read_json(swept / "sweep.json")
    write_json(swept / "sweep.json", told | {"settings": {"task": "kv", **change}})
    sweep = read_sweep(swept)
    assert answering.why_not_tried(sweep, model_folder)
    with refuses(PosgapError, "`allow: [trial]`"):
        require_triable(sweep, model_folder, Policy())
    require_triable(sweep, model_folder, Policy(allow=["trial"]))


@pytest.fixture
def first_promotion(monkeypatch):
    """Has the registry know no version, and the base's weights lie where its sweep says."""
    monkeypatch.setattr(trial.registry, "versions", lambda name: [])
    monkeypatch.setattr(trial, "_find_model", lambda sweep, role, place, base: f"where {sweep.model} lies")


@pytest.mark.usefixtures("first_promotion")
def test_a_base_made_worse_at_the_first_promotion_is_asked_again(tmp_path, answers):
    """Nothing is recorded yet, and a base that loses as many as the candidate lets a worse model in."""
    inputs, policy, examples, _ = judged(tmp_path, curve(20, 20, 20, 20, 20), base=curve(20, 20, 20, 20, 20))
    answers["scores"] = curve(2, 2, 2, 2, 2)
    with refuses(Contradiction, tmp_path / "base", "only "):
        require_references("tiny", inputs, policy, examples)
    answers["scores"] = curve(20, 20, 20, 20, 20)
    require_references("tiny", inputs, policy, examples)


@pytest.mark.usefixtures("first_promotion")
def test_a_base_that_is_nowhere_is_believed_by_a_policy_alone(tmp_path, answers, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(trial.registry, "versions", lambda name: [])
    inputs, policy, examples, _ = judged(tmp_path, FORGED)
    with refuses(PosgapError, "m: ", "`allow: [reference-trial]`"):
        require_references("tiny", inputs, policy, examples)
    require_references("tiny", inputs, Policy(allow=["reference-trial"]), examples)


def test_edits_that_are_spread_over_all_positions_are_found(tmp_path, answers):
    """At none of twenty positions alone could so many be edited that the mean turns the verdict."""
    even = curve(20, 20, 20, 20, 20)
    inputs, policy, *_ = judged(tmp_path, even, base=curve(19, 19, 19, 19, 19), max_gap=100, mean_tolerance=30)
    edits = DecidingEdits(inputs, [rule for rule in asked_rules(policy) if rule[0].name == "mean"])
    assert all(len(edits.inputs.candidate.scores) < least < 0.4 * even.size for least in edits.made_right)


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_real_base_is_asked_again_where_its_sweep_names_it(tmp_path, values_folder, capsys):
    """By the command line: responses that were made worse, and a base that was moved away, promote nothing."""
    base_model = tmp_path / "base-model"
    shutil.copytree(values_folder, base_model)
    write_examples(tmp_path / "examples.jsonl", [kv_example(number, 5) for number in range(100)])
    (tmp_path / "policy.yaml").write_text("".join(f"{name}: {most}\n" for name, most in LAX.items()))

    def posgap(*words):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--quiet"])
        return ended.value.code

    for out, model in (("base", base_model), ("new", values_folder)):
        asked = ["--task", "kv", "--n-docs", 5, "--max-new-tokens", 1, "--metric", "contains_any"]
        asked += ["--examples", tmp_path / "examples.jsonl", "--positions", "1,3,5", "--label", "m"]
        assert posgap("sweep", "--model", model, *asked, "--out", tmp_path / out) == 0

    def promoted(base, out):
        gate = ["--candidate", tmp_path / "new", "--base", base, "--policy", tmp_path / "policy.yaml"]
        assert posgap("gate", *gate, "--out", tmp_path / f"gate-{out}") == 0
        judged = ["--model", values_folder, "--sweep", tmp_path / "new", "--gate", tmp_path / f"gate-{out}"]
        return posgap("promote", *judged, "--name", "tiny", "--out", tmp_path / out)

    worse = tmp_path / "worse"
    shutil.copytree(tmp_path / "base", worse)
    rows = [row | {"response": "zz", "correct": False} for row in read_predictions(worse)]
    write_jsonl(worse / "predictions.jsonl", rows)
    edited = Evidence(worse)
    figures = summarize(edited.scores, edited.sweep.placements, 0, edited.sweep.categories, edited.sample)
    figures["outcomes"] = edited.outcomes
    known = edited.sweep.model_validate(edited.sweep.model_dump() | figures)
    write_json(worse / "sweep.json", known.model_dump(mode="json"))
    assert promoted(worse, "forged") == 2 and trial.registry.champion("tiny") is None
    assert "the sweep of the base cannot be believed: " in capsys.readouterr().err
    base_model.rename(tmp_path / "elsewhere")
    assert promoted(tmp_path / "base", "moved") == 2 and trial.registry.champion("tiny") is None
    assert "cannot ask the base prompts of its sweep again: " in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(base_model)
    assert promoted(tmp_path / "base", "honest") == 0 and trial.registry.champion("tiny")


def test_what_a_reference_left_unanswered_counts_once_it_is_answered(tmp_path):
    """A base that answers now what it had not answered is as good as a candidate that had answered it."""
    candidate = Evidence(write_sweep(tmp_path / "candidate", np.ones((N, 5))))
    folder = write_sweep(tmp_path / "base", curve(0, 0, N, 0, 0))
    rows = read_predictions(folder)
    failed = [row for row in rows if not row["correct"]]
    for row in failed:
        row["outcome"] = "failed"
    edits = DecidingEdits(GateInputs(candidate, Evidence(folder, None, rows)), [(Mean(), Mean.Limits())], "base")
    edits.require_admitted(failed, [1.0] * len(failed))
