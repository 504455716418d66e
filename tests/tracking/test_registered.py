"""A model in MLflow's registry is named `models:/name@champion` or `models:/name/3` wherever a model is named."""

import json
from pathlib import Path

import mlflow
import pytest
from command_line import fails, run
from examples import kv_example
from refusals import refuses
from registered_logits import logits

import posgap
from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction
from posgap.foundation.files import digest_path, read_json
from posgap.foundation.locations import registered_cache, with_uris
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.storage.inputs import source
from posgap.tracking import flavor, registry
from posgap.tracking.registered import RegisteredVersion


@pytest.fixture
def other_folder(model_folder, tmp_path):
    """A model like the tiny one, with other weights."""
    model = load_model(str(model_folder))
    for weight in model.parameters():
        weight.data.mul_(1.5)
    save_model(model, load_tokenizer(str(model_folder)), tmp_path / "other")
    return tmp_path / "other"


@pytest.fixture
def examples(tmp_path):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(3)])
    return tmp_path / "e.jsonl"


def swept(capsys, tmp_path, examples, model, out="out", *more) -> tuple[int, str]:
    words = ["--n-docs", "4", "--out", tmp_path / out, *more]
    return run(capsys, "sweep", "--examples", examples, "--model", model, *words)


@pytest.mark.full
def test_a_stage_reads_the_champion_as_it_reads_its_folder(capsys, tmp_path, model_folder, examples, registers):
    version = registers(model_folder)
    assert swept(capsys, tmp_path, examples, model_folder, "folder")[0] == 0
    assert swept(capsys, tmp_path, examples, "models:/tiny@champion")[0] == 0
    ours, folders = read_sweep(tmp_path / "out"), read_sweep(tmp_path / "folder")
    assert ours.model_digest == folders.model_digest == digest_path(model_folder)
    assert (tmp_path / "out" / "predictions.jsonl").read_bytes() == (
        tmp_path / "folder" / "predictions.jsonl"
    ).read_bytes()
    record = read_json(tmp_path / "out" / "manifest.json")["inputs"]["model"]
    assert record["path"] == "models:/tiny@champion" and record["registered_version"] == version
    # No path of this machine's cache gets into what is written down.
    assert ours.model == f"models:/tiny/{version}"
    assert str(registered_cache()) not in "".join(p.read_text() for p in (tmp_path / "out").glob("*.*[jm][sd]*"))


@pytest.mark.full
def test_only_another_model_behind_the_alias_is_measured_again(
    capsys, tmp_path, model_folder, other_folder, examples, registers
):
    registers(model_folder)
    assert swept(capsys, tmp_path, examples, "models:/tiny@champion")[0] == 0
    assert "is complete, reused" in swept(capsys, tmp_path, examples, "models:/tiny@champion")[1]
    version = registers(other_folder)
    code, shown = swept(capsys, tmp_path, examples, "models:/tiny@champion")
    assert code == 2 and "--force" in shown, "what the old champion answered was paid for"
    code, shown = swept(capsys, tmp_path, examples, "models:/tiny@champion", "out", "--force")
    assert code == 0, shown
    assert read_sweep(tmp_path / "out").model == f"models:/tiny/{version}"


def test_a_version_is_downloaded_once(tmp_path, model_folder, monkeypatch, registers):
    version = registers(model_folder)
    first = RegisteredVersion("models:/tiny@champion").fetch()
    assert source("models:/tiny@champion").cache_key() == digest_path(model_folder)
    monkeypatch.setattr(registry, "bring_model", None)
    assert RegisteredVersion(f"models:/tiny/{version}").fetch() == first
    assert with_uris(str(first / "config.json")) == f"models:/tiny/{version}/config.json"
    assert logits(posgap.load_model("models:/tiny@champion")).equal(logits(load_model(str(model_folder))))


def test_files_that_were_changed_in_the_store_are_refused(model_folder, registers):
    version = registers(model_folder)
    source = mlflow.artifacts.download_artifacts(artifact_uri=f"models:/tiny/{version}")
    stored = Path(source) / flavor.DATA / "config.json"
    changed = json.loads(stored.read_text()) | {"eos_token_id": 7}
    stored.unlink()  # it may be a link to the folder's own
    stored.write_text(json.dumps(changed))
    with refuses(Contradiction, f"models:/tiny/{version}"):
        posgap.load_model("models:/tiny@champion")


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("models:/tiny", "names no version; write models:/NAME@champion or models:/NAME/3"),
        ("models:/tiny@", "names no version"),
        ("models:/tiny/latest", "names no version"),
        ("models:/' or 1=1 --/1", "names no version"),
        ("models:/../etc/1", "names no version"),
        ("models:/tiny/7", "no such version in MLflow's registry"),
        ("models:/tiny@other", "no such version in MLflow's registry"),
        ("models:/nobody@champion", "no such version in MLflow's registry"),
    ],
)
def test_what_names_no_version_is_one_line(capsys, tmp_path, model_folder, examples, uri, complaint, registers):
    registers(model_folder)
    words = ["sweep", "--examples", examples, "--model", uri, "--out", tmp_path / "out"]
    assert f"{uri}: {complaint}" in fails(capsys, *words)
    assert not (tmp_path / "out").exists()
