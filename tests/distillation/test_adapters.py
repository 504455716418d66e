"""Adapters of peft as models: merged into their base, wherever a stage takes a model."""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from examples import kv_example
from s3 import put
from safetensors.torch import load_file

import posgap
from posgap.distillation import adapter_merging, adapters
from posgap.distillation.config import DistillConfig, TeacherConfig
from posgap.distillation.engine import TrainStep
from posgap.distillation.methods import method_of
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, read_json, read_jsonl, write_jsonl
from posgap.gating.config import VerifyConfig
from posgap.gating.replay import verify
from posgap.measurement.config import SweepConfig
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.stages.distill import distill
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.storage.cache import lock_mark
from posgap.storage.inputs import read_manifest, source
from posgap.tasks.content import content_key
from posgap.tasks.reading import write_examples

peft = pytest.importorskip("peft")
IDS = torch.arange(12)[None]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def base(tmp_path, model_folder):
    return shutil.copytree(model_folder, tmp_path / "base")


@pytest.fixture
def adapter(tmp_path, base):
    """An adapter of random weights, which changes what its base answers."""
    torch.manual_seed(0)
    options = peft.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    peft.get_peft_model(load_model(str(base)), options).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@torch.no_grad()
def logits(model):
    return model(IDS).logits


def test_an_adapter_is_read_as_peft_runs_it_and_its_digest_covers_adapter_and_base(adapter, base):
    own = logits(load_model(str(base)))
    adapted = logits(peft.PeftModel.from_pretrained(load_model(str(base)), adapter))
    torch.testing.assert_close(logits(posgap.load_model(str(adapter))), adapted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(own, adapted, atol=1e-2)
    first = source(str(adapter))
    assert first.digest() == digest_path(first.fetch()) == source(adapter).digest()
    about = json.loads((base / "generation_config.json").read_text())
    (base / "generation_config.json").write_text(json.dumps(about | {"do_sample": True, "top_k": 7}))
    second = source(str(adapter))
    assert second.fetch() != first.fetch() and second.digest() != first.digest()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "peft cannot merge adapters of type"),
        # The demo's model has one matrix for both ends, and the adapter changes one of them.
        (
            peft.LoraConfig(r=2, target_modules=["embed_tokens"], init_lora_weights=False),
            "it computes something else, as with tied embeddings",
        ),
    ],
)
def test_an_adapter_that_merged_would_be_another_model_is_refused(base, tmp_path, options, complaint):
    peft.get_peft_model(load_model(str(base)), options).save_pretrained(tmp_path / "adapter")
    with pytest.raises(PosgapError, match=complaint):
        posgap.load_model(str(tmp_path / "adapter"))


def test_an_adapter_is_trained_on_and_what_comes_of_it_is_a_whole_model(adapter, tmp_path):
    examples = tmp_path / "e.jsonl"
    write_examples(examples, [kv_example(i) for i in range(4)])
    shared = {"model": str(adapter), "examples": examples}
    asked = shared | {"n_docs": 4, "advantageous": "1", "max_new_tokens": 2, "keep_incorrect": True}
    responses = teacher(TeacherConfig(**asked, out=tmp_path / "responses"))
    # One step at a rate of nearly nothing: the student is the adapter's model, not its base.
    trained = distill(
        DistillConfig(**shared, responses=responses, learning_rate=1e-9, epochs=1, k=1, out=tmp_path / "trained")
    )
    assert (trained / "model.safetensors").is_file() and not (trained / "adapter_config.json").exists()
    # The first token is the padding, whose embedding of zeros any change makes another direction.
    ours, adapted = (logits(posgap.load_model(str(folder)))[:, 1:] for folder in (trained, adapter))
    torch.testing.assert_close(ours, adapted, rtol=1e-3, atol=1e-3)


def test_an_adapter_is_swept(adapter, tmp_path):
    write_examples(tmp_path / "kv.jsonl", [kv_example(i) for i in range(2)])
    shared = {"task": "kv", "examples": tmp_path / "kv.jsonl", "n_docs": 3, "max_new_tokens": 2}
    out = sweep(SweepConfig(model=str(adapter), label="adapter", out=tmp_path / "swept", max_unanswered=100, **shared))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"]["model"]["sha256"] == source(adapter).digest()


def test_an_adapter_in_s3_is_the_same_model_and_so_is_one_whose_base_is_there(adapter, base, bucket):
    here = source(str(adapter))
    for folder, name in ((adapter, "lora"), (base, "base")):
        for file in folder.iterdir():
            put(f"{bucket}/{name}/{file.name}", file.read_bytes())
    there = source(f"{bucket}/lora")
    assert there.digest() == here.digest() and there.location == f"{bucket}/lora" and there.version()["etag"]
    _change(adapter, base_model_name_or_path=f"{bucket}/base")
    # The weights are the same; the base is known by another name.
    torch.testing.assert_close(*(logits(posgap.load_model(str(place))) for place in (adapter, f"{bucket}/lora")))
    put(f"{bucket}/lora/.incomplete", b"")
    with pytest.raises(PosgapError, match="incomplete: its upload is under way"):
        source(f"{bucket}/lora").digest()


def test_a_merge_that_is_killed_leaves_nothing_for_good(adapter, tmp_path, monkeypatch):
    def killed(base, adapter, out):
        out.mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(adapter_merging, "merge_adapter", killed)
    child = multiprocessing.get_context("fork").Process(target=source(adapter).fetch)
    child.start()
    child.join()
    monkeypatch.undo()
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    (left,) = (tmp_path / "cache" / "incoming").iterdir()
    assert child.exitcode == -9 and (left / "model").is_dir()
    (adapter / "README.md").write_text("of other content, and so at another place")
    busy = tmp_path / "cache" / "incoming" / "of-another"
    busy.mkdir()
    with lock_mark("of-another"):
        assert source(adapter).fetch().is_dir()
        assert [*busy.parent.iterdir()] == [busy]  # whose process is alive


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda folder: (folder / "adapter_model.safetensors").unlink(),
            "adapter without adapter_model.safetensors",
        ),
        (lambda folder: _change(folder, base_model_name_or_path=None), "adapter_config.json: names no base model"),
        (lambda folder: _change(folder, base_model_name_or_path="../no such"), "its base model: ../no such"),
        (lambda folder: _change(folder, r=3), "cannot be merged into"),
        (lambda folder: _change(folder, target_modules=["q_proj"]), "does not fit its base"),
        (lambda folder: _change(folder, peft_type="NONSENSE"), "cannot be merged into"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_in_a_line(adapter, spoil, complaint):
    spoil(adapter)
    with pytest.raises(PosgapError, match=complaint) as refused:
        posgap.load_model(str(adapter))
    assert "\n" not in str(refused.value)
    assert not list(adapter.parent.glob("cache/merged/*/*"))


def _change(folder, **fields):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def learnt(tmp_path, base):
    """A config that trains adapters with which the model answers otherwise."""
    examples = [kv_example(i) for i in range(6)]
    write_examples(tmp_path / "e.jsonl", examples)
    said = {"placement": [1], "n_docs": 5, "response": "0", "token_ids": [25, 2], "correct": True}
    write_jsonl(tmp_path / "r.jsonl", [{"id": e.id, "content": content_key(e), **said} for e in examples])
    return DistillConfig(
        examples=tmp_path / "e.jsonl", responses=tmp_path / "r.jsonl", model=str(base), method="seqkd",
        k=3, batch_size=9, lora_rank=2, learning_rate=1e-2, out=tmp_path / "merged",
    )  # fmt: skip


def alone(config: DistillConfig, **more) -> DistillConfig:
    """The same run, written as an adapter."""
    return config.model_copy(update={"lora_export": "adapter", "out": config.out.with_name("alone"), **more})


def test_an_adapter_that_was_trained_answers_as_the_merged_model_does(learnt, base, tmp_path):
    merged, adapter = distill(learnt), distill(alone(learnt))
    files = {path.name for path in adapter.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files and "model.safetensors" not in files
    about = read_json(adapter / "adapter_config.json")
    assert about["base_model_name_or_path"] == learnt.model and about["inference_mode"]
    # peft itself reads it.
    apart = peft.PeftModel.from_pretrained(load_model(learnt.model), adapter)
    torch.testing.assert_close(logits(apart), logits(load_model(str(merged))), rtol=1e-4, atol=1e-4)
    whole = Path(source(adapter).fetch())
    assert (whole / "model.safetensors").read_bytes() == (merged / "model.safetensors").read_bytes()
    assert read_json(adapter / "export.json") == read_json(merged / "export.json")
    assert read_json(whole / "training_examples.json") == read_json(merged / "training_examples.json")
    asked = {"examples": tmp_path / "e.jsonl", "n_docs": 5, "max_new_tokens": 3, "max_unanswered": 100}
    swept = [
        sweep(SweepConfig(model=str(model), label="m", out=tmp_path / f"swept-{model.name}", **asked))
        for model in (merged, adapter, Path(learnt.model))
    ]
    # How it came to be is known of both.
    assert method_of(whole) == method_of(merged) == "seqkd"
    verify(VerifyConfig(folders=swept))
    ancestors = [set(read_manifest(out)["ancestors"]) for out in swept[:2]]
    assert {digest_path(base), digest_path(tmp_path / "e.jsonl"), digest_path(tmp_path / "r.jsonl")} <= ancestors[
        0
    ] & ancestors[1]
    responses = [[row["response"] for _, row in read_jsonl(out / "predictions.jsonl")] for out in swept]
    assert responses[0] == responses[1] != responses[2]


def test_small_changes_to_a_model_in_bfloat16_outlive_the_merge(learnt, base, tmp_path):
    """Of steps of 3e-6 rounding to the nearest number would leave little."""
    save_model(load_model(str(base), "bfloat16"), load_tokenizer(str(base)), tmp_path / "bfloat16")
    config = learnt.model_copy(update={"model": str(tmp_path / "bfloat16"), "learning_rate": 3e-6})
    merged, adapter = distill(config), distill(alone(config))
    of_export, of_merge = read_json(adapter / "export.json"), read_json(Path(source(adapter).fetch()) / adapters.RECORD)
    assert of_export["rounding"] == of_merge["rounding"] == "stochastic"
    assert of_export["kept_update"] == of_merge["kept_update"] == pytest.approx(1, abs=0.1)
    posgap.load_model(str(adapter))
    assert {t.dtype for t in load_file(Path(source(adapter).fetch()) / "model.safetensors").values()} == {
        torch.bfloat16
    }
    assert (Path(source(adapter).fetch()) / "model.safetensors").read_bytes() == (
        merged / "model.safetensors"
    ).read_bytes()


def test_another_export_of_the_same_run_trains_nothing_again(learnt, tmp_path, monkeypatch):
    work = {"work": tmp_path / "work", "save_steps": 1}
    with monkeypatch.context() as patched:
        patched.setattr("posgap.stages.distill.export", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            distill(learnt.model_copy(update=work))
    monkeypatch.setattr(TrainStep, "run", None)  # no step is called any more
    assert (distill(alone(learnt, **work)) / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"lora_rank": 0}, "`lora_export` adapter: all parameters are trained; give a `lora_rank`"),
        ({"export_dtype": "float32"}, "`export_dtype` is of whole models; leave it out"),
    ],
)
def test_options_that_contradict_an_adapter_are_refused(learnt, more, complaint):
    with pytest.raises(ValueError, match=complaint):
        DistillConfig(**{**alone(learnt).model_dump(), **more})


@pytest.mark.full
def test_an_adapter_of_a_model_that_it_cannot_name_is_refused_before_training(learnt, adapter, registers, monkeypatch):
    monkeypatch.setattr(TrainStep, "run", None)
    for model, what in (
        (str(adapter), "the model is an adapter itself"),
        (f"models:/tiny/{registers(Path(learnt.model))}", "models:/tiny/1 is in the registry"),
    ):
        with pytest.raises(PosgapError, match=f"lora_export: {what}, which no adapter can name"):
            distill(alone(learnt, model=model))


def test_an_adapter_of_a_model_in_s3_names_it_there(learnt, base, bucket):
    for file in base.iterdir():
        put(f"{bucket}/base/{file.name}", file.read_bytes())
    trained = distill(alone(learnt, model=f"{bucket}/base", epochs=1))
    assert read_json(trained / "adapter_config.json")["base_model_name_or_path"] == f"{bucket}/base"
    posgap.load_model(str(trained))
