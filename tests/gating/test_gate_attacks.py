"""What must never pass the gate, or the registry behind it: each was tried and once passed."""

import dataclasses
import json
import os
import shutil

import pytest
import written_sweeps
from refusals import refuses
from written_sweeps import ASKED, N, copy_of, decide, example, gated, promoted, promotion, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import BadOption, Contradiction, GateRefusal, Malformed, NotAlike, PosgapError
from posgap.foundation.files import digest_path, read_json, read_jsonl, write_json, write_jsonl
from posgap.gating.replay import replay_verdict
from posgap.gating.verdict import markdown
from posgap.measurement.evidence import Evidence
from posgap.measurement.merging import merge_sweeps
from posgap.measurement.sweeps import read_sweep
from posgap.options.merge import MergeConfig
from posgap.options.promote import PromoteConfig
from posgap.storage.lineage import write_training_examples
from posgap.tasks.content import content_key
from posgap.tasks.metrics import METRICS, Metric
from posgap.tasks.registry import TASKS
from posgap.tracking import registry
from posgap.verbs.merge import merge
from posgap.verbs.promote import promote

FLAT = [0.995] * 5


def edited(file, change):
    known = read_json(file)
    change(known)
    write_json(file, known)


@pytest.fixture
def admitted(tmp_path, base):
    """The folder of a gate that admitted a model."""
    verdict, _ = decide(tmp_path, write_sweep(tmp_path / "new", FLAT), base)
    assert verdict.passed
    return tmp_path / "gate"


def test_a_random_model_does_not_dethrone_a_champion(tmp_path, base):
    champion = write_sweep(tmp_path / "champion", [0.9755] * 5)
    random = write_sweep(tmp_path / "random", [0.0] * 5)
    verdict, rules = decide(tmp_path, random, random, champion=champion)
    assert not verdict.passed and not rules["mean"]


@pytest.mark.parametrize(
    ("options", "n_docs", "complaint"),
    [
        ({"placements": [[1]]}, 20, "1 placement, and the gate asks for 5"),
        ({"placements": [[1], [20]]}, 20, "nothing is known between positions 1 and 20 of 20"),
        ({"placements": [[i] for i in range(1, 6)]}, 20, "nothing is known between positions 5 and 20 of 20"),
        ({"order": [0]}, 5, "1 example, and the gate asks for 100"),
    ],
    ids=["--positions 1", "both ends", "the beginning alone", "--limit 1"],
)
def test_too_little_is_no_evidence(tmp_path, options, n_docs, complaint):
    base, new = (write_sweep(tmp_path / f, FLAT, n_docs=n_docs, **options) for f in ("old", "new"))
    verdict, _ = decide(tmp_path, new, base, max_gap=100, mean_tolerance=100, advantageous_tolerance=100)
    assert not verdict.passed and complaint in verdict.evidence_gaps


@pytest.mark.parametrize("who", ["candidate", "champion"])
def test_a_sweep_of_the_training_examples_is_refused(tmp_path, base, who):
    swept = {"candidate": write_sweep(tmp_path / "new", FLAT), "champion": write_sweep(tmp_path / "champion", FLAT)}
    write_training_examples(swept[who], [content_key(example(e)) for e in (3, 7, 1000)])
    with refuses(PosgapError, "2 of the 200", "e3"):
        decide(tmp_path, swept["candidate"], base, champion=swept["champion"])


def test_an_example_counts_once(tmp_path):
    base, new = (write_sweep(tmp_path / f, FLAT, order=[*range(100)] * 2) for f in ("old", "new"))
    with refuses(PosgapError, "100 examples", at=new):
        decide(tmp_path, new, base)


@pytest.mark.parametrize("change", [{"question": "before"}, {"shuffle": 3}, {"max_new_tokens": 1}, {"prompt": "q"}])
def test_a_base_that_was_asked_otherwise_is_refused(tmp_path, change):
    base = write_sweep(tmp_path / "old", [0.5] * 5, asked=ASKED.model_copy(update=change))
    with refuses(NotAlike, f"{next(iter(change))} ("):
        decide(tmp_path, write_sweep(tmp_path / "new", FLAT), base)


def test_a_sweep_whose_figures_are_not_its_predictions_is_refused(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.9, 0.5, 0.5, 0.5, 0.9])
    edited(new / "sweep.json", lambda sweep: sweep.update(gap_ci95=[0, 1]))
    with refuses(Contradiction, "gap_ci95.", at=new / "sweep.json"):
        decide(tmp_path, new, base)
    edited(new / "sweep.json", lambda sweep: sweep.update(accuracy=[]))
    with refuses(Malformed, "accuracy: 0 for 5", at=new / "sweep.json"):
        decide(tmp_path, new, base)


@pytest.mark.parametrize(("name", "value"), [("question", "before"), ("max_new_tokens", 9), ("temperature", 0.5)])
def test_settings_that_contradict_what_was_asked_are_refused(tmp_path, base, name, value):
    new = write_sweep(tmp_path / "new", FLAT, settings={"task": "kv", "question": "after", name: value})
    with refuses(Contradiction, f"settings.{name} is {value}", at=new / "sweep.json"):
        decide(tmp_path, new, base)


def verified(folder) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(folder)])
    return stopped.value.code


def test_a_verdict_is_replayed_wherever_its_folder_lies(tmp_path, admitted, capsys):
    elsewhere = tmp_path / "far" / "replay"
    shutil.copytree(admitted, elsewhere)
    for folder in (admitted, tmp_path / "new", tmp_path / "base"):
        shutil.rmtree(folder)
    assert verified(elsewhere) == 0
    said = capsys.readouterr().err.splitlines()
    assert f"posgap | {elsewhere}: judged again with the same verdict: admitted, of candidate, base" in said
    # A verdict that somebody wrote, and a manifest that knows it.
    edited(elsewhere / "gate.json", lambda verdict: verdict["rules"][0].update(value=1.5))
    edited(
        elsewhere / "manifest.json",
        lambda manifest: manifest["files"]["gate.json"].update(
            sha256=digest_path(elsewhere / "gate.json"), size=(elsewhere / "gate.json").stat().st_size
        ),
    )
    assert verified(elsewhere) == 1
    shown = capsys.readouterr()
    assert "gate.json: does not follow from its sweeps: " in shown.out and "1 faults in" in shown.err


def test_a_refusal_is_replayed_too(tmp_path, base):
    decide(tmp_path, base, base)
    assert not replay_verdict(tmp_path / "gate").passed


@pytest.mark.parametrize(
    ("file", "change", "kind", "named"),
    [
        ("gate.json", lambda v: v.update(passed=False), Contradiction, "passed is False"),
        ("gate.json", lambda v: v["rules"][0].update(value=1.0), Contradiction, "rules.0.value is 1.0"),
        ("gate.json", lambda v: v["policy"].update(max_gap=50), Contradiction, "rules.0.threshold is 10.0"),
        ("gate.json", lambda v: v["policy"].update(max_gap=500), Malformed, "`policy.max_gap`"),
        ("gate.json", lambda v: v["policy"].update(max_gap="nan"), Malformed, "`policy.max_gap`"),
        ("gate.json", lambda v: v["policy"].pop("max_gap"), Contradiction, "policy.max_gap is None"),
        ("gate.json", lambda v: v["policy"].update(max_hole=1), Malformed, "`policy.max_hole`"),
        ("gate.json", lambda v: v["policy"].update(version="2"), Contradiction, "policy_digest is "),
        ("gate.json", lambda v: v.update(policy_digest="0" * 64), Contradiction, "policy_digest is 0000"),
        ("gate.json", lambda v: v["evidence"].pop("base"), Malformed, "base"),
        ("gate.json", lambda v: v["evidence"]["base"].update(label="x"), Contradiction, "evidence.base.label is x"),
        ("candidate/sweep.json", lambda s: s.update(mean=99.0), Contradiction, ""),
        ("base/sweep.json", lambda s: s.update(label="other"), Contradiction, ""),
    ],
)
def test_an_edited_verdict_is_not_believed(tmp_path, admitted, model_folder, file, change, kind, named):
    edited(admitted / file, change)
    with refuses(kind, named, at=file):
        replay_verdict(admitted)
    with refuses(kind, named, at=file):
        promote(PromoteConfig(out=tmp_path / "p", model=str(model_folder), gate=admitted, sweep=tmp_path / "new"))


def test_edited_predictions_are_not_believed(admitted):
    file = admitted / "candidate" / "predictions.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row | {"correct": True}) + "\n" for row in rows))
    with refuses(Contradiction, at=file):
        replay_verdict(admitted)


@pytest.mark.usefixtures("mlflow_store")
def test_the_gate_of_one_sweep_does_not_promote_another(tmp_path, base, model_folder):
    one = promotion(tmp_path, "one", model_folder, base)
    other = write_sweep(tmp_path / "other", [0.6, 0.2, 0.2, 0.2, 0.6], model=model_folder)
    with refuses(NotAlike, other, "sweep.json", at=one.gate):
        promote(one.model_copy(update={"sweep": other}))


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_what_the_gate_refused_cannot_be_called_admitted(tmp_path, base, model_folder):
    refused = promotion(tmp_path, "refused", model_folder, base, probability=0.3)
    with refuses(GateRefusal, ": mean "):
        promote(refused)
    edited(refused.gate / "gate.json", lambda verdict: verdict.update(passed=True))
    with refuses(Contradiction, "passed is True", at="gate.json"):
        promote(refused)


@pytest.mark.usefixtures("mlflow_store")
def test_a_model_whose_training_the_sweep_hides_is_not_promoted(tmp_path, base, model_folder):
    learnt = tmp_path / "learnt"
    shutil.copytree(model_folder, learnt)
    write_training_examples(learnt, [content_key(example(e)) for e in range(N)])
    hidden = promotion(tmp_path, "hidden", learnt, base)
    with refuses(Contradiction, at=hidden.sweep):
        promote(hidden)


def of_origin(folder, model_digest, *ancestors):
    """The sweep in a folder, of a model with this digest that was made from these."""
    edited(folder / "sweep.json", lambda known: known.update(model_digest=model_digest, ancestors=ancestors))
    return folder


def test_nothing_is_gained_beside_a_bad_model_of_another_origin(tmp_path):
    """With a mean of 0 for a base, any candidate would be better by its own mean."""
    new = of_origin(write_sweep(tmp_path / "new", FLAT), "new", "base", "examples")
    bad = of_origin(write_sweep(tmp_path / "bad", [0.0] * 5), "bad")
    with refuses(NotAlike, f"{new}: ", bad, "--allow base"):
        decide(tmp_path, new, bad)
    verdict, _ = decide(tmp_path, new, bad, allow=["base"])
    assert verdict.asked_otherwise == ["base"]
    assert "The candidate was not made from the base, as was allowed." in markdown(verdict)
    # Nor is it by the name of an ancestor, which is known by its digest.
    edited(bad / "sweep.json", lambda known: known.update(model="base"))
    with refuses(NotAlike, "--allow base"):
        decide(tmp_path, new, bad)


@pytest.mark.parametrize(
    ("candidate", "base"),
    [
        (("new", "old", "examples"), ("old",)),  # made from it
        (("new", "older", "old"), ("older", "oldest")),  # and from what that was made from
        (("same", "old"), ("same", "old")),  # itself, asked with a mitigation
        (("new", "m"), ("",)),  # on the hub: by its name, which is m
        (("",), ("",)),  # behind an endpoint
    ],
)
def test_a_base_is_whatever_the_candidate_was_made_from(tmp_path, candidate, base):
    new = of_origin(write_sweep(tmp_path / "new", FLAT), *candidate)
    verdict, _ = decide(tmp_path, new, of_origin(write_sweep(tmp_path / "base", FLAT), *base))
    assert verdict.asked_otherwise == []


def test_a_champion_need_be_no_ancestor(tmp_path):
    new = of_origin(write_sweep(tmp_path / "new", FLAT), "new", "base")
    base, champion = (of_origin(write_sweep(tmp_path / name, FLAT), name) for name in ("base", "champion"))
    verdict, _ = decide(tmp_path, new, base, champion=champion)
    assert verdict.asked_otherwise == []


@pytest.mark.usefixtures("mlflow_store")
def test_an_origin_that_the_model_s_folder_does_not_have_is_not_promoted(tmp_path, base, model_folder):
    model = copy_of(model_folder, tmp_path / "model")
    config = promotion(tmp_path, "new", model, base)
    write_json(model / "manifest.json", {"ancestors": ["another"]})
    with refuses(Contradiction, at=config.sweep):
        promote(config)


@pytest.mark.parametrize("name", ["kv", "mine"])
def test_a_task_of_one_s_own_does_not_go_by_another_s_name(tmp_path, base, name):
    """Under the name that a policy asks for it could word its prompts so that they are easy."""
    easy = {"name": name, "template": "Say it.\n\n{documents}\n\n{question}\nAnswer:", "metric": "em"}
    forged = write_sweep(tmp_path / "new", FLAT)
    for folder in (forged, base):
        edited(folder / "sweep.json", lambda sweep: sweep.update(definition=json.dumps(easy)))
    with refuses(Contradiction, f"task {name} ", "task kv"):
        decide(tmp_path, forged, base)


TICKETS = {"name": "tickets", "template": "Say it.\n\n{documents}\n\n{question}\nAnswer:", "metric": "em"}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"metric": "contains_any"}, "metric"),
        ({"target": "It is {answer}"}, "task"),
        ({"chance": 0.5}, "task"),
        ({"closed_book": "{question}?"}, "task"),
        ({"one_wording": True}, "task"),
        ({"name": "others"}, "task"),
    ],
)
def test_a_candidate_s_task_is_no_more_generous_than_its_base_s(tmp_path, base, change, differs):
    new = write_sweep(tmp_path / "new", FLAT)
    for folder, definition in ((base, TICKETS), (new, TICKETS | change)):
        said = {"definition": json.dumps(definition), "task": definition["name"], "metric": definition["metric"]}
        edited(folder / "sweep.json", lambda sweep, said=said: sweep.update(said))
    with refuses(NotAlike, f": {differs} ("):
        decide(tmp_path, new, base)


def test_prompts_of_one_task_are_not_scored_by_another(tmp_path, base):
    """What the prompts were stands in the settings, and by what they are scored in the definition."""
    new = write_sweep(tmp_path / "new", FLAT, settings={"task": json.dumps(TICKETS | {"metric": "contains_any"})})
    edited(new / "sweep.json", lambda sweep: sweep.update(definition=json.dumps(TICKETS), task="tickets"))
    with refuses(Contradiction, "settings.task is ", at=new / "sweep.json"):
        decide(tmp_path, new, base)


def test_a_policy_can_name_the_metric(tmp_path, base):
    """Without that a sweep may be scored by whichever is easy to please; the verdict's page names it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("metric: sole_answer\nallow: [trial]")
    verdict, _ = decide(tmp_path, write_sweep(tmp_path / "new", FLAT), base, policy=policy)
    assert verdict.evidence_gaps == ["metric em, and the policy asks for sole_answer"] and not verdict.passed


def test_whoever_always_says_the_same_letter_has_the_largest_gap_there_is(tmp_path):
    """It is right where the right option stands under that letter, and nowhere else."""
    guess, old = write_sweep(tmp_path / "guess", [0, 0, 1, 0, 0]), write_sweep(tmp_path / "old", [0.2] * 5)
    verdict, rules = decide(tmp_path, guess, old)
    assert not verdict.passed and not rules["gap"] and read_sweep(guess).gap == 100


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_champion_or_base_that_was_made_worse_is_not_displaced(tmp_path, base, model_folder):
    """Its responses were edited to wrong ones, in agreement with all figures."""
    promote(promotion(tmp_path, "good", copy_of(model_folder, tmp_path / "one"), base))
    place = copy_of(model_folder, tmp_path / "two")
    new = write_sweep(tmp_path / "sweep-new", [0.94] * 5, model=place)
    worse = write_sweep(tmp_path / "worse", [0.93] * 5, model=tmp_path / "one")
    lax = {"name": "tiny", "max_gap": 30, "advantageous_tolerance": 30}
    judged = gated(tmp_path, "new", new, base, champion=worse, **lax)
    with refuses(Contradiction, "champion", "tiny version 1"):
        promoted(tmp_path, "new", place, new, judged)


@pytest.mark.usefixtures("mlflow_store")
def test_a_link_that_is_turned_between_gate_and_promotion_promotes_nothing(tmp_path, base, model_folder):
    """Of the sweep, of the model, and of the gate's own copy; what is stored is what was judged."""
    good, bad = (copy_of(model_folder, tmp_path / name) for name in ("good", "bad"))
    config = promotion(tmp_path, "one", good, base)
    worse = write_sweep(tmp_path / "worse", [0.2] * 5, model=bad)
    linked = {}
    for name in ("model", "sweep"):
        linked[name] = tmp_path / f"the-{name}"
        linked[name].symlink_to(getattr(config, name))
    config = config.model_copy(update={"model": str(linked["model"]), "sweep": linked["sweep"]})

    def turned(link, to):
        link.unlink()
        link.symlink_to(to)

    turned(linked["sweep"], worse)
    with refuses(NotAlike, "sweep.json", at=config.gate):
        promote(config)
    turned(linked["sweep"], tmp_path / "sweep-one")
    turned(linked["model"], bad)
    with refuses(NotAlike, at=linked["model"]):
        promote(config)
    kept = config.gate / "candidate"
    shutil.rmtree(kept)
    kept.symlink_to(worse)
    with refuses(Contradiction, at="candidate/predictions.jsonl"):
        promote(config)
    assert registry.champion("tiny") is None


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_link_that_is_turned_while_it_is_promoted_promotes_nothing(tmp_path, base, model_folder, monkeypatch):
    """The digest is taken first; what the registry gives back is compared with it."""
    good, bad = (copy_of(model_folder, tmp_path / name) for name in ("good", "bad"))
    link = tmp_path / "model"
    link.symlink_to(good)
    config = promotion(tmp_path, "one", good, base).model_copy(update={"model": str(link)})

    def turned(*_, **__):
        link.unlink()
        link.symlink_to(bad)

    monkeypatch.setattr("posgap.verbs.promote.write_pages", turned)
    with refuses(Contradiction, at="models:/tiny/1"):
        promote(config)
    assert registry.champion("tiny") is None


def test_parts_of_two_models_are_not_one_sweep(tmp_path):
    """The good model's middle between the bad one's ends."""
    shared = {"examples": "", "settings": {"positions": ["1"], "seed": 0}}
    one = write_sweep(tmp_path / "one", [0.9, 0.9], placements=[[1], [2]], **shared)
    two = write_sweep(tmp_path / "two", [0.9, 0.9], placements=[[4], [5]], **shared)
    edited(two / "sweep.json", lambda sweep: sweep.update(model_digest="another"))
    with refuses(NotAlike, "model_digest"):
        merge_sweeps([Evidence(one), Evidence(two)])


def part(folder, probability, positions, **options):
    """A part of a sweep of five positions; `options` are those of `write_sweep`, and `settings` beside the part's."""
    settings = {"positions": list(map(str, positions)), "seed": 0} | options.pop("settings", {})
    placements = [[position] for position in positions]
    return write_sweep(folder, probability, placements=placements, settings=settings, **options)


@pytest.mark.parametrize(
    ("change", "options", "differs"),
    [
        ({"model_digest": "another"}, {}, "model_digest"),
        ({"prompt_digest": "another"}, {}, "prompt_digest"),
        ({"ancestors": ["another"]}, {}, "ancestors"),
        ({"metric": "contains_any"}, {}, "metric"),
        ({}, {"settings": {"seed": 1}}, "seed"),
        ({}, {"order": range(N - 1, -1, -1)}, "examples"),  # the same ids and the same digest
    ],
)
def test_parts_of_different_sweeps_are_not_merged(tmp_path, change, options, differs):
    one = part(tmp_path / "one", [0.9] * 2, [1, 2])
    other = part(tmp_path / "other", [0.9] * 3, [3, 4, 5], **options)
    edited(other / "sweep.json", lambda sweep: sweep.update(change))
    with refuses(NotAlike, differs):
        merge_sweeps([Evidence(one), Evidence(other)])


def test_a_part_of_other_examples_that_says_otherwise_is_refused_by_its_scores(tmp_path, base):
    """Its rows have the ids and contents of the first part's, and the responses to others."""
    one = part(tmp_path / "one", [0.995] * 2, [1, 2])
    other = part(tmp_path / "other", [0.995] * 3, [3, 4, 5], order=range(N - 1, -1, -1))
    rows = [row for _, row in read_jsonl(other / "predictions.jsonl")]
    contents = {f"e{number}": content_key(example(number)) for number in range(N)}
    write_jsonl(other / "predictions.jsonl", [row | {"content": contents[row["id"]]} for row in rows])
    merged = merge(MergeConfig(sweeps=[one, other], out=tmp_path / "merged"))
    with refuses(Contradiction, "v199-0", "is 0 and not 1", at="merged: e0 at 3"):
        decide(tmp_path, merged, base)


def test_right_answers_that_nobody_gave_do_not_pass_by_a_merge(tmp_path, base):
    parts = part(tmp_path / "one", [0.995] * 2, [1, 2]), part(tmp_path / "other", [0.3] * 3, [3, 4, 5])
    rows = [row | {"correct": True} for _, row in read_jsonl(parts[1] / "predictions.jsonl")]
    write_jsonl(parts[1] / "predictions.jsonl", rows)
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert read_sweep(merged).accuracy[2:] == [100] * 3, "the merged files agree with each other"
    with refuses(Contradiction, "'said' is 0 and not 1", at="at 3"):
        decide(tmp_path, merged, base)


def test_a_merge_without_the_bad_middle_is_no_evidence(tmp_path):
    """Parts of chosen positions need not be all; the gate looks for holes."""
    shared = {"n_docs": 20}
    parts = (
        part(tmp_path / "one", FLAT[:3], [1, 2, 3], **shared),
        part(tmp_path / "other", FLAT[:2], [19, 20], **shared),
    )
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    verdict, _ = decide(tmp_path, merged, merged)
    assert not verdict.passed and "nothing is known between positions 3 and 19 of 20" in verdict.evidence_gaps


@pytest.mark.parametrize(("at_sweep", "at_gate"), [(0, 1), (1, 0)], ids=["generous gate", "generous sweep"])
def test_a_package_s_metric_that_is_another_at_the_gate_is_noticed(tmp_path, base, monkeypatch, at_sweep, at_gate):
    """Of the same name, so that only the scores tell."""
    acme = Metric("acme", "scores all responses alike", lambda response, answers: at_gate)
    monkeypatch.setitem(METRICS._by_name, "acme", acme)
    shutil.rmtree(base)
    swept = [write_sweep(folder, [at_sweep] * 5) for folder in (tmp_path / "new", base)]
    for folder in swept:
        edited(folder / "sweep.json", lambda sweep: sweep.update(metric="acme"))
    with refuses(Contradiction, f"is {at_gate} and not {at_sweep}", at="new: e0 at 1"):
        decide(tmp_path, *swept)


def test_a_metric_that_is_not_installed_at_the_gate_is_not_believed(tmp_path, base):
    new = write_sweep(tmp_path / "new", FLAT)
    for folder in (new, base):
        edited(folder / "sweep.json", lambda sweep: sweep.update(metric="acme"))
    with refuses(BadOption, "'acme'"):
        decide(tmp_path, new, base)


def test_a_package_s_task_that_is_another_at_the_gate_is_noticed(tmp_path, base, monkeypatch):
    """It takes any answer for right, and the sweep's did not."""
    anything = dataclasses.replace(TASKS["kv"], extract=lambda response: "v0-0")
    monkeypatch.setitem(TASKS._by_name, "kv", anything)
    with refuses(Contradiction, """'"v1-0"' is 0 and not 1""", at="new: e1 at 1"):
        decide(tmp_path, write_sweep(tmp_path / "new", FLAT), base)


@pytest.mark.parametrize("content", [content_key(example(1)), "0" * 16], ids=["another's", "nobody's"])
def test_a_baseline_s_response_is_not_scored_as_one_to_another_example(tmp_path, base, content):
    new = write_sweep(tmp_path / "new", FLAT)
    rows = [row for _, row in read_jsonl(new / "predictions.jsonl")]
    asked = [row for row in rows if row["placement"] == [1]]
    asked = [row | {"placement": [], "baseline": "closed-book", "response": "x", "correct": False} for row in asked]
    write_jsonl(new / "predictions.jsonl", [*rows, asked[0] | {"content": content}, *asked[1:]])
    with refuses(Contradiction, at=f"{new}: predictions of e0"):
        decide(tmp_path, new, base)


@pytest.mark.parametrize("name", ["gate.json", "candidate/sweep.json", "candidate/predictions.jsonl"])
def test_a_name_that_is_there_twice_is_refused(admitted, name):
    """Of the two posgap read the last, and others the first."""
    file = admitted / name
    text = file.read_text()
    file.write_text(text.replace("{", '{"passed": true, "id": "e0", ' if name == "gate.json" else '{"id": "e0", ', 1))
    if name == "candidate/sweep.json":
        file.write_text(text.replace("{", '{"mean": 100.0, ', 1))
    with refuses(Malformed, "twice"):
        if name == "gate.json":
            replay_verdict(admitted)
        else:
            Evidence(admitted / "candidate")


@pytest.mark.parametrize("shares", [0.04, 0.06])
def test_examples_whose_other_documents_answer_too_are_not_taken(tmp_path, monkeypatch, shares):
    """A server that reads the first 600 characters alone passed with a gap of 0."""
    count = int(shares * N)

    def of_one_value(number, n_gold=1, id=None):
        known = example(number, n_gold, id)
        records = [(key, known.value if number < count else value) for key, value in known.records]
        return known.model_copy(update={"records": records})

    monkeypatch.setattr(written_sweeps, "example", of_one_value)
    new, old = (write_sweep(tmp_path / name, FLAT) for name in ("new", "old"))
    if shares < 0.05:
        assert decide(tmp_path, new, old)[0].passed
        return
    with refuses(PosgapError, f"{count} of {N} ", "--allow distractors"):
        decide(tmp_path, new, old)
    verdict, _ = decide(tmp_path, new, old, allow=["distractors"])
    assert verdict.passed and verdict.asked_otherwise == ["distractors"]
    assert replay_verdict(tmp_path / "gate") == verdict and "Distractors hold answers" in markdown(verdict)


def test_one_record_beside_the_gold_one_may_not_have_its_value(tmp_path, monkeypatch):
    """A model that says the first value whatever is asked was right at every position: the first other record had
    the value too, and fewer than half of the records."""

    def of_two_values(number, n_gold=1, id=None):
        known = example(number, n_gold, id)
        gold, (key, _), *others = known.records
        return known.model_copy(update={"records": [gold, (key, known.value), *others]})

    monkeypatch.setattr(written_sweeps, "example", of_two_values)
    new, old = (write_sweep(tmp_path / name, FLAT) for name in ("new", "old"))
    with refuses(PosgapError, f"of {N} ", "--allow distractors"):
        decide(tmp_path, new, old)


@pytest.mark.parametrize("name", ["predictions.jsonl", "training_examples.json"])
def test_a_pipe_in_the_place_of_evidence_is_named(tmp_path, base, name):
    """In the place of the list of learnt examples it went for none, and of the predictions for a missing file."""
    new = write_sweep(tmp_path / "new", FLAT)
    (new / name).unlink(missing_ok=True)
    os.mkfifo(new / name)
    with pytest.raises(PosgapError, match="is a pipe") as refused:
        decide(tmp_path, new, base)
    assert name in refused.value.at
