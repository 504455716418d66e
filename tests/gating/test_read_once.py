"""What was checked is not read from its place again: files that are exchanged while they are judged change nothing."""

import shutil

import numpy as np
import pytest
from refusals import refuses
from written_sweeps import N, copy_of, example, gated, promoted, write_sweep

from posgap.cli.main import main
from posgap.foundation.errors import Contradiction, PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.gating import trial
from posgap.gating.demands import Policy
from posgap.gating.verdict import read_verdict
from posgap.generation.generator import Completion
from posgap.storage.lineage import write_training_examples
from posgap.tasks.content import content_key
from posgap.tracking import registry
from posgap.verbs import promote as promoting

pytestmark = pytest.mark.usefixtures("mlflow_store")
BAD = np.ones((N, 5))
BAD[::2, 2] = 0  # a gap of 50


class BadAnswers:
    """A model that is right as `BAD` says, whatever its sweep recorded."""

    def __init__(self, *_):
        pass

    def answer(self, rows):
        said = []
        for row in rows:
            is_right = BAD[int(row["id"][1:]), row["placement"][0] - 1]
            said.append(Completion(example(int(row["id"][1:])).answers[0] if is_right else "said", []))
        return said


@pytest.fixture
def tried(monkeypatch):
    monkeypatch.setattr(trial, "SweptAnswers", BadAnswers)
    monkeypatch.setattr(trial, "why_not_tried", lambda *_: "")
    policy = Policy(allow=["reference-trial"])
    registry.set_policy("tiny", policy.model_dump_json())


@pytest.fixture
def forged(tmp_path, base, model_folder, tried):
    """The model, its sweep as somebody forged it, and the gate that admitted that."""
    model = copy_of(model_folder, tmp_path / "model")
    swept = write_sweep(tmp_path / "swept", np.ones((N, 5)), model=model)
    folder = gated(tmp_path, "forged", swept, base, name="tiny")
    assert read_verdict(folder).passed
    return model, swept, folder


def replaced(folder, other):
    for file in other.iterdir():
        shutil.copyfile(file, folder / file.name)


@pytest.mark.parametrize(
    ("whose", "when"),
    [
        ("sweep", "promote_version"),
        *(
            pytest.param(whose, when, marks=pytest.mark.full)  # each promotes
            for whose in ("sweep", "gate")
            for when in ("write_pages", "require_references", "replay_verdict")
        ),
    ],
)
def test_predictions_exchanged_during_promotion_are_not_compared(tmp_path, forged, monkeypatch, when, whose):
    """Once they were judged, those of what the model really answers were put there: the trial then found no other."""
    model, swept, folder = forged
    honest = write_sweep(tmp_path / "honest", BAD, model=model)
    work = getattr(promoting, when)

    def exchanged(*args, **options):
        replaced(swept if whose == "sweep" else folder / "candidate", honest)
        return work(*args, **options)

    monkeypatch.setattr(promoting, when, exchanged)
    with refuses(Contradiction, "models:/tiny/1"):
        promoted(tmp_path, "tiny", model, swept, folder)
    assert registry.champion("tiny") is None


@pytest.mark.full
def test_a_list_of_learnt_examples_that_comes_back_is_found(tmp_path, base, model_folder, monkeypatch):
    """The list lay in the model's folder whenever a digest was taken, and not while it was read."""
    model = copy_of(model_folder, tmp_path / "model")
    write_training_examples(model, [content_key(example(1000))])
    swept = write_sweep(tmp_path / "swept", np.ones((N, 5)), model=model)
    folder = gated(tmp_path, "hidden", swept, base, name="tiny")
    learnt, hidden = model / "training_examples.json", tmp_path / "hidden.json"
    version_tags = promoting._version_tags

    def came_back(*args):
        hidden.rename(learnt)
        return version_tags(*args)

    monkeypatch.setattr(promoting, "_version_tags", came_back)
    monkeypatch.setattr(promoting, "_require_lasting", lambda *_: learnt.rename(hidden))
    with refuses(Contradiction, "models:/tiny/1", at=swept):
        promoted(tmp_path, "tiny", model, swept, folder)


@pytest.mark.full
def test_weights_exchanged_for_their_digest_are_found(tmp_path, base, model_folder, monkeypatch):
    """A veto holds by the digest of the weights, which was taken after that of the folder."""
    model = copy_of(model_folder, tmp_path / "model")
    other = copy_of(model_folder, tmp_path / "other") / "model.safetensors"
    swept = write_sweep(tmp_path / "swept", np.ones((N, 5)), model=model)
    folder = gated(tmp_path, "good", swept, base, name="tiny")
    kept = shutil.copyfile(model / "model.safetensors", tmp_path / "kept")
    monkeypatch.setattr(promoting, "method_of", lambda _: shutil.copyfile(other, model / "model.safetensors"))
    digest = promoting.digest_of_tensors

    def measured(folder):
        found = digest(folder)
        shutil.copyfile(kept, model / "model.safetensors")
        return found

    monkeypatch.setattr(promoting, "digest_of_tensors", measured)
    monkeypatch.setattr(promoting, "write_pages", lambda *_: None)
    with refuses(Contradiction, "models:/tiny/1", "weights"):
        promoted(tmp_path, "tiny", model, swept, folder)


def test_a_base_exchanged_after_its_digest_does_not_answer(tmp_path, model_folder, monkeypatch):
    """Beside a base that was made worse any candidate passes; a copy of the folder answers, which nobody can reach."""
    monkeypatch.setattr(trial, "why_not_tried", lambda *_: "")
    base = copy_of(model_folder, tmp_path / "base-model")
    sweep = trial.Sweep.model_construct(model=str(base), model_digest=trial.digest_path(base))
    there = trial._find_model(sweep, "base", tmp_path / "place", None)
    shutil.rmtree(base)
    assert trial.digest_path(there) == sweep.model_digest
    copy_of(model_folder, base)
    write_json(base / "config.json", read_json(base / "config.json") | {"rope_theta": 5.0})
    with refuses(PosgapError, "`allow: [reference-trial]`"):
        trial._find_model(sweep, "base", tmp_path / "again", None)


def test_errors_name_what_was_copied(tmp_path, base, capsys):
    """Not the copy, which is gone."""
    swept = write_sweep(tmp_path / "swept", np.ones((N, 5)))
    write_json(swept / "sweep.json", read_json(swept / "sweep.json") | {"mean": 3.0})
    with pytest.raises(SystemExit) as stopped:
        main(["gate", "--candidate", str(swept), "--base", str(base), "--out", str(tmp_path / "gate")])
    assert stopped.value.code == 2 and f"{swept}/sweep.json" in capsys.readouterr().err
