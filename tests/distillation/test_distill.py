"""The stage `distill`: methods, what is shared between runs, what is left when it fails."""

import gc
import json
import logging
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest
import torch
from builders import prompt_builder
from by_definition import weights
from examples import kv_example

from posgap.data.reading import read_examples
from posgap.distillation import export, processes
from posgap.distillation.engine import TrainStep
from posgap.distillation.movement import default_learning_rate
from posgap.distillation.teacher_states import TeacherStates
from posgap.distillation.temperature import TEMPERATURES
from posgap.foundation.errors import BadOption, NoRoom, PosgapError, Rejection
from posgap.foundation.files import read_json, read_jsonl, write_json
from posgap.mitigations.in_force import load_model
from posgap.models import memory, rounding
from posgap.models.loading import load_config, load_tokenizer, save_model
from posgap.tasks.content import content_key
from posgap.tasks.placements import Placement
from posgap.tasks.responses import describe_poor_teacher
from posgap.verbs import distill as distilling
from posgap.verbs.distill import distill

R1_FIGURES = {"activation_kl", "anchoring_kl", "effective_rows", "alignment_sum", "teacher_temperature"}


@pytest.mark.parametrize(
    "method, figures",
    [("r1", R1_FIGURES), *((m, {"cross_entropy"}) for m in ("r2", "sft", "seqkd"))],
)
def test_every_method_trains_and_leaves_a_model_that_loads(method, figures, config, model_folder):
    out = distill(config.model_copy(update={"method": method, "epochs": 3}))
    history = [row for _, row in read_jsonl(out / "history.jsonl")]
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert figures == history[0].keys() - {"step", "loss", "grad_norm", "learning_rate"}
    load_tokenizer(str(out))
    trained, base = load_model(str(out)).state_dict(), load_model(str(model_folder)).state_dict()
    assert trained.keys() == base.keys()
    assert any(not torch.equal(trained[name], base[name]) for name in base)
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".")]


def test_the_teacher_s_temperature_is_chosen_given_and_recorded(config, tmp_path):
    """The tiny model knows nothing, so it is given the lowest; what it learns then differs from what it says."""
    firsts = {}
    for told in (0.0, 1.0, 2.0):
        out = distill(config.model_copy(update={"teacher_temperature": told, "epochs": 1, "out": tmp_path / str(told)}))
        history = [row for _, row in read_jsonl(out / "history.jsonl")]
        assert "teacher_temperature" not in history[1]
        firsts[told] = history[0]
    assert [first["teacher_temperature"] for first in firsts.values()] == [TEMPERATURES[-1], 1, 2]
    assert firsts[1.0]["anchoring_kl"] < 1e-6 < 1e-3 < firsts[2.0]["anchoring_kl"] < firsts[0.0]["anchoring_kl"]


def test_without_an_anchor_the_teacher_s_place_is_drawn(config):
    """Of five placements all five are drawn, where beside an anchor only four could be."""
    told = config.model_copy(update={"k": 5, "anchoring": 0.0})
    pairs, _ = distilling._read_data(told)
    steps, _ = distilling._plan(told, pairs)
    assert {row.positions for step in steps for row in step} == {(1,), (2,), (3,), (4,), (5,)}
    with pytest.raises(BadOption, match="k=5: .* 4 "):
        distilling._plan(told.model_copy(update={"anchoring": 1.0}), pairs)


def test_a_limit_learns_the_first_responses(config):
    out = distill(config.model_copy(update={"limit": 2, "epochs": 1, "method": "seqkd"}))
    learnt = read_json(out / "training_examples.json")
    assert learnt == sorted(content_key(kv_example(i)) for i in range(2))


def test_prompts_beyond_what_a_rope_begins_with_are_refused_before_anything_is_read(config, tmp_path, monkeypatch):
    """The prompts have 26 tokens, and the responses two."""

    def bounded(longest: int) -> str:
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        rope |= {"original_max_position_embeddings": longest}
        folder = shutil.copytree(config.model, tmp_path / f"{longest}")
        write_json(folder / "config.json", read_json(folder / "config.json") | {"rope_parameters": rope})
        return str(folder)

    assert len(prompt_builder("kv", config.model, 4)(kv_example(0), Placement((1,), 5))) == 26
    assert distill(config.model_copy(update={"model": bounded(60), "out": tmp_path / "short", "epochs": 1})).exists()
    monkeypatch.setattr(distilling, "load_model", None)
    with pytest.raises(PosgapError, match=r"27: .*RoPE \(longrope\) .* 27 tokens: "):
        distill(config.model_copy(update={"model": bounded(27), "out": tmp_path / "long"}))


@pytest.mark.parametrize(("update", "bytes_each"), [({}, 4), ({"export_dtype": "bfloat16"}, 2)])
def test_a_model_that_the_disk_has_no_room_for_is_not_trained(update, bytes_each, config, model_folder, monkeypatch):
    n = load_model(str(model_folder)).num_parameters()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=n * bytes_each - 1))
    monkeypatch.setattr(distilling, "train", None)
    with pytest.raises(NoRoom, match="--out"):
        distill(config.model_copy(update=update))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=n * bytes_each))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # as far as training
        distill(config.model_copy(update=update))


@pytest.mark.parametrize(
    ("update", "bytes_each", "instead"),
    [
        # AdamW's two means, beside a checkpoint that is written, or else gradients
        ({}, 8 + 20, "--lora-rank 16.*--save-steps 0"),
        ({"save_steps": 0}, 8 + 4, "--lora-rank 16(?!.*--save-steps)"),
    ],
)
def test_what_memory_has_no_room_for_is_not_trained(update, bytes_each, instead, config, model_folder, monkeypatch):
    """Qwen2.5-0.5B in float32 was killed at its first checkpoint, after five minutes."""
    n = load_model(str(model_folder)).num_parameters()
    monkeypatch.setattr(memory, "available_bytes", lambda: n * bytes_each - 1)
    monkeypatch.setattr(distilling, "train", None)
    with pytest.raises(NoRoom, match=instead):
        distill(config.model_copy(update=update))
    monkeypatch.setattr(memory, "available_bytes", lambda: n * bytes_each)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # as far as training
        distill(config.model_copy(update=update))


def test_adapters_take_memory_for_what_they_train_alone(config, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 28 * 1e4)
    monkeypatch.setattr(distilling, "train", None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        distill(config.model_copy(update={"lora_rank": 1}))


@pytest.mark.full
@pytest.mark.parametrize("method", ["sft", "seqkd"])
def test_sft_learns_the_gold_answers_and_seqkd_the_responses(method, config):
    out = distill(config.model_copy(update={"method": method, "epochs": 30, "learning_rate": 5e-3}))
    model, builder = load_model(str(out)), prompt_builder("kv", str(out), 4)
    said = []
    for example in read_examples(config.examples):
        prompt = torch.tensor([builder(example, Placement((2,), 5))])
        said.append(model(prompt).logits[0, -1].argmax().item())
    gold = [25 + int(example.value, 16) for example in read_examples(config.examples)]
    assert said == (gold if method == "sft" else [25] * len(gold))  # every response says 0


def test_runs_that_share_a_work_folder_read_the_teacher_once(config, tmp_path, monkeypatch):
    read, add = [], TeacherStates.store

    def counted(self, states, keys):
        read.append((len(states), len(keys)))
        add(self, states, keys)

    monkeypatch.setattr(TeacherStates, "store", counted)
    work = tmp_path / "work"
    for name, alignment in (("a", "none"), ("b", "paper")):
        distill(config.model_copy(update={"out": tmp_path / name, "alignment": alignment, "work": work}))
    assert read == [(6, 6)]
    (kept,) = work.iterdir()  # no checkpoints of runs that are done
    assert kept.name.startswith("teacher-")


def test_precision_may_change_from_run_to_run(config, tmp_path):
    """In bfloat16 arithmetic the student begins as the teacher too, and its folder keeps the base's dtype."""
    for dtype in ("float32", "bfloat16", "float32"):
        told = {"dtype": dtype, "out": tmp_path / dtype, "force": True, "teacher_temperature": 1.0}
        out = distill(config.model_copy(update=told))
        first = next(row for _, row in read_jsonl(out / "history.jsonl"))
        assert first["anchoring_kl"] < 1e-6
        assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}


def test_the_teacher_of_another_model_is_not_taken(config, tmp_path):
    work = tmp_path / "work"
    once = distill(config.model_copy(update={"work": work, "anchoring": 0.0, "out": tmp_path / "a"}))
    distill(config.model_copy(update={"work": work, "anchoring": 0.0, "out": tmp_path / "b", "model": str(once)}))
    assert len(list(work.glob("teacher-*"))) == 2
    old, new = sorted(work.glob("teacher-*"), key=lambda p: p.stat().st_mtime)
    for shard in new.iterdir():
        shard.unlink()
    (shard,) = old.iterdir()
    shard.rename(new / shard.name)
    with pytest.raises(PosgapError, match=f"^{new / shard.name}: .* model; "):
        distill(config.model_copy(update={"work": work, "anchoring": 0.0, "out": tmp_path / "c", "model": str(once)}))


def test_a_loss_that_is_not_finite_leaves_the_names_of_the_prompts(config, tmp_path):
    with pytest.raises(Rejection, match=r"step \d: .*( \d+ of 12 prompts|gradient) .*non_finite.json"):
        distill(config.model_copy(update={"learning_rate": 1e30, "epochs": 20}))
    report = read_json(tmp_path / "out.rejected" / "non_finite.json")
    assert report["step"] > 1
    assert {p["id"] for p in report["prompts"]} <= {f"kv-{i}" for i in range(6)}
    assert report["prompts"][0].keys() == {"id", "placement", "loss"}
    assert not config.out.exists()


# The export


@pytest.fixture
def small_steps(config, tmp_path):
    """On a model in bfloat16, at the paper's learning rate."""
    folder = tmp_path / "bfloat16"
    save_model(load_model(config.model, "bfloat16"), load_tokenizer(config.model), folder)
    return config.model_copy(update={"model": str(folder), "learning_rate": 3e-6, "epochs": 3})


@pytest.mark.usefixtures("mlflow_store")
def test_small_steps_reach_the_file_of_a_model_in_bfloat16(small_steps):
    out = distill(small_steps)
    about = read_json(out / "export.json")
    assert about["dtype"] == "bfloat16" and about["rounding"] == "stochastic"
    assert about["kept_update"] == pytest.approx(1, abs=0.1) and 0 < about["kept_numbers"] < 0.5
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.bfloat16}
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.metrics["kept_update"] == about["kept_update"]
    again = distill(small_steps.model_copy(update={"out": out.with_name("again")}))
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_an_export_that_loses_the_training_is_refused_and_another_one_costs_no_step(small_steps, monkeypatch):
    line = r"^export: .* bfloat16, .* \d\.\d % .* 90 %; .*--export-dtype float32: (?!.*--save-steps)"
    with monkeypatch.context() as within:
        within.setattr(rounding, "round_stochastically", lambda values, dtype, seed, name: values.to(dtype))
        with pytest.raises(PosgapError, match=line):
            distill(small_steps)
    assert not small_steps.out.exists()
    monkeypatch.setattr(TrainStep, "run", None)  # no step is called any more
    out = distill(small_steps.model_copy(update={"export_dtype": "float32"}))
    about = read_json(out / "export.json")
    assert about["kept_update"] == about["kept_numbers"] == 1 and about["logits_difference"] < 1e-4
    trained, base = weights(out), weights(Path(small_steps.model))
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}
    assert load_config(str(out)).dtype == torch.float32 and trained.keys() == base.keys()
    steps = len(list(read_jsonl(out / "history.jsonl")))
    assert steps == 6 and max((trained[name] - base[name].float()).abs().max() for name in base) <= 3e-6 * steps
    assert not list(out.parent.glob(".posgap-*"))


def test_rounding_that_changes_much_is_said_but_is_no_fault(small_steps, monkeypatch, caplog):
    monkeypatch.setitem(export.TOLERANCE, torch.bfloat16, 0.0)
    out = distill(small_steps)
    assert weights(out) and "export: rounding to bfloat16 changes the logits by" in caplog.text


def test_without_checkpoints_the_line_says_that_training_is_done_again(small_steps, monkeypatch):
    monkeypatch.setattr(rounding, "round_stochastically", lambda values, dtype, seed, name: values.to(dtype))
    with pytest.raises(PosgapError, match=r"^export: .*\(--save-steps 0\)"):
        distill(small_steps.model_copy(update={"save_steps": 0}))


def test_what_a_precision_cannot_hold_is_refused(config, tmp_path):
    model = load_model(config.model)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = 1e6
    save_model(model, load_tokenizer(config.model), tmp_path / "large")
    with pytest.raises(PosgapError, match="float16 .* model.layers.0.mlp.down_proj.weight; .*--export-dtype"):
        distill(config.model_copy(update={"model": str(tmp_path / "large"), "export_dtype": "float16"}))


def _scaled_wrongly(model, tokenizer, out, state):
    save_model(model, tokenizer, out, state | {"model.norm.weight": state["model.norm.weight"] * 1.01})


def _other_rope(model, tokenizer, out, state):
    model.config.rope_parameters["rope_theta"] *= 10
    save_model(model, tokenizer, out, state)


@pytest.mark.parametrize(
    ("writes", "line"),
    [
        (_scaled_wrongly, "^export: model.norm.weight "),
        (_other_rope, r"^export: .* logits .*\d"),
    ],
)
def test_a_folder_that_is_not_the_trained_model_is_not_put_in_place(writes, line, config, monkeypatch):
    monkeypatch.setattr(export, "save_model", writes)
    with pytest.raises(PosgapError, match=line):
        distill(config)
    assert not config.out.exists()


def test_adapters_are_merged_into_a_plain_model_folder(config, model_folder):
    out = distill(config.model_copy(update={"lora_rank": 4, "learning_rate": 1e-2}))
    assert weights(out).keys() == weights(model_folder).keys()
    moved = {name for name, tensor in weights(out).items() if not torch.equal(tensor, weights(model_folder)[name])}
    assert moved == {name for name in moved if name.endswith("_proj.weight")} != set()


@pytest.mark.parametrize(
    "update, message",
    [
        ({"k": 5}, "k=5: .* 4 "),
        ({"k": 0, "anchoring": 0.0}, "k=0 .* r1 .*k >= 1"),
        ({"deepspeed": "zero4"}, "deepspeed: 'zero4' .*zero2, zero3 "),
    ],
)
def test_bad_input(update, message, config):
    with pytest.raises(BadOption, match=message):
        distill(config.model_copy(update=update))


@pytest.mark.parametrize(
    ("mixed", "deepspeed", "stored", "is_said"),
    [(True, True, "float32", True), (True, True, "bfloat16", False), (True, False, "float32", False)],
)
def test_that_deepspeed_begins_with_rounded_weights_is_said(mixed, deepspeed, stored, is_said, config, tmp_path):
    folder = tmp_path / stored
    save_model(load_model(config.model, stored), load_tokenizer(config.model), folder)
    line = distilling._rounding_warning(str(folder), mixed, deepspeed)
    assert bool(line) == is_said and ("give --dtype float32" in line) == is_said


def test_a_rate_that_can_hardly_move_the_model_is_told_before_training(config, caplog):
    distill(config.model_copy(update={"epochs": 1, "learning_rate": 1e-7, "method": "seqkd"}))
    (line,) = [line for line in caplog.messages if line.startswith("2 updates move a weight by at most 1.5e-07")]
    assert "these updates are too small for weights in bfloat16" in line
    caplog.clear()
    distill(config.model_copy(update={"epochs": 1, "learning_rate": 0.1, "out": config.out.with_name("quick")}))
    assert not any("move a weight" in line for line in caplog.messages)


def test_many_updates_that_cannot_move_the_model_end_before_training(config):
    small = {"epochs": 40, "batch_size": 12, "learning_rate": 1e-7}
    with pytest.raises(BadOption, match=r"--learning-rate 1e-07 .* \d+ updates .* 0\.\d+, "):
        distill(config.model_copy(update=small))


def test_the_rate_follows_the_model_and_is_said(config, caplog):
    caplog.set_level(logging.INFO)
    distill(config.model_copy(update={"epochs": 1, "learning_rate": 0.0}))
    (line,) = [line for line in caplog.messages if line.startswith("learning rate ")]
    rate, parameters = line.split(",")[0].split()[-1], load_model(config.model, "float32").num_parameters()
    assert float(rate) == default_learning_rate(parameters) and f"{parameters:,} parameters" in line


def test_a_teacher_that_is_often_wrong_or_cut_is_told(tmp_path):
    file, outcomes = tmp_path / "teacher.json", {"answered": 100, "cut": 20}
    file.write_text(json.dumps({"accuracy": 38.5, "outcomes": outcomes}))
    line = describe_poor_teacher(tmp_path)
    assert "right in 38 %" in line and "20 % of its answers are cut" in line and "--method seqkd" in line
    file.write_text(json.dumps({"outcomes": outcomes}))
    assert "20 % of its answers are cut" in describe_poor_teacher(tmp_path)
    file.write_text(json.dumps({"accuracy": 99.0, "outcomes": {"answered": 100, "cut": 0}}))
    assert describe_poor_teacher(tmp_path) == "" == describe_poor_teacher(tmp_path / "none")


def test_what_training_keeps_is_let_go_of_before_the_model_is_written(config, monkeypatch):
    """Else writing would set the peak of memory: Adam's means, or three models at once."""
    made, loaded, seen = [], [], []
    accelerator, load = processes.accelerator, export.load_model
    monkeypatch.setattr(processes, "accelerator", lambda *how: made.append(accelerator(*how)) or made[-1])

    def load_model(*how):
        if not loaded:
            seen.extend(bool(optimizer.state) for optimizer in made[-1]._optimizers)
        else:
            gc.collect()
            seen.append([is_there() is not None for is_there in loaded])
        model = load(*how)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(export, "load_model", load_model)
    distill(config.model_copy(update={"epochs": 1, "method": "seqkd"}))
    assert seen == [False, [True], [False, False]]  # the base beside the trained model, and then what was written alone
