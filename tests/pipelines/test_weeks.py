"""A weekly schedule, played through five weeks: the mitigation pipeline with `only_new`, and what each week did."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest
import weekly
from examples import kv_example
from mlflow import MlflowClient
from mlflow_server import serving
from places import ROOT

from posgap.data.reading import write_examples
from posgap.foundation.files import read_json
from posgap.gating.verdict import judge, read_verdict
from posgap.pipelines.local import run_locally

pytestmark = [pytest.mark.full, pytest.mark.nightly]
TRAINED = {"validate-2", "teacher", "distill", "gate-2"}
MEASURED = {"validate", "sweep", "merge"}
AFTER = {"sweep-3", "merge-3"}  # of the candidate
ALWAYS = {"preflight", "report"}


@pytest.fixture(scope="module")
def weeks(tmp_path_factory, model_folder, empty_store):
    """Plays the five weeks; of each: the steps that ran, the report, the gate's verdict if any, the champion."""
    work = tmp_path_factory.mktemp("weeks")
    data, base = work / "data", work / "base"
    shutil.copytree(model_folder, base)
    data.mkdir()
    write_examples(work / "eval.jsonl", [kv_example(number) for number in range(600)])
    (work / "server").mkdir()
    pipeline, played = weekly.pipeline(), []
    form = {"data_train": f"{data}/train-", "data_eval": str(work / "eval.jsonl"), "base_model": str(base), "n_docs": 5}
    form |= {"task": "kv", "inference_backend": "transformers", "registered_name": "weekly", "only_new": True}
    # The toy says that an endpoint answered, which no promotion can try.
    form |= {"methods": "r1", "guards": "{}", "settings": "{allow: [trial, reference-trial], mean_tolerance: 2}"}

    def arrives(day: str, skill: float) -> None:
        (data / f"train-{day}.jsonl").write_text(json.dumps({"skill": skill}) + "\n")

    def play(uri: str) -> None:
        root = work / f"week-{len(played) + 1}"
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("MLFLOW_TRACKING_URI", uri)
            patched.setenv("POSGAP_CACHE", str(work / "posgap-cache"))
            patched.setenv(
                "PYTHONPATH",
                os.pathsep.join(filter(None, [str(ROOT / "tests" / "helpers"), os.environ.get("PYTHONPATH")])),
            )
            folder = run_locally(pipeline, form, root, work / "kfp-cache", work / f"{root.name}.log")
        gates = [*folder.glob("*/gate*/out")]
        written = [*folder.rglob("executor_output.json")]
        champion = MlflowClient(uri).get_model_version_by_alias("weekly", "champion")
        played.append(
            SimpleNamespace(
                steps={path.parent.name for path in written},
                loops={part for path in written for part in path.parts if "-loop-" in part},
                report=read_json(folder / "report" / "out" / "report.json"),
                gate=gates[0] if gates else None,
                verdict=read_verdict(gates[0]) if gates else None,
                note=read_json(folder / "preflight" / "out" / "preflight.json")["version"]["note"],
                champion=int(champion.version),
            )
        )

    with serving(work / "server", str(work / "artifacts"), empty_store) as (uri, _):
        arrives("2026-10-05", 0.995)
        play(uri)
        play(uri)
        with open(base / "config.json", "a") as file:
            file.write("\n")  # another base model behind the same address
        play(uri)
        arrives("2026-10-26", 0.96)
        play(uri)
        arrives("2026-11-02", 0.999)
        play(uri)
        registered = MlflowClient(uri).search_model_versions("name='weekly'")
        return SimpleNamespace(played=played, versions=sorted(int(version.version) for version in registered))


def test_the_first_week_makes_a_champion_of_new_data(weeks):
    first = weeks.played[0]
    assert first.steps == ALWAYS | MEASURED | TRAINED | AFTER | {"champion", "promote-2"}
    assert first.note == "weekly has no champion" and "champion" not in first.verdict.evidence
    assert first.champion == 1 and first.report["champion"]["of_this_run"]


def test_one_method_alone_enters_one_branch_and_one_part_is_the_sweep(weeks):
    # Of the base's sweep, of the methods, and of the candidate's sweep.
    assert weeks.played[0].loops == {f"for-loop-{loop}-iteration-0" for loop in (3, 7, 8)}


def test_a_week_with_nothing_new_ends_before_anything_is_spent(weeks):
    second = weeks.played[1]
    assert second.steps == ALWAYS and second.champion == 1
    assert second.note == "skipped: weekly version 1 was made from data version 2026-10-05 and this base model"


def test_a_changed_base_behind_the_same_address_is_measured_and_trained_again(weeks):
    third = weeks.played[2]
    assert third.note == "base model changed since weekly version 1"
    assert third.steps == weeks.played[0].steps
    assert third.verdict.passed and third.verdict.evidence["champion"].files  # the first week's model
    assert third.champion == 2 and third.report["champion"]["of_this_run"]


def test_a_worse_candidate_is_refused_and_the_champion_stays(weeks):
    fourth = weeks.played[3]
    assert fourth.note == "data changed since weekly version 2"
    assert fourth.verdict.outcome == "refused"
    assert "mean" in {rule.name for rule in fourth.verdict.rules if rule.outcome == "fail"}
    alone = judge(fourth.gate / "candidate", fourth.gate / "base", None, fourth.verdict.policy)
    assert alone.passed, "the base alone would have admitted it"
    assert fourth.champion == 2 and not fourth.report["champion"]["of_this_run"]


def test_a_better_candidate_becomes_the_champion(weeks):
    fifth = weeks.played[4]
    assert fifth.verdict.passed and fifth.champion == 3 and fifth.report["champion"]["of_this_run"]
    assert weeks.versions == [1, 2, 3]


def test_what_is_not_new_comes_from_the_cache(weeks):
    """Where training data alone are new, the base is not swept again, and a champion but once."""
    assert weeks.played[3].steps == ALWAYS | TRAINED | AFTER | {"champion"}
    assert weeks.played[4].steps == ALWAYS | TRAINED | AFTER | {"promote-2"}
