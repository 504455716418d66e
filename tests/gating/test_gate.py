"""Gate and registry: the interval decides, and aliases move only for what passed."""

import json

import mlflow
import pytest
from refusals import refuses
from written_sweeps import ASKED, N, copy_of, decide, promotion, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import Contradiction, GateRefusal, Malformed, NoServer, NotAlike, PosgapError
from posgap.foundation.files import digest_path, read_json, write_json
from posgap.gating.verdict import markdown
from posgap.measurement.evidence import Evidence
from posgap.options.gate import GateConfig
from posgap.tracking.registry import bring_model
from posgap.verbs.gate import judge_and_write
from posgap.verbs.promote import promote


def test_a_flat_and_better_model_passes(tmp_path, base):
    verdict, rules = decide(tmp_path, write_sweep(tmp_path / "new", [0.995] * 5), base)
    assert (
        verdict.passed
        and set(rules) == {"gap", "mean", "advantageous", "useful", "answered", "clean"}
        and all(rules.values())
    )


def test_pairs_of_positions_are_judged_like_positions(tmp_path):
    pairs = [[1, 2], [4, 5], [1, 4], [2, 1], [5, 4]]
    base = write_sweep(tmp_path / "base", [0.1, 0.99, 0.5, 0.1, 0.9], placements=pairs)
    new = write_sweep(tmp_path / "new", [0.995] * 5, placements=pairs)
    verdict, rules = decide(tmp_path, new, base)
    assert verdict.passed and all(rules.values())
    assert verdict.rules[2].meaning.startswith("accuracy where the base is best (position 4+5), against it")
    with refuses(NotAlike, "task (", "placements (1 2 3 4 5, not 1+2 4+5 1+4"):
        decide(tmp_path, new, write_sweep(tmp_path / "single", [0.9] * 5))


def test_the_base_model_is_refused_for_its_gap(tmp_path, base):
    verdict, rules = decide(tmp_path, base, base)
    assert verdict.outcome == "refused"
    assert [name for name, passed in rules.items() if not passed] == ["gap"]


def test_the_interval_decides_not_the_estimate(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.97, 0.97, 0.93, 0.97, 0.97])
    verdict, rules = decide(tmp_path, new, base, advantageous_tolerance=10)
    (rule,) = [r for r in verdict.rules if r.name == "gap"]
    assert rule.estimate < 10 < rule.interval[1] == rule.value
    assert not rules["gap"]


def test_a_flat_but_poor_model_is_refused(tmp_path, base):
    _, rules = decide(tmp_path, write_sweep(tmp_path / "new", [0.0] * 5), base)
    assert rules == {
        "gap": True, "mean": False, "advantageous": False, "useful": False, "answered": True, "clean": True
    }  # fmt: skip


def test_the_mean_is_compared_with_the_champion(tmp_path, base):
    champion = write_sweep(tmp_path / "champion", [0.999] * 5)
    new = write_sweep(tmp_path / "new", [0.95] * 5, seed=1)
    _, against_base = decide(tmp_path, new, base, max_gap=20, advantageous_tolerance=10)
    assert against_base["mean"]
    _, against_champion = decide(tmp_path, new, base, champion=champion, max_gap=20, advantageous_tolerance=10)
    assert not against_champion["mean"]


def test_sweeps_of_other_examples_are_not_compared(tmp_path, base):
    other = write_sweep(tmp_path / "new", [0.9] * 5, order=range(1, N))
    with refuses(NotAlike, "examples ("):
        decide(tmp_path, other, base)


def test_a_difference_that_is_meant_is_allowed_and_told(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.995] * 5, asked=ASKED.model_copy(update={"prompt": "q", "question": "both"}))
    with refuses(NotAlike, "question (after, not both)", "--allow prompt,question"):
        decide(tmp_path, new, base, allow=["prompt"])
    verdict, _ = decide(tmp_path, new, base, allow=["prompt", "question", "shuffle"])
    assert verdict.passed and verdict.asked_otherwise == ["prompt", "question"]
    assert "not asked alike, as was allowed: prompt, question" in markdown(verdict)


def test_missing_predictions_are_noticed(tmp_path, base):
    lines = (base / "predictions.jsonl").read_text().splitlines()
    (base / "predictions.jsonl").write_text("\n".join(lines[:-1]))
    with refuses(Malformed, at=base):
        Evidence(base)


def test_a_refused_model_ends_the_verb_with_code_3(tmp_path, base, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["gate", "--candidate", str(base), "--base", str(base), "--out", str(tmp_path / "gate")])
    assert stopped.value.code == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"posgap: the gate refused {base}: gap 7")
    assert (tmp_path / "gate" / "gate.json").exists()


def test_a_result_is_printed_as_json_alone_also_a_refusal_and_never_an_earlier_one(tmp_path, base, capsys):
    common = ["gate", "--base", str(base), "--out", str(tmp_path / "gate"), "--json"]
    with pytest.raises(SystemExit) as stopped:
        main([*common, "--candidate", str(base)])
    assert stopped.value.code == 3
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "gate" / "gate.json").read_text()) and not shown["passed"]
    with pytest.raises(SystemExit) as stopped:
        main([*common, "--candidate", str(tmp_path / "nowhere")])
    shown = json.loads(capsys.readouterr().out)
    assert stopped.value.code == shown["exit_code"] == 2 and "nowhere: no such file or folder" in shown["error"]


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_the_champion_before_it_becomes_previous(tmp_path, base, model_folder):
    client = mlflow.MlflowClient()
    first = promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base)
    promote(first)
    assert client.get_model_version_by_alias("tiny", "champion").version in ("1", 1)
    promote(promotion(tmp_path, "second", copy_of(model_folder, tmp_path / "two"), base))
    champion = client.get_model_version_by_alias("tiny", "champion")
    assert str(champion.version) == "2"
    assert str(client.get_model_version_by_alias("tiny", "previous").version) == "1"
    assert champion.tags.keys() >= {"method", "gap", "mean", "worst", "gate", "policy", "data", "posgap.model_digest"}
    # The same model again is no new version.
    promote(promotion(tmp_path, "again", tmp_path / "two", base))
    assert len(client.search_model_versions("name='tiny'")) == 2
    # What is registered loads and answers.
    pipe = mlflow.transformers.load_model("models:/tiny@champion")
    assert pipe.model.config.num_hidden_layers == 2
    # A refused one moves nothing and is not registered.
    refused = promotion(tmp_path, "refused", copy_of(model_folder, tmp_path / "three"), base, probability=0.0)
    with refuses(GateRefusal, "three", ": mean "):
        promote(refused)
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == "2"
    assert len(client.search_model_versions("name='tiny'")) == 2
    assert not refused.out.exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("order", [("good", "better"), ("better", "good")])
def test_of_one_pipeline_run_s_candidates_the_best_ends_as_champion(tmp_path, base, model_folder, monkeypatch, order):
    client = mlflow.MlflowClient()
    promote(promotion(tmp_path, "former", copy_of(model_folder, tmp_path / "former"), base))
    monkeypatch.setenv("POSGAP_PIPELINE_RUN", "run-7")
    probability = {"good": 0.97, "better": 0.995}

    def promoted(name, again=""):
        candidate = promotion(tmp_path, name, tmp_path / name, base, probability[name], again)
        lax = {"max_gap": 30, "advantageous_tolerance": 20, "mean_tolerance": 10, "allow": ["trial"]}
        passed = GateConfig(out=tmp_path / f"passed-{name}", candidate=candidate.sweep, base=base, name="tiny", **lax)
        promote(candidate.model_copy(update={"gate": judge_and_write(passed)}))
        return read_json(candidate.out / "promotion.json")

    for name in order:
        copy_of(model_folder, tmp_path / name)
    told = {name: promoted(name) for name in order}
    champion = client.get_model_version_by_alias("tiny", "champion")
    assert str(champion.version) == told["better"]["version"] and champion.tags["posgap.pipeline_run"] == "run-7"
    assert told["better"]["alias"] == "champion"
    assert told["good"]["alias"] == ("champion" if order[0] == "good" else "")
    assert str(client.get_model_version_by_alias("tiny", "previous").version) == "1"
    # Another run with the same models registers none a second time, and ends the same.
    monkeypatch.setenv("POSGAP_PIPELINE_RUN", "run-8")
    assert {name: promoted(name, "-again")["version"] for name in order} == {n: told[n]["version"] for n in order}
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == told["better"]["version"]
    assert len(client.search_model_versions("name='tiny'")) == 3


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_version_that_does_not_answer_as_it_was_swept_is_not_promoted(tmp_path, base, model_folder, monkeypatch):
    """What is tried is what the registry gives back, and before an alias moves."""
    config = promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base)
    tried = []

    def differs(model, inputs, policy, examples, swept):
        predictions = digest_path(swept / "predictions.jsonl")
        tried.append((digest_path(model), model == tmp_path / "one", predictions, len(examples)))
        raise PosgapError("only 1 of 4 responses are as its sweep recorded")

    with monkeypatch.context() as patch:
        patch.setattr("posgap.verbs.promote.require_answers", differs)
        with refuses(PosgapError, "models:/tiny/1", "1 of 4"):
            promote(config)
    predictions = digest_path(config.sweep / "predictions.jsonl")
    assert tried == [(digest_path(tmp_path / "one"), False, predictions, N)]
    assert not config.out.exists() and not mlflow.MlflowClient().get_registered_model("tiny").aliases
    # It is promoted once it answers, and is no second version, though another run made the same weights again.
    write_json(tmp_path / "one" / "manifest.json", {"ancestors": ["m", "a later sweep of m"]})
    promote(promotion(tmp_path, "first", tmp_path / "one", base, again="-again"))
    assert str(mlflow.MlflowClient().get_registered_model("tiny").aliases["champion"]) == "1"


@pytest.mark.usefixtures("mlflow_store")
def test_a_new_copy_that_was_made_from_something_else_is_not_promoted(tmp_path, base, model_folder, monkeypatch):
    config = promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base)

    def bring_forged(uri, place):
        folder = bring_model(uri, place)
        write_json(folder / "manifest.json", {"ancestors": ["another model"]})
        return folder

    monkeypatch.setattr("posgap.tracking.promotion.bring_model", bring_forged)
    with refuses(Contradiction, "models:/tiny/1", "made from"):
        promote(config)
    assert not config.out.exists() and not mlflow.MlflowClient().get_registered_model("tiny").aliases


@pytest.mark.usefixtures("mlflow_store")
def test_a_gate_of_another_model_does_not_admit_this_one(tmp_path, base, model_folder):
    admitted = promotion(tmp_path, "admitted", copy_of(model_folder, tmp_path / "one"), base)
    other = copy_of(model_folder, tmp_path / "two")
    with refuses(NotAlike, at=other):
        promote(admitted.model_copy(update={"model": str(other)}))


@pytest.mark.usefixtures("mlflow_store")
def test_promotion_needs_a_tracking_server(tmp_path, base, model_folder, monkeypatch):
    config = promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with refuses(NoServer, "http://127.0.0.1:9"):
        promote(config)
    assert not config.out.exists()
