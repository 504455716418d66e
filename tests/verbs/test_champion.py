"""The champion that the registry has: a candidate is judged against it, on the same examples."""

import json
import logging
import shutil
from pathlib import Path

import mlflow
import numpy as np
import pytest
from written_sweeps import LAX, N, copy_of, gated, promoted, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import GateRefusal, PosgapError
from posgap.foundation.files import digest_path, write_json
from posgap.gating.replay import OutdatedVerdict, replay_verdict
from posgap.gating.verdict import judge, markdown, read_verdict
from posgap.measurement.sweeps import read_sweep
from posgap.options.merge import MergeConfig
from posgap.options.promote import PromoteConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import read_manifest
from posgap.tracking import promotion, registry
from posgap.tracking.version_record import record_of
from posgap.verbs.merge import merge
from posgap.verbs.promote import promote
from posgap.verbs.sweep import sweep_model

pytestmark = pytest.mark.usefixtures("mlflow_store")


@pytest.fixture
def client():
    return mlflow.MlflowClient()


@pytest.mark.full
def test_a_second_run_does_not_replace_a_better_champion(tmp_path, champion, model_folder, client):
    """Against the base alone the worse model would be admitted, and would have become the champion."""
    worse, poor = copy_of(model_folder, tmp_path / "worse"), write_sweep(tmp_path / "poor", [0.9, 0.4, 0.2, 0.4, 0.8])
    swept = write_sweep(tmp_path / "sweep-worse", [0.96] * 5, model=worse, seed=1)
    assert read_verdict(gated(tmp_path, "alone", swept, poor)).passed
    refused = gated(tmp_path, "worse", swept, poor, name="tiny")
    verdict = read_verdict(refused)
    assert not verdict.passed and "mean against the champion" in verdict.rules[1].meaning
    assert verdict.evidence["champion"].model_digest == read_sweep(champion).model_digest
    assert replay_verdict(refused) == verdict
    with pytest.raises(OutdatedVerdict, match=" no champion, .* tiny is version 1;"):
        promoted(tmp_path, "alone", worse, swept, tmp_path / "gate-alone")
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == "1"


@pytest.mark.full
def test_a_folder_comes_before_the_champion_of_the_name(tmp_path, base, champion):
    swept = write_sweep(tmp_path / "sweep-new", [0.99] * 5)
    by_name = read_verdict(gated(tmp_path, "2", swept, base, name="tiny"))
    assert by_name.evidence.keys() == {"candidate", "base", "champion"}
    other = write_sweep(tmp_path / "other", [0.9] * 5)
    by_folder = read_verdict(gated(tmp_path, "3", swept, base, champion=other, name="tiny"))
    assert by_folder.evidence["champion"].files["sweep.json"] == digest_path(other / "sweep.json")


def test_without_a_champion_it_says_so_and_judges_against_the_base(tmp_path, base, caplog):
    caplog.set_level(logging.INFO)
    verdict = read_verdict(gated(tmp_path, "1", write_sweep(tmp_path / "new", [0.995] * 5), base, name="tiny"))
    assert verdict.passed and "mean against the base" in verdict.rules[1].meaning
    assert "tiny has no champion: the candidate is judged against the base" in caplog.text


def test_a_random_model_against_a_random_base_is_refused(tmp_path):
    """Nothing is lost, no position is worse than another, and it knows nothing."""
    random = write_sweep(tmp_path / "random", [0.0] * 5)
    verdict = read_verdict(gated(tmp_path, "1", random, random, name="tiny"))
    assert [rule.name for rule in verdict.rules if not rule.passed] == ["useful"]
    assert isinstance(verdict.error("it"), GateRefusal)


@pytest.mark.full
def test_a_verdict_is_stale_when_the_champion_has_changed(tmp_path, base, champion, model_folder, client):
    swept = {}
    for name in ("second", "third"):
        swept[name] = write_sweep(tmp_path / f"sweep-{name}", [0.995] * 5, model=copy_of(model_folder, tmp_path / name))
        gated(tmp_path, name, swept[name], base, name="tiny")
    promoted(tmp_path, "second", tmp_path / "second", swept["second"], tmp_path / "gate-second")
    with pytest.raises(OutdatedVerdict, match=r" m, .* tiny is version 2\b"):
        promoted(tmp_path, "third", tmp_path / "third", swept["third"], tmp_path / "gate-third")
    judged = {"gate": tmp_path / "gate-third", "gate_again": tmp_path / "again"}
    options = judged | {"model": str(tmp_path / "third"), "sweep": swept["third"], "name": "tiny"}
    promote(PromoteConfig(**options, out=tmp_path / "promote-third"))
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == "3"
    before, after = read_verdict(tmp_path / "gate-third"), read_verdict(tmp_path / "again")
    assert after.evidence["champion"].model_digest == read_sweep(swept["second"]).model_digest
    assert after.policy == before.policy
    assert read_manifest(tmp_path / "promote-third")["config"]["gate"] == str(tmp_path / "again")


@pytest.mark.full
def test_a_candidate_worse_than_today_s_champion_is_gated_again_and_refused(tmp_path, base, model_folder, client):
    options = {}
    for name, skill in (("good", 0.995), ("late", 0.9)):
        swept = write_sweep(tmp_path / f"sweep-{name}", [skill] * 5, model=copy_of(model_folder, tmp_path / name))
        judged = gated(tmp_path, name, swept, base, name="tiny", max_gap=30, advantageous_tolerance=30)
        assert read_verdict(judged).passed, "there was no champion yet"
        options[name] = {"model": str(tmp_path / name), "sweep": swept, "gate": judged, "name": "tiny"}
    promote(PromoteConfig(**options["good"], out=tmp_path / "promoted"))
    again = {"gate_again": tmp_path / "again", "out": tmp_path / "refused"}
    with pytest.raises(GateRefusal, match="mean"):
        promote(PromoteConfig(**options["late"], **again))
    assert not read_verdict(tmp_path / "again").passed and not (tmp_path / "refused").exists()
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == "1"
    assert len(client.search_model_versions("name='tiny'")) == 1


@pytest.mark.full
def test_who_promotes_at_the_same_time_is_noticed(tmp_path, base, champion, model_folder, client, monkeypatch):
    model = copy_of(model_folder, tmp_path / "slow")
    swept = write_sweep(tmp_path / "sweep-slow", [0.995] * 5, model=model)
    folder = gated(tmp_path, "slow", swept, base, name="tiny")
    upload = promotion._log_model

    def while_another_is_faster(*arguments):
        other = client.create_model_version("tiny", "file:///other")
        client.set_registered_model_alias("tiny", "champion", other.version)
        return upload(*arguments)

    monkeypatch.setattr(promotion, "_log_model", while_another_is_faster)
    with pytest.raises(OutdatedVerdict, match=r" m, .* tiny is version 2\b"):
        promoted(tmp_path, "slow", model, swept, folder)
    assert str(client.get_model_version_by_alias("tiny", "champion").version) == "2"


@pytest.mark.full
def test_candidates_of_a_run_face_the_one_before_it(tmp_path, base, champion, model_folder, monkeypatch):
    monkeypatch.setenv("POSGAP_PIPELINE_RUN", "run-7")
    for name in ("first", "second"):
        model = copy_of(model_folder, tmp_path / name)
        swept = write_sweep(tmp_path / f"sweep-{name}", [0.995] * 5, model=model)
        folder = gated(tmp_path, name, swept, base, name="tiny")
        assert read_verdict(folder).evidence["champion"].model_digest == read_sweep(champion).model_digest
        promoted(tmp_path, name, model, swept, folder)
    assert registry.to_beat("tiny").version == registry.previous("tiny").version


def test_a_champion_that_was_swept_on_other_examples_is_swept_on_these(tmp_path, real, real_champion, caplog):
    caplog.set_level(logging.INFO)
    model, _ = real_champion
    shutil.move(model, tmp_path / "elsewhere")  # the registry's copy is what is swept
    _, candidate = real("candidate", 1, "new", question="both", shuffle=3)
    for number in range(2):
        verdict = read_verdict(gated(tmp_path, str(number), candidate, candidate, name="tiny", **LAX))
    swept = tmp_path / "gate-0" / "champion"
    assert read_sweep(swept).asked == read_sweep(candidate).asked and read_sweep(swept).label == "champion"
    assert json.loads((swept / "training_examples.json").read_text()) == ["0" * 16]
    # What is swept is the model that was registered, and once is enough.
    of_original = sweep_model(
        SweepConfig(
            **read_sweep(candidate).settings | {"label": "champion"},
            examples=tmp_path / "new.jsonl",
            model=str(tmp_path / "elsewhere"),
            out=tmp_path / "again",
        )
    )
    assert digest_path(swept / "predictions.jsonl") == digest_path(of_original / "predictions.jsonl")
    assert verdict.evidence["champion"].files["sweep.json"] == digest_path(swept / "sweep.json")
    assert caplog.text.count("sweep: started") == 3  # the candidate's, the champion's, the original's
    promoted(tmp_path, "candidate", tmp_path / "model-candidate", candidate, tmp_path / "gate-1")


@pytest.mark.full
def test_parts_that_were_merged_say_where_their_examples_are(tmp_path, real, real_champion):
    parts = [real(f"part{i}", 1, "new", positions=[p], label="x")[1] for i, p in enumerate(("1", "4"))]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    verdict = read_verdict(gated(tmp_path, "1", merged, merged, name="tiny", **LAX))
    assert verdict.evidence["champion"].examples_digest == read_sweep(merged).examples_digest
    assert read_sweep(tmp_path / "gate-1" / "champion").positions == [1, 4]


@pytest.mark.full
def test_examples_that_are_gone_are_asked_for(tmp_path, real, real_champion):
    _, candidate = real("candidate", 1, "new")
    shutil.move(tmp_path / "new.jsonl", tmp_path / "moved.jsonl")
    with pytest.raises(PosgapError, match="new.jsonl: "):
        gated(tmp_path, "1", candidate, candidate, name="tiny", **LAX)
    (candidate / "manifest.json").unlink()
    with pytest.raises(PosgapError, match="--examples"):
        gated(tmp_path, "1", candidate, candidate, name="tiny", **LAX)
    examples = tmp_path / "moved.jsonl"
    assert read_verdict(gated(tmp_path, "1", candidate, candidate, name="tiny", examples=examples, **LAX)).passed
    with pytest.raises(PosgapError, match="old.jsonl: .* 0 of 4 "):
        gated(tmp_path, "2", candidate, candidate, name="tiny", examples=tmp_path / "old.jsonl", **LAX)


@pytest.mark.full
def test_a_champion_cannot_be_swept_at_the_candidate_s_endpoint(tmp_path, real, real_champion):
    _, candidate = real("candidate", 1, "new")
    asked = json.loads((candidate / "sweep.json").read_text())
    write_json(candidate / "sweep.json", asked | {"settings": asked["settings"] | {"backend": "openai"}})
    with pytest.raises(PosgapError, match="^tiny version 1: .*--champion"):
        gated(tmp_path, "1", candidate, candidate, name="tiny", **LAX)


@pytest.mark.full
@pytest.mark.parametrize("change", ["edited", "gone", "tags"])
def test_a_kept_sweep_that_is_not_the_promoted_one_is_not_taken(tmp_path, real, real_champion, client, change, caplog):
    version = client.get_model_version_by_alias("tiny", "champion")
    run = client.get_run(version.tags["posgap.promotion_run"])
    kept = Path(run.info.artifact_uri.removeprefix("file://")) / "sweep"
    if change == "edited":
        file = kept / "predictions.jsonl"
        file.write_text(file.read_text().replace('"correct": true', '"correct": false'))
        (kept / "sweep.json").write_text((kept / "sweep.json").read_text() + " ")
    elif change == "gone":
        shutil.rmtree(kept)
    else:
        client.set_model_version_tag("tiny", version.version, "posgap.evidence", "[1")
    _, candidate = real("candidate", 1)
    verdict = read_verdict(gated(tmp_path, "1", candidate, candidate, name="tiny", **LAX))
    assert "MLflow lacks the sweep that it was promoted with" in caplog.text
    assert verdict.evidence["champion"].label == "champion"  # swept again
    right = real_champion[1] / "predictions.jsonl"
    assert verdict.evidence["champion"].files["predictions.jsonl"] == digest_path(right)


def test_a_registered_model_of_another_kind_is_refused_in_a_line(tmp_path, base, client):
    client.create_registered_model("tiny")
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "MLmodel").write_text("flavors: {}\n")
    version = client.create_model_version("tiny", (tmp_path / "artifact").as_uri())
    client.set_registered_model_alias("tiny", "champion", version.version)
    with pytest.raises(PosgapError) as refused:
        gated(tmp_path, "1", base, base, name="tiny", examples=tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def generation(tmp_path, model_folder, number, lost):
    """A model's sweep that is right but for `lost` examples, each wrong at one placement, each of these as often."""
    model = copy_of(model_folder, tmp_path / f"model-{number}")
    right = np.ones((N, 5))
    right[np.arange(lost), np.arange(lost) % 5] = 0
    return model, write_sweep(tmp_path / f"sweep-{number}", right, model=model)


@pytest.mark.full
def test_no_row_of_champions_loses_the_tolerance_anew(tmp_path, base, model_folder, client):
    """Each is 0.9 points worse than the one before it, and 3 may be lost: of 0.9 points 2.5 may be, of 1.8 3.4."""
    rules = {"mean_tolerance": 3.0, "name": "tiny"}
    step, admitted = round(0.009 * 5 * N), []
    for number in range(4):
        model, swept = generation(tmp_path, model_folder, number, number * step)
        verdict = read_verdict(gated(tmp_path, f"{number}", swept, base, **rules))
        # Beside the champion alone each one would be admitted.
        assert number == 0 or judge(swept, base, tmp_path / f"sweep-{number - 1}", verdict.policy).passed
        if not verdict.passed:
            break
        promoted(tmp_path, number, model, swept, tmp_path / f"gate-{number}")
        admitted.append(number)
    assert admitted == [0, 1]
    mean = next(rule for rule in verdict.rules if rule.name == "mean")
    assert mean.meaning == "mean against the best champion so far" and mean.estimate == pytest.approx(-1.8)
    assert verdict.evidence["anchor"].model_digest == read_sweep(tmp_path / "sweep-0").model_digest
    assert replay_verdict(tmp_path / "gate-2") == verdict
    assert record_of(registry.champion("tiny")).anchor == "1"


@pytest.mark.full
def test_the_best_champion_so_far_is_left_out_only_where_a_policy_says_so(tmp_path, base, model_folder):
    step = round(0.009 * 5 * N)
    for number in range(2):
        model, swept = generation(tmp_path, model_folder, number, number * step)
        promoted(
            tmp_path, number, model, swept, gated(tmp_path, f"{number}", swept, base, mean_tolerance=3.0, name="tiny")
        )
    model, swept = generation(tmp_path, model_folder, 2, 2 * step)
    # A gate that was given the champion's sweep by hand has not compared with the best one.
    by_hand = gated(tmp_path, "by-hand", swept, base, champion=tmp_path / "sweep-1", mean_tolerance=3.0, name="tiny")
    assert read_verdict(by_hand).passed
    with pytest.raises(OutdatedVerdict, match=" tiny version 1;"):
        promoted(tmp_path, "by-hand", model, swept, by_hand)
    meant = gated(tmp_path, "meant", swept, base, mean_tolerance=3.0, name="tiny", allow=["anchor"])
    verdict = read_verdict(meant)
    assert verdict.passed and verdict.asked_otherwise == ["anchor"] and "anchor" not in verdict.evidence
    assert "was not compared with the best champion so far, as was allowed" in markdown(verdict)
    assert replay_verdict(meant) == verdict
    promoted(tmp_path, "meant", model, swept, meant)
    assert record_of(registry.champion("tiny")).anchor == "1"


@pytest.mark.full
def test_a_champion_that_is_shown_to_be_better_is_the_best_so_far(tmp_path, base, model_folder):
    for number, lost in enumerate((30, 36, 0)):
        model, swept = generation(tmp_path, model_folder, number, lost)
        promoted(
            tmp_path, number, model, swept, gated(tmp_path, f"{number}", swept, base, mean_tolerance=3.0, name="tiny")
        )
        assert record_of(registry.champion("tiny")).anchor == ("", "1", "")[number]


@pytest.mark.full
def test_the_name_s_own_policy_says_whether_the_best_champion_may_be_left_out(tmp_path, base, model_folder):
    """A gate without a name takes whatever policy it is given."""
    step = round(0.009 * 5 * N)
    for number in range(2):
        model, swept = generation(tmp_path, model_folder, number, number * step)
        promoted(tmp_path, number, model, swept, gated(tmp_path, number, swept, base, mean_tolerance=3.0, name="tiny"))
    model, swept = generation(tmp_path, model_folder, 2, 2 * step)
    by_hand = {"champion": tmp_path / "sweep-1", "mean_tolerance": 3.0, "allow": ["anchor"]}
    lax = gated(tmp_path, "lax", swept, base, **by_hand)
    assert read_verdict(lax).passed
    registry.set_policy("tiny", "mean_tolerance: 3")
    with pytest.raises(OutdatedVerdict, match=" tiny version 1;"):
        promoted(tmp_path, "lax", model, swept, lax)
    registry.set_policy("tiny", "mean_tolerance: 3\nallow: [anchor, trial]")
    promoted(tmp_path, "meant", model, swept, lax)


@pytest.fixture
def foreign(model_folder, tmp_path, registers, client):
    """The folder of a champion that something else than posgap registered, and its version's number."""
    folder = copy_of(model_folder, tmp_path / "foreign")
    number = registers(folder)
    client.delete_model_version_tag("tiny", number, registry.DIGEST)
    return folder, number


@pytest.mark.full
def test_a_champion_that_posgap_did_not_register_is_beaten_by_its_own_sweep_alone(
    tmp_path, base, foreign, model_folder, client
):
    """Any folder that was called its sweep had it beaten."""
    other, new = (copy_of(model_folder, tmp_path / name) for name in ("other", "new"))
    swept = write_sweep(tmp_path / "swept", [0.995] * 5, model=new)
    folder, number = foreign
    for champion in (other, folder):
        of_champion = write_sweep(tmp_path / f"champion-{champion.name}", [0.9] * 5, model=champion)
        judged = gated(tmp_path, champion.name, swept, base, name="tiny", champion=of_champion)
        assert read_verdict(judged).passed
        if champion is other:
            with pytest.raises(OutdatedVerdict, match=f" version {number}, .*mlflow artifacts download"):
                promoted(tmp_path, "other", new, swept, judged)
        else:
            promoted(tmp_path, "own", new, swept, judged)
    assert str(client.get_model_version_by_alias("tiny", "champion").version) != number


@pytest.mark.full
@pytest.mark.usefixtures("champion")
def test_a_copy_under_another_name_was_not_judged_for_that(client, capsys):
    """MLflow copies the tags; the gate of that name never saw it."""
    client.copy_model_version("models:/tiny/1", "prod")
    client.set_registered_model_alias("prod", "challenger", "1")
    with pytest.raises(SystemExit) as stopped:
        main(["approve", "prod", "1"])
    assert stopped.value.code == 2 and " for prod" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["view", "models:/prod"])
    said = capsys.readouterr().out
    assert "not judged for prod" in said and "admitted" not in said
    with pytest.raises(SystemExit):
        main(["view", "models:/tiny"])
    assert "admitted" in capsys.readouterr().out
