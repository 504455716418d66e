"""Guards: what a candidate must not lose beside what it is judged on, whatever it gained there."""

import json
import shutil

import numpy as np
import pytest
import torch
from examples import kv_example
from refusals import refuses
from safetensors.torch import load_file, save_file
from written_sweeps import LAX, decide, write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction, GateRefusal, NotAlike, NotEnoughEvidence, PosgapError
from posgap.foundation.files import digest_of, digest_path, read_json, write_json, write_jsonl
from posgap.gating.demands import Guard, Policy
from posgap.gating.guards import GuardRule
from posgap.gating.policy import parsed_policy, policy_text
from posgap.gating.replay import replay_verdict
from posgap.gating.rules import Judged
from posgap.gating.verdict import judge, read_verdict
from posgap.measurement.plain_text import TextScores
from posgap.options.gate import GateConfig
from posgap.options.merge import MergeConfig
from posgap.options.promote import PromoteConfig
from posgap.options.sweep import SweepConfig
from posgap.tracking import registry
from posgap.verbs.gate import judge_and_write
from posgap.verbs.merge import merge
from posgap.verbs.promote import promote
from posgap.verbs.sweep import sweep_model

FLAT = [0.995] * 5
ASKED = {"n_docs": 5, "positions": ["1", "3", "5"]}
BINDING = {"guards": {"other": ASKED | {"tolerance": 10}}}


def write_guard(sweep, scores, name="other", **asked):
    """A guard beside a sweep, whose examples are right with these probabilities at positions 1, 3 and 5."""
    made = write_sweep(sweep / "made", scores, placements=[[1], [3], [5]], seed=3)
    place = sweep / "guards" / name
    place.parent.mkdir(exist_ok=True)
    made.rename(place)
    measured = {"guard": Guard(**ASKED | asked).model_dump(), "place": str(place / "examples.jsonl")}
    write_json(place / "guard.json", measured)
    return place


@pytest.fixture
def guarded(tmp_path, base):
    """A base and a better candidate, which lost half of what the base had at the first place of its guard."""
    write_guard(base, [0.8, 0.1, 0.8])
    new = write_sweep(tmp_path / "new", FLAT)
    write_guard(new, [0.4, 0.95, 0.95])
    return new, base


def test_a_better_model_is_refused_for_what_it_lost_elsewhere(tmp_path, guarded):
    verdict, rules = decide(tmp_path, *guarded, **BINDING)
    assert [name for name, passed in rules.items() if not passed] == ["guard other"]
    assert isinstance(verdict.error("it"), GateRefusal)
    (figure,) = verdict.guards
    assert figure.binds and figure.estimate == pytest.approx(-40, abs=10) and figure.interval[1] < -10
    assert "position 1" in verdict.rules[-1].meaning
    assert replay_verdict(tmp_path / "gate") == verdict


def test_a_guard_without_a_tolerance_is_shown_and_decides_nothing(tmp_path, guarded):
    verdict, rules = decide(tmp_path, *guarded)
    assert verdict.passed and "guard other" not in rules
    assert [(figure.name, figure.binds) for figure in verdict.guards] == [("other", False)]
    assert verdict.guards[0].interval[1] < -10
    assert "other" in (tmp_path / "gate" / "gate.md").read_text() and "other" in verdict.measured


def test_a_verdict_says_that_it_speaks_of_nothing_else(tmp_path, base):
    verdict, _ = decide(tmp_path, write_sweep(tmp_path / "new", FLAT), base)
    assert verdict.measured == "measured at 5 documents of task kv alone"


@pytest.mark.parametrize(
    "demanded", [{}, {"n_docs": 6}, {"positions": ["1", "5"]}, {"task": "qa"}, {"text": "t.jsonl"}]
)
def test_what_was_not_measured_as_the_policy_asks_is_no_evidence(tmp_path, base, demanded):
    new = write_sweep(tmp_path / "new", FLAT)
    if demanded:
        write_guard(new, [0.9] * 3)
        write_guard(base, [0.9] * 3)
    asked = demanded if "text" in demanded else ASKED | demanded
    verdict, _ = decide(tmp_path, new, base, guards={"other": asked | {"tolerance": 0.4}})
    assert verdict.outcome == "not enough evidence" and len(verdict.evidence_gaps) == 1
    assert verdict.evidence_gaps[0].startswith("guard other: ") and isinstance(verdict.error("it"), NotEnoughEvidence)


def test_a_champion_s_guard_counts_beside_the_base_s(tmp_path, guarded):
    new, base = guarded
    champion = write_sweep(tmp_path / "champion", FLAT)
    missing, _ = decide(tmp_path, new, base, champion=champion, **BINDING)
    assert "the champion was not measured" in missing.evidence_gaps[0]
    write_guard(champion, [0.4, 0.95, 0.95])
    verdict = judge(new, base, champion, Policy(**BINDING))
    assert verdict.passed and verdict.rules[-1].name == "guard other"


def test_every_placement_counts_and_not_their_mean(tmp_path):
    right = np.zeros((400, 3))
    right[:200] = 1
    lost = right.copy()
    lost[:, 0] = 0  # at one placement all is lost, and at the others as much is gained
    lost[:, 1:] = 1

    class Known:
        def __init__(self, scores):
            self.correct = scores
            self.sweep = type("Swept", (), {"placements": [[1], [3], [5]], "task": "kv", "n_docs": 5})

        def gains_over(self, reference):
            return self.correct - reference.correct

    ruling = GuardRule("g").judge(Guard(tolerance=10), Judged(Known(lost), Known(right)))
    assert ruling.outcome == "fail" and ruling.estimate == -50
    assert GuardRule("g").judge(Guard(tolerance=10), Judged(Known(right), Known(right))).passed
    assert not GuardRule("g").is_passed(Guard(tolerance=10), Judged(Known(lost), Known(right)))
    better_than_best = Judged(Known(right), Known(right), anchor=Known(np.ones((400, 3))))
    assert GuardRule("g").judge(Guard(tolerance=10), better_than_best).outcome == "fail"


def texts(mean, n=100, spread=0.0, **more):
    about = {"label": "m", "model": "m", "model_digest": "", "dtype": "float32", "device": "cpu"} | more
    scores = mean + spread * np.random.default_rng(0).normal(size=n)
    return TextScores(**about, scores={digest_of(str(number)): float(score) for number, score in enumerate(scores)})


@pytest.mark.parametrize(
    ("lost", "n", "outcome"), [(0.0, 100, "pass"), (0.02, 100, "pass"), (0.02, 8, "unsure"), (0.1, 100, "fail")]
)
def test_plain_text_is_compared_by_document(lost, n, outcome):
    """The texts differ by far more than the models do."""
    ruling = GuardRule("text").judge(
        Guard(text="t", tolerance=0.05), Judged(texts(-3.0 - lost, n, 1), texts(-3.0, n, 1))
    )
    assert ruling.outcome == outcome and ruling.estimate == pytest.approx(-lost)
    assert ruling.text(ruling.estimate) == f"{ruling.estimate:.3f}"


def test_one_text_that_is_lost_altogether_counts_as_half_a_nat():
    lost = texts(-3.0)
    lost.scores[min(lost.scores)] = -1000.0
    assert GuardRule("text").judge(Guard(text="t", tolerance=0.05), Judged(lost, texts(-3.0))).estimate == -0.005


def edit_answers(place):
    file = place / "predictions.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    write_jsonl(file, (row | {"response": row["response"] + " "} for row in rows))


@pytest.mark.parametrize(
    ("edit", "at"),
    [
        (lambda guards, _: edit_answers(guards / "other"), "candidate/guards/other/predictions.jsonl"),
        (lambda _, guards: shutil.rmtree(guards), "base/guards/other/guard.json"),
        (lambda _, guards: shutil.copytree(guards / "other", guards / "another"), "base/guards/another/guard.json"),
        (lambda _, guards: (guards / "other" / "text.json").write_text("{}"), "base/guards/other/text.json"),
    ],
    ids=["edited", "taken away", "added", "of another kind"],
)
def test_a_verdict_names_the_files_of_its_guards(tmp_path, guarded, edit, at):
    decide(tmp_path, *guarded, **BINDING)
    replay_verdict(tmp_path / "gate")
    edit(*(tmp_path / "gate" / role / "guards" for role in ("candidate", "base")))
    with refuses(Contradiction, at=at):
        replay_verdict(tmp_path / "gate")


def test_responses_of_guards_are_scored_again(tmp_path, guarded):
    new, base = guarded
    place = new / "guards" / "other"
    rows = [json.loads(line) for line in (place / "predictions.jsonl").read_text().splitlines()]
    right = write_sweep(tmp_path / "right", [1.0] * 3, placements=[[1], [3], [5]])
    shutil.copy(right / "sweep.json", place)
    write_jsonl(place / "predictions.jsonl", (row | {"correct": True} for row in rows))
    with refuses(Contradiction, "'said' is 0 and not 1"):
        decide(tmp_path, new, base, **BINDING)


def test_a_guard_of_another_model_or_file_is_refused(tmp_path, guarded, model_folder):
    new, base = guarded
    with refuses(Contradiction, "guard other", "sha256"):
        pinned = {"examples": str(new / "guards" / "other" / "examples.jsonl"), "sha256": "0" * 64}
        decide(tmp_path, new, base, guards={"other": BINDING["guards"]["other"] | pinned})
    swept = read_json(base / "guards" / "other" / "sweep.json")
    write_json(base / "guards" / "other" / "sweep.json", swept | {"model_digest": "a" * 64})
    with refuses(NotAlike):
        decide(tmp_path, new, base, **BINDING)


def test_a_policy_names_guards_and_reads_them_again():
    policy = parsed_policy(
        b"guards:\n  longer: {n_docs: 40, tolerance: 5}\n  text: {text: t.jsonl, tolerance: 0.05}\n", "p"
    )
    assert policy.guards["longer"].n_docs == 40 and policy.guards["text"].tolerance == 0.05
    assert parsed_policy(policy_text(policy).encode(), "again") == policy
    for wrong in ("n_docs: '40'", "n_docs: 010", "text: t, task: kv", "text: t, tolerance: 1", "sha256: a", "nats: 1"):
        with pytest.raises(PosgapError):
            parsed_policy(f"guards: {{g: {{{wrong}}}}}".encode(), "p")


def perturbed(model, folder, by):
    """A model that was made from another one, whose weights are moved so far."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    moved = {name: each + by * torch.randn(each.shape, generator=generator) for name, each in tensors.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "manifest.json", {"ancestors": [digest_path(model)]})
    return folder


@pytest.fixture
def places(tmp_path):
    """Examples of twelve records, asked at four and, as a guard, at eight, and plain texts; with a policy on both."""
    write_examples(tmp_path / "eval.jsonl", [kv_example(number, 12) for number in range(20)])
    said = [" ".join(f"{(7 * at + number) % 256:02x}" for at in range(20)) for number in range(40)]
    write_jsonl(tmp_path / "texts.jsonl", ({"text": text} for text in said))
    guards = {"longer": {"tolerance": 20}, "text": {"text": str(tmp_path / "texts.jsonl"), "tolerance": 0.05}}
    policy = Policy(**LAX, guards=guards)
    (tmp_path / "policy.yaml").write_text(policy_text(policy))
    return tmp_path


def swept(place, model, name, **more):
    asked = {"examples": place / "eval.jsonl", "n_docs": 4, "backend": "transformers", "dtype": "float32"}
    asked |= {"guards": str(place / "policy.yaml"), "out": place / name, "model": str(model)}
    return sweep_model(SweepConfig(**asked | more))


def test_a_model_that_forgot_plain_text_is_refused_from_end_to_end(places, model_folder):
    base = swept(places, model_folder, "base")
    forgot = swept(places, perturbed(model_folder, places / "forgot", 0.3), "after")
    policy = places / "policy.yaml"
    verdict = read_verdict(judge_and_write(GateConfig(candidate=forgot, base=base, policy=policy, out=places / "gate")))
    assert [rule.name for rule in verdict.rules if rule.outcome == "fail"] == ["guard text"]
    assert {figure.name: figure.measured for figure in verdict.guards} == {
        "longer": "kv at 8 documents",
        "text": "plain text (40 texts)",
    }
    write_jsonl(places / "texts.jsonl", [{"text": "other words"}])
    again = read_verdict(judge_and_write(GateConfig(candidate=forgot, base=base, policy=policy, out=places / "again")))
    assert again.evidence_gaps == ["guard text: other texts were measured than those that the policy names"]


@pytest.mark.nightly
@pytest.mark.full  # promotes, and asks two models again
def test_what_was_measured_of_guards_is_not_believed(places, model_folder, mlflow_store):
    base = swept(places, model_folder, "base")
    model = perturbed(model_folder, places / "model", 1e-4)
    registry.set_policy("tiny", Policy(**LAX, guards=read_guards(places)).model_dump_json())
    honest = swept(places, model, "after")

    def promotes(candidate, before, word):
        gate = judge_and_write(GateConfig(candidate=candidate, base=before, name="tiny", out=places / f"gate-{word}"))
        assert read_verdict(gate).passed
        asked = {"model": str(model), "sweep": candidate, "gate": gate, "name": "tiny", "base": model_folder}
        return promote(PromoteConfig(**asked, out=places / f"promoted-{word}"))

    worse = perturbed(model_folder, places / "worse", 0.3)
    forged = swept(places, worse, "worse-after")
    shutil.copy(honest / "guards" / "text" / "text.json", places / "kept.json")
    told = read_json(forged / "guards" / "text" / "text.json") | {
        "scores": read_json(honest / "guards" / "text" / "text.json")["scores"]
    }
    write_json(forged / "guards" / "text" / "text.json", told)
    gate = judge_and_write(GateConfig(candidate=forged, base=base, name="tiny", out=places / "gate-forged"))
    assert read_verdict(gate).passed
    with refuses(Contradiction, "guard text", "the candidate"):
        asked = {"model": str(worse), "sweep": forged, "gate": gate, "name": "tiny", "base": model_folder}
        promote(PromoteConfig(**asked, out=places / "promoted-forged"))
    promotes(honest, base, "honest")
    champion = registry.champion("tiny")
    assert "longer (kv at 8 documents)" in champion.tags["guards"]
    # The next candidate is judged beside what the champion was promoted with, guards and all.
    next_one = swept(places, perturbed(model_folder, places / "next", 2e-4), "next-after")
    verdict = read_verdict(
        judge_and_write(GateConfig(candidate=next_one, base=base, name="tiny", out=places / "gate-next"))
    )
    assert verdict.passed and verdict.evidence["champion"].files["guards/text/text.json"] == digest_path(
        honest / "guards" / "text" / "text.json"
    )


def read_guards(place):
    return parsed_policy((place / "policy.yaml").read_bytes(), "policy").guards


@pytest.mark.full  # sweeps three times
def test_parts_of_a_sweep_have_its_guards_once(places, model_folder):
    parts = [swept(places, model_folder, f"part-{part}", shard=f"{part}/2") for part in (1, 2)]
    assert [(part / "guards").is_dir() for part in parts] == [True, False]
    merged = merge(MergeConfig(sweeps=parts[::-1], out=places / "merged"))
    assert sorted(folder.name for folder in (merged / "guards").iterdir()) == ["longer", "text"]
    whole = swept(places, model_folder, "plain", guards={})
    assert not (whole / "guards").exists()
    assert digest_path(whole / "predictions.jsonl") == digest_path(merged / "predictions.jsonl")


def test_an_estimate_counts_the_prompts_of_guards(places, model_folder, capsys):
    swept(places, model_folder, "none", estimate=True, limit=10)
    sweep, guard = capsys.readouterr().out.splitlines()
    assert sweep.startswith("40 prompts of ") and guard.startswith("guard longer: 60 prompts of ")
    assert not (places / "none").exists()


@pytest.mark.full  # sweeps three times
def test_a_guard_is_left_out_only_where_nobody_asked_for_so_many_documents(places, model_folder):
    assert not (swept(places, model_folder, "long", n_docs=7, guards={"longer": {}}) / "guards" / "longer").exists()
    with refuses(PosgapError, "guard longer"):
        swept(places, model_folder, "longer", n_docs=7, guards={"longer": {"n_docs": 14}})
    with refuses(Contradiction, "sha256"):
        pinned = {"examples": str(places / "eval.jsonl"), "sha256": "0" * 64, "n_docs": 8}
        swept(places, model_folder, "pinned", guards={"other": pinned})
