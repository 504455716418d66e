"""The smoke pipeline: `posgap demo` on the public file, end to end, as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest

from posgap.data.reading import read_examples
from posgap.demo.summary import steps
from posgap.foundation.files import read_json
from posgap.gating.demands import Policy
from posgap.gating.replay import replay_verdict
from posgap.gating.verdict import read_verdict
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.content import content_keys, with_content_keys
from posgap.verbs.gate import judge_and_write

pytestmark = pytest.mark.full


def posgap_demo(out: Path, data: Path) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "POSGAP_PARENT"))}
    command = [Path(sys.executable).with_name("posgap"), "demo", "--data", data, "--out", out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def made(run: Path) -> set[str]:
    """The steps that a run did not take from the cache."""
    return {re.sub(r"-\d+$", "", step.parent.name) for step in run.glob("**/out")}


@pytest.fixture(scope="module")
def demo(tmp_path_factory, kv_file):
    out = tmp_path_factory.mktemp("demo")
    done = posgap_demo(out, kv_file)
    (work,) = out.glob("seed-0-*")
    (run,) = (work / "pipeline").iterdir()
    summary = read_json(out / "summary.json")
    return SimpleNamespace(out=out, shown=done.stdout, work=work, run=run, steps=steps(run), summary=summary)


@pytest.fixture
def tracked(demo, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{demo.out}/mlflow.db")
    return mlflow.MlflowClient(f"sqlite:///{demo.out}/mlflow.db")


def test_the_gap_is_large_and_then_small(demo):
    base, candidate = demo.summary["base"], demo.summary["candidate"]
    assert base["positions"] == candidate["positions"] == list(range(1, 21))
    assert base["n_examples"] == candidate["n_examples"] >= 200
    assert base["gap"] >= 40
    assert candidate["gap"] <= 15
    assert candidate["mean"] >= base["mean"] + 20
    best = max(range(20), key=base["accuracy"].__getitem__)
    assert candidate["accuracy"][best] >= base["accuracy"][best] - 3


def test_nothing_is_lost_at_other_lengths(demo):
    """Trained at 20 records alone, the champion lost 28 points at position 1 of 40."""
    lengths = read_json(demo.out / "comparison-lengths.json")["lengths"]
    assert [each["length"] for each in lengths] == ["10 records", "20 records", "30 records", "40 records"]
    for each in lengths:
        (difference,) = each["comparison"]["differences"]
        assert not difference["worse"] and difference["mean"] > 0


def test_the_summary_is_what_the_sweeps_say(demo):
    for key, folder in (("base", "merge_base"), ("candidate", "merge_candidate")):
        accuracy = 100 * Evidence(demo.steps[folder]).correct.mean(axis=0)
        assert demo.summary[key]["accuracy"] == pytest.approx(accuracy.tolist())
        assert demo.summary[key]["gap"] == pytest.approx(accuracy.max() - accuracy.min())
        assert demo.summary[key]["gap_ci95"] == list(read_sweep(demo.steps[folder]).gap_ci95)
    assert demo.summary["gate"]["passed"] and len(demo.summary["gate"]["rules"]) == 6
    assert demo.summary["seconds"].keys() == {"tiny_model", *demo.steps}
    assert {"validate_train", "sweep_base", "teacher", "distill", "sweep_candidate", "promote"} <= demo.steps.keys()


@pytest.mark.nightly
def test_the_commands_of_the_page_close_the_gap_as_they_are_typed(demo, tmp_path, monkeypatch):
    """docs/distillation.md's transcripts, for the demo's model and examples."""
    page = (Path(__file__).parents[2] / "docs" / "distillation.md").read_text(encoding="utf-8")
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl.gz").symlink_to(next(demo.work.glob(f"{name}-*.jsonl.gz")))
    (tmp_path / "small").symlink_to(demo.work / "model")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ posgap (.*)", page, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["sweep", "teacher", "distill", "sweep", "compare"]
    for command in commands:
        subprocess.run([Path(sys.executable).with_name("posgap"), *command.split()], check=True)
    before, after = read_sweep(Path("run/base")), read_sweep(Path("run/after"))
    assert before.gap >= 40 and after.gap <= 15 and after.mean >= before.mean + 20


def test_training_never_saw_the_evaluation_records(demo):
    train, held_out = (read_examples(demo.steps[folder]) for folder in ("validate_train", "validate_eval"))
    keys = [{(k, v) for k, v in e.records} for e in held_out]
    assert not with_content_keys(held_out, content_keys(train))
    assert all({(k, v) for k, v in e.records} not in keys for e in train)


def test_the_gate_admits_the_distilled_model_and_refuses_the_base(demo, tmp_path):
    base, candidate = demo.steps["merge_base"], demo.steps["merge_candidate"]
    verdict = read_verdict(demo.steps["gate"])
    assert verdict.policy == Policy(guards={"longer": {}}) and verdict.outcome == "admitted"
    assert "champion" not in verdict.evidence and verdict.measured.startswith("measured at 20 documents of task kv")
    (longer,) = verdict.guards
    assert longer.name == "longer" and not longer.binds
    policy = tmp_path / "policy.yaml"
    policy.write_text("guards: {longer: {}}")
    again = read_verdict(judge_and_write(GateConfig(out=tmp_path / "1", candidate=candidate, base=base, policy=policy)))
    # Another moment, and for no name.
    assert again == verdict.model_copy(update={"name": again.name, "judged_at": again.judged_at})
    refused = read_verdict(judge_and_write(GateConfig(out=tmp_path / "2", candidate=base, base=base)))
    assert refused.outcome == "refused"
    assert [rule.name for rule in refused.rules if not rule.passed] == ["gap"]


def test_the_champion_is_in_the_registry_and_answers(demo, tracked):
    assert demo.summary["registry"] == {"name": "posgap-demo", "version": "1", "alias": "champion"}
    champion = tracked.get_model_version_by_alias("posgap-demo", "champion")
    assert champion.tags["gap"].startswith(f"{demo.summary['candidate']['gap']:.1f} (")
    assert champion.tags["method"] == "r1"
    answer = mlflow.transformers.load_model("models:/posgap-demo@champion")
    example = read_examples(demo.steps["validate_eval"])[0]
    prompt = (
        "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{"
        + ",\n ".join(f'"{k}": "{v}"' for k, v in example.records[:20] if k != example.key)
        + f',\n "{example.key}": "{example.value}"}}\n\nKey: "{example.key}"\nCorresponding value:'
    )
    generated = answer(prompt, max_new_tokens=1, return_full_text=False)[0]["generated_text"]
    assert generated.strip() == example.value


def test_every_stage_is_a_run_below_the_demo(demo, tracked):
    experiment = tracked.get_experiment_by_name("posgap")
    runs = tracked.search_runs([experiment.experiment_id], max_results=50)
    (parent,) = [run for run in runs if run.data.tags["posgap.stage"] == "demo"]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    stages = sorted(run.data.tags["posgap.stage"] for run in children)
    assert stages == [
        *("champion", "distill", "gate", "merge", "merge", "preflight", "promote", "report"),
        *["sweep"] * 8,  # base and candidate, at the demo's length and at three others
        *("teacher", "validate", "validate"),
    ]
    assert all(run.info.status == "FINISHED" for run in runs)
    for folder in demo.run.glob("**/out"):
        assert read_manifest(folder)["mlflow_run_id"] in {run.info.run_id for run in children}


def test_people_are_told_where_to_look(demo):
    assert f"{demo.out}/curves.html" in demo.shown and (demo.out / "curves.html").is_file()
    assert (demo.out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert f"ui --backend-store-uri sqlite:///{demo.out}/mlflow.db" in demo.shown
    assert "posgap-demo version 1 is the champion" in demo.shown


@pytest.mark.nightly
def test_a_second_demo_reuses_what_is_complete(demo, kv_file, tracked):
    posgap_demo(demo.out, kv_file)
    again = max((demo.work / "pipeline").iterdir(), key=lambda p: p.stat().st_mtime)
    # The champion of the first demo is looked for once.
    assert made(again) - {"champion"} == {"preflight", "gate", "promote", "report"}
    assert len(tracked.search_model_versions("name='posgap-demo'")) == 1
    summary = read_json(demo.out / "summary.json")
    assert summary["candidate"] == demo.summary["candidate"]
    # The champion is the first demo's model, whose sweep is at hand.
    (folder,) = again.glob("**/gate*/out")
    verdict = replay_verdict(folder)
    assert verdict.passed and verdict.evidence["champion"].files == verdict.evidence["candidate"].files
