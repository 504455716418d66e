"""A registered model is the folder that was swept; each way to load it gives the swept model's logits, or refuses."""

import json
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest
import torch
from examples import kv_example
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from refusals import refuses
from registered_logits import IDS, logits

import posgap
from posgap.data.reading import write_examples
from posgap.foundation.errors import BadModel, PosgapError
from posgap.foundation.files import digest_path
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.options.sweep import SweepConfig
from posgap.tasks.placements import Placement
from posgap.tracking import flavor
from posgap.tracking.answering import as_swept
from posgap.tracking.registry import DEVICE, DIGEST, DTYPE
from posgap.verbs.sweep import sweep_model

PROMPT = "<bos> find key :"


@pytest.fixture(scope="module")
def scaled_folder(model_folder, tmp_path_factory):
    """The tiny model with factors that change its logits."""
    folder = tmp_path_factory.mktemp("scaled") / "model"
    save_model(scale_model(load_model(str(model_folder)), [1.7, 1.2]), load_tokenizer(str(model_folder)), folder)
    (folder / "manifest.json").write_text('{"stage": "apply"}')
    return folder


@pytest.fixture(params=["plain", "scaled", "bfloat16"])
def folder(request, model_folder, scaled_folder, tmp_path):
    """A model's folder of each kind."""
    if request.param == "bfloat16":
        save_model(load_model(str(model_folder)).bfloat16(), load_tokenizer(str(model_folder)), tmp_path / "bfloat16")
    return {"plain": model_folder, "scaled": scaled_folder, "bfloat16": tmp_path / "bfloat16"}[request.param]


@pytest.fixture
def registered(registers):
    """Registers a folder; returns its URI in the registry."""
    return lambda folder: f"models:/tiny/{registers(folder)}"


def test_what_is_registered_is_the_folder_byte_for_byte(folder, tmp_path, registered):
    place = mlflow.artifacts.download_artifacts(artifact_uri=registered(folder), dst_path=str(tmp_path / "back"))
    stored = tmp_path / "back" / flavor.DATA
    assert digest_path(stored) == digest_path(folder)
    assert {path.name for path in stored.iterdir()} == {path.name for path in folder.iterdir()}
    requirements = (tmp_path / "back" / "requirements.txt").read_text()
    assert f"posgap=={posgap.__version__}" in requirements and place


def test_every_loader_gives_the_swept_logits_or_refuses(folder, scaled_folder, registered):
    uri, swept = registered(folder), logits(load_model(str(folder)))
    served = mlflow.pyfunc.load_model(uri)
    assert torch.equal(logits(served._model_impl.model), swept)
    assert torch.equal(logits(posgap.load_model(uri)), swept)
    if folder == scaled_folder:
        for options in ({}, {"return_type": "components"}):
            with pytest.raises(MlflowException, match="posgap.load_model"):
                mlflow.transformers.load_model(uri, **options)
        # Nor does a type of one's own get it past that.
        with pytest.raises(ValueError, match="Unrecognized model"):
            mlflow.transformers.load_model(uri, torch_dtype=torch.float32)
    else:
        parts = mlflow.transformers.load_model(uri, return_type="components")
        assert torch.equal(logits(parts["model"]), swept)
        assert parts["tokenizer"](PROMPT) == load_tokenizer(str(folder))(PROMPT)


def test_served_prompts_are_continued_as_the_model_does(folder, registered):
    uri, model, tokenizer = registered(folder), load_model(str(folder)), load_tokenizer(str(folder))
    read = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**read, max_new_tokens=5, do_sample=False, pad_token_id=0)[0, read["input_ids"].shape[1] :]
    served = mlflow.pyfunc.load_model(uri)
    answers = served.predict([PROMPT, PROMPT], params={"max_new_tokens": 5})
    assert answers == [tokenizer.decode(written, skip_special_tokens=True)] * 2
    # What MLflow shows as an example can be asked.
    assert len(served.predict(served.input_example, params={"max_new_tokens": 2})) == len(served.input_example) == 1


def test_a_version_answers_through_mlflow_what_was_scored(model_folder, tmp_path):
    """With another template than the model's own, a system message and a stop string."""
    template = "{% for m in messages %}{{ m.content }} {% endfor %}find"
    examples = [kv_example(i) for i in range(3)]
    write_examples(tmp_path / "e.jsonl", examples)
    how = {"template": template, "system": "question", "stop": ["7"], "max_new_tokens": 5}
    asked = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 3, "max_unanswered": 100}
    config = SweepConfig(**asked, **how, out=tmp_path / "swept")
    swept = sweep_model(config)
    with mlflow.start_run():
        kept = {"flavor": flavor, "flavor_name": flavor.NAME, "folder": model_folder}
        logged = Model.log(None, name="asked", asked=as_swept(read_sweep(swept)), **kept)
        bare = Model.log(None, name="bare", **kept)
    builder = config.builder()
    rows = read_predictions(swept)
    texts = [builder.text(examples[i // 3], Placement((1 + i % 3,), 3)) for i in range(9)]
    version, unknown = (mlflow.pyfunc.load_model(each.model_uri) for each in (logged, bare))
    answers = version.predict(texts)
    assert answers == [row["response"] for row in rows] and any(answers)
    raw = version.predict(texts, params={"raw": True})
    assert raw == unknown.predict(texts, params={"max_new_tokens": 5}) != answers


@pytest.mark.usefixtures("mlflow_store")
def test_a_version_answers_in_the_precision_in_which_it_was_swept(model_folder, tmp_path):
    """Whatever the stored weights are in, and whichever way it is loaded."""
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(3)])
    asked = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 3, "max_unanswered": 100}
    swept = read_sweep(sweep_model(SweepConfig(**asked, dtype="bfloat16", out=tmp_path / "swept")))
    assert swept.asked.dtype == "bfloat16" and load_model(str(model_folder)).dtype == torch.float32
    with mlflow.start_run():
        kept = {"flavor": flavor, "flavor_name": flavor.NAME, "folder": model_folder}
        logged = Model.log(None, name="asked", asked=as_swept(swept), **kept)
    exact = logits(load_model(str(model_folder), "bfloat16"))
    version = mlflow.register_model(
        logged.model_uri, "tiny", tags={DIGEST: digest_path(model_folder), DTYPE: "bfloat16"}
    )
    uri = f"models:/tiny/{version.version}"
    served = mlflow.pyfunc.load_model(uri)._model_impl.model
    pipeline = mlflow.transformers.load_model(uri, return_type="components")["model"]
    for model in (served, posgap.load_model(uri), pipeline):
        assert model.dtype == torch.bfloat16 and torch.equal(logits(model), exact)
    assert posgap.load_model(uri, "float32").dtype == torch.float32


@pytest.mark.usefixtures("mlflow_store")
def test_loaders_say_where_a_version_was_swept_on_another_class_of_device(model_folder, tmp_path, caplog):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(3)])
    asked = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 3, "max_unanswered": 100}
    swept = read_sweep(sweep_model(SweepConfig(**asked, out=tmp_path / "swept")))
    here = "cuda" if torch.cuda.is_available() else "cpu"
    assert swept.asked.device == here
    for device in (here, "elsewhere"):
        said = {**as_swept(swept), "device": device}
        with mlflow.start_run():
            logged = Model.log(
                None, name="asked", asked=said, flavor=flavor, flavor_name=flavor.NAME, folder=model_folder
            )
        tags = {DIGEST: digest_path(model_folder), DEVICE: device}
        version = mlflow.register_model(logged.model_uri, device, tags=tags)
        for load in (mlflow.pyfunc.load_model, posgap.load_model):
            caplog.clear()
            load(f"models:/{device}/{version.version}")
            told = [line for line in caplog.messages if f"was swept on {device} and answers on {here} here" in line]
            assert len(told) == (device != here)


def test_weights_are_linked_and_not_loaded(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("posgap.models.loading.load_as_trained", None)
    model = Model()
    flavor.save_model(str(tmp_path / "logged"), model, model_folder)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "logged" / flavor.DATA / name).stat().st_ino == (model_folder / name).stat().st_ino
    assert model.flavors["posgap"]["scaled"] is False


@pytest.mark.full
def test_mlflow_models_serve_answers_scaled(scaled_folder, tmp_path, registered):
    """The scoring server's own command, which reads a request from a file."""
    uri = registered(scaled_folder)
    (tmp_path / "asked.json").write_text(f'{{"inputs": ["{PROMPT}"], "params": {{"max_new_tokens": 3}}}}')
    words = ["-m", "mlflow", "models", "predict", "-m", uri, "--env-manager", "local", "-i", tmp_path / "asked.json"]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=True)
    expected = mlflow.pyfunc.load_model(uri).predict([PROMPT], params={"max_new_tokens": 3})
    assert json.loads(done.stdout)["predictions"] == expected


def test_what_posgap_did_not_register_is_named_in_one_line(model_folder, registered):
    with pytest.raises(PosgapError, match=r"tiny"):
        posgap.load_model("models:/tiny@champion")
    mlflow.MlflowClient().create_registered_model("tiny")
    with pytest.raises(PosgapError, match=r"(?i)champion"):
        posgap.load_model("models:/tiny@champion")
    with mlflow.start_run():
        mlflow.log_dict({"a": 1}, "other/config.txt")
        uri = mlflow.get_artifact_uri("other")
    version = mlflow.MlflowClient().create_model_version("tiny", source=uri).version
    with refuses(PosgapError, f"models:/tiny/{version}"):
        posgap.load_model(f"models:/tiny/{version}")


def test_an_adapter_is_a_model_once_it_is_merged(model_folder, tmp_path, registered):
    """transformers itself would load the unmerged one with whatever base its config names."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = peft.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    adapted = peft.get_peft_model(load_model(str(model_folder)), options)
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        trained = adapted(IDS).logits
    save_model(adapted.merge_and_unload(), load_tokenizer(str(model_folder)), tmp_path / "merged")
    assert torch.allclose(logits(posgap.load_model(registered(tmp_path / "merged"))), trained, atol=1e-4)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "adapter" / name).write_bytes((model_folder / name).read_bytes())
    for load in (load_model, load_tokenizer, lambda folder: registered(Path(folder))):
        with refuses(BadModel, "adapter", "peft"):
            load(str(tmp_path / "adapter"))
