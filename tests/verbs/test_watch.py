"""The champion is swept on fresh data, and it is told when it has left its policy."""

from types import SimpleNamespace

import pytest
import yaml
from examples import kv_example
from kfp_server import Server, served
from toy_pipeline import posgap
from written_sweeps import LAX, write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import LeftPolicy, Malformed, PosgapError
from posgap.foundation.files import digest_path, read_json, write_json
from posgap.gating.demands import Policy
from posgap.gating.verdict import read_verdict
from posgap.measurement.sweeps import read_sweep
from posgap.options.champion import ChampionConfig
from posgap.options.gate import GateConfig
from posgap.options.watch import WatchConfig
from posgap.pipelines.local import run_locally
from posgap.pipelines.watch import watch as pipeline
from posgap.tracking import registry
from posgap.verbs.champion import SweptVersion, champion
from posgap.verbs.gate import judge_and_write
from posgap.verbs.watch import watch

pytestmark = pytest.mark.usefixtures("mlflow_store")

HIGH = Policy(**LAX | {"min_mean": 99}, data="0" * 64)  # no model that answers by chance keeps it


def swept(tmp_path, **options):
    given = {"name": "tiny", "examples": tmp_path / "new.jsonl", "out": tmp_path / "champion"}
    return champion(ChampionConfig(**given | options))


def watched(tmp_path, **options):
    return WatchConfig(champion=tmp_path / "champion", out=tmp_path / "watch", **options)


def test_without_a_champion_nothing_is_swept_and_a_gate_judges_against_the_base(tmp_path, base):
    write_examples(tmp_path / "new.jsonl", [kv_example(0)])
    folder = swept(tmp_path)
    assert read_json(folder / "champion.json")["version"] is None
    asked = {"candidate": write_sweep(tmp_path / "new", [0.995] * 5), "base": base, "champion": folder, "name": "tiny"}
    verdict = read_verdict(judge_and_write(GateConfig(**asked, out=tmp_path / "gate")))
    assert verdict.passed and "champion" not in verdict.evidence
    assert read_json(watch(watched(tmp_path)) / "watch.json")["outcome"] == "no champion"


@pytest.mark.full
def test_a_champion_is_asked_like_the_base_and_taken_by_a_gate_as_it_is(tmp_path, real, real_champion):
    _, other = real("candidate", 1, "new", question="both")
    folder = swept(tmp_path, like=other)
    assert read_sweep(folder).asked == read_sweep(other).asked
    at_hand = swept(tmp_path, like=real_champion[1], examples=tmp_path / "old.jsonl", out=tmp_path / "at-hand")
    assert digest_path(at_hand / "predictions.jsonl") == digest_path(real_champion[1] / "predictions.jsonl")
    assert (at_hand / "sweep.html").is_file(), "MLflow keeps no pages of a promoted sweep"
    gate = GateConfig(candidate=other, base=other, champion=folder, name="tiny", out=tmp_path / "gate", **LAX)
    verdict = read_verdict(judge_and_write(gate))
    assert verdict.evidence["champion"].files["predictions.jsonl"] == digest_path(folder / "predictions.jsonl")
    assert "mean against the champion" in verdict.rules[1].meaning


@pytest.mark.full
def test_on_fresh_data_a_champion_is_asked_as_when_it_was_promoted(tmp_path, real, real_champion):
    _, promoted = real_champion
    folder, (_, again) = swept(tmp_path), real("champion", 0, "new")
    mean = list(read_sweep(promoted).mean_ci95)
    assert read_json(folder / "champion.json") == {"name": "tiny", "version": "1", "promoted_mean_ci95": mean}
    assert digest_path(folder / "predictions.jsonl") == digest_path(again / "predictions.jsonl")
    assert read_sweep(folder).examples_digest != read_sweep(promoted).examples_digest
    with pytest.raises(PosgapError, match="7"):
        swept(tmp_path, version="7")


@pytest.mark.full
@pytest.mark.usefixtures("real_champion")
def test_a_champion_that_keeps_its_policy_is_tagged_so(tmp_path):
    swept(tmp_path)
    result = read_json(watch(watched(tmp_path)) / "watch.json")
    assert (result["name"], result["version"], result["outcome"]) == ("tiny", "1", "admitted")
    assert result["note"].startswith("tiny version 1 keeps its policy: gap ")
    assert registry.get_version("tiny", "1").tags["posgap.watched"].endswith(result["note"])
    assert (tmp_path / "watch" / "watch.md").read_text().startswith("# Admitted\n")


@pytest.mark.full
@pytest.mark.usefixtures("real_champion", "no_kfp_settings")
def test_one_that_has_left_it_fails_and_says_so_and_starts_what_it_is_to(tmp_path, monkeypatch):
    swept(tmp_path)
    registry.set_policy("tiny", HIGH.model_dump_json())
    with pytest.raises(LeftPolicy, match="^tiny version 1 .*: useful ") as left:
        watch(watched(tmp_path))
    assert left.value.exit_code == 3 and not getattr(left.value, "__notes__", [])
    assert "has left its policy" in registry.get_version("tiny", "1").tags["posgap.watched"]
    kept = read_json(tmp_path / "watch.rejected" / "watch.json")
    assert kept["outcome"] == "refused" and kept["verdict"]["policy"]["min_mean"] == 99
    form = {"data_train": "s3://lab/t", "data_eval": "s3://lab/e", "base_model": "s3://lab/m"}
    form |= {"only_new": True, "shards": 2}
    with pytest.raises(LeftPolicy) as left:
        watch(watched(tmp_path, mitigate=yaml.safe_dump(form)))
    assert left.value.__notes__[0].startswith(
        "the mitigation pipeline was not started: no KFP server: give --host or set"
    )
    with served(Server()) as server:
        monkeypatch.setenv("KFP_HOST", server.url)
        monkeypatch.setenv("_KFP_RUNTIME", "true")  # as KFP has it in a step
        with pytest.raises(LeftPolicy) as left:
            watch(watched(tmp_path, mitigate=form))
    assert left.value.__notes__ == ["the mitigation pipeline was started"]
    (run,) = server.runs.values()
    fields = {name: form[name] for name in ("data_train", "data_eval", "base_model")}
    assert run["runtime_config"]["parameters"] == fields | {"settings": '{"only_new": true, "shards": 2}'}
    assert run["pipeline_spec"]["pipeline_spec"]["pipelineInfo"]["name"] == "posgap-mitigation"


@pytest.mark.parametrize(("accuracy", "falls"), [(0.8, True), (0.985, False)])
def test_a_mean_that_fell_since_the_promotion_is_an_alarm(tmp_path, champion, accuracy, falls):
    write_sweep(tmp_path / "champion", [accuracy] * 5, examples="fresh", seed=7)
    known = {"name": "tiny", "version": "1", "promoted_mean_ci95": read_sweep(champion).mean_ci95}
    write_json(tmp_path / "champion" / "champion.json", SweptVersion(**known).model_dump())
    if not falls:
        assert read_json(watch(watched(tmp_path)) / "watch.json")["outcome"] == "admitted"
        return
    with pytest.raises(LeftPolicy, match=r": mean [78].* 9\d\.\d "):
        watch(watched(tmp_path))


def test_a_folder_that_says_nothing_of_a_champion_is_refused_in_a_line(tmp_path):
    (tmp_path / "champion").mkdir()
    with pytest.raises(PosgapError, match=r"champion\.json"):
        watch(watched(tmp_path))
    write_json(tmp_path / "champion" / "champion.json", {"name": "tiny"})
    with pytest.raises(Malformed, match=r"champion\.json: field `version`"):
        watch(watched(tmp_path))


@pytest.mark.full
@pytest.mark.usefixtures("real_champion")
def test_too_few_examples_are_no_alarm(tmp_path):
    swept(tmp_path)
    registry.set_policy("tiny", Policy(**LAX | {"least_examples": 100}).model_dump_json())
    result = read_json(watch(watched(tmp_path)) / "watch.json")
    assert result["outcome"] == "not enough evidence" and "4 examples, and the gate asks for 100" in result["note"]


@pytest.mark.full
@pytest.mark.usefixtures("real_champion")
def test_the_pipeline_sweeps_only_the_champion_and_fails_when_it_breaks_policy(tmp_path):
    registry.set_policy("tiny", HIGH.model_dump_json())

    def run(name):
        form = {"data_eval": str(tmp_path / "new.jsonl"), "registered_name": name}
        root, error = tmp_path / f"run-{name}", ""
        try:
            run_locally(pipeline, form, root, tmp_path / "cache", tmp_path / "pipeline.log")
        except PosgapError as failed:
            error = str(failed)
        (folder,) = root.iterdir()
        steps = {path.parent.name for path in folder.rglob("executor_output.json")}
        return SimpleNamespace(steps=steps, error=error, report=read_json(folder / "report" / "out" / "report.json"))

    nothing = run("nobody")
    assert nothing.steps == {"data-version", "champion", "watch", "report"} and nothing.report["status"] == "succeeded"
    left = run("tiny")
    assert left.steps == {"data-version", "champion", "report"}
    assert left.error.startswith("tiny version 1 has left its policy: useful ")
    (failed,) = left.report["failed"]
    assert left.report["status"] == "failed" and failed["step"].startswith("watch")
    assert failed["error"].startswith("tiny version 1 has left its policy: useful ")


def test_compile_prints_the_steps_of_the_pipeline_that_is_named(capsys, tmp_path):
    code, out, _ = posgap(capsys, "compile", "--pipeline", "watch", "--out", tmp_path / "watch.yaml")
    assert code == 0 and "champion" in out and "distill" not in out
