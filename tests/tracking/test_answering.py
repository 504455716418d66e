"""A version that the registry gives back answers what the sweep recorded; what does not is told from it."""

import logging
import shutil
from contextlib import nullcontext

import pytest
from examples import kv_example

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, read_jsonl, write_json, write_jsonl
from posgap.measurement.config import MergeConfig, SweepConfig
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models import memory
from posgap.models.loading import load_tokenizer, save_model
from posgap.models.memory import available_bytes, needed_bytes
from posgap.stages.merge import merge
from posgap.stages.sweep import sweep
from posgap.tasks.reading import write_examples
from posgap.tracking import answering
from posgap.tracking.answering import as_swept, require_answers, require_kept_alike


@pytest.fixture
def examples(tmp_path):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(6)])
    return tmp_path / "e.jsonl"


@pytest.fixture
def swept(tmp_path, model_folder, examples):
    return sweep(SweepConfig(examples=examples, model=str(model_folder), n_docs=4, limit=5, out=tmp_path / "swept"))


def test_the_swept_model_answers_as_recorded(caplog, swept, model_folder, examples):
    caplog.set_level(logging.INFO, "posgap")
    require_answers(model_folder, swept, swept_examples(swept), 4)
    require_answers(model_folder, swept, swept_examples(swept, examples), 7)
    said = [record.getMessage() for record in caplog.records]
    assert said[-2:] == [f"{n} of {n} responses are as the sweep recorded" for n in (4, 7)]


def test_another_model_does_not(tmp_path, swept, model_folder):
    other = load_model(str(model_folder))
    for weight in other.parameters():
        weight.data.neg_()
    save_model(other, load_tokenizer(str(model_folder)), tmp_path / "other")
    with pytest.raises(PosgapError, match=r"^only [012] of 6 responses are as its sweep recorded: to kv-\d it"):
        require_answers(tmp_path / "other", swept, swept_examples(swept), 6)


def test_a_version_is_served_as_this_sweep_asked_and_not_as_another_one_did(tmp_path, swept):
    """A model is registered once, with how the sweep of then asked."""
    asked, now = as_swept(read_sweep(swept)), read_sweep(swept)
    model = tmp_path / "data" / "model"
    require_kept_alike(model, now)  # of an older version nothing is known
    write_json(tmp_path / "data" / "asked.json", asked)
    require_kept_alike(model, now)
    for name, value in {"system": "Be brief.", "dtype": "bfloat16", "stop": ["x"], "max_new_tokens": 3}.items():
        write_json(tmp_path / "data" / "asked.json", asked | {name: value})
        with pytest.raises(
            PosgapError, match=rf"^MLflow serves it with the {name} .*; sweep it as then, or promote it"
        ):
            require_kept_alike(model, now)


def test_parts_of_a_merged_sweep_say_where_the_examples_are(caplog, tmp_path, model_folder, examples):
    caplog.set_level(logging.INFO, "posgap")
    parts = [
        sweep(SweepConfig(examples=examples, model=str(model_folder), n_docs=4, shard=f"{i}/2", out=tmp_path / f"p{i}"))
        for i in (1, 2)
    ]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    require_answers(model_folder, merged, swept_examples(merged), 3)
    assert caplog.records[-1].getMessage() == "3 of 3 responses are as the sweep recorded"


def test_where_it_cannot_be_tried_a_line_says_so(caplog, monkeypatch, tmp_path, swept, model_folder):
    examples = swept_examples(swept)
    require_answers(model_folder, swept, examples, 0)
    assert not caplog.records
    with monkeypatch.context() as patch:
        patch.setattr(answering, "available_bytes", lambda: 1000.0)
        require_answers(model_folder, swept, examples, 2)
    assert caplog.records.pop().getMessage().endswith("it needs 0.0 GiB of memory, and 0.0 GiB are free")
    for changed in ({"backend": "somebody's"}, {"speed": 2}):
        other = tmp_path / f"swept-{len(changed)}-{next(iter(changed))}"
        shutil.copytree(swept, other)
        sweep_file = read_json(other / "sweep.json")
        write_json(other / "sweep.json", sweep_file | {"settings": sweep_file["settings"] | changed})
        require_answers(model_folder, other, examples, 2)
        assert caplog.records.pop().getMessage().endswith("its sweep has settings that this posgap does not know")
    drawn = tmp_path / "drawn"
    shutil.copytree(swept, drawn)
    sweep_file = read_json(drawn / "sweep.json")
    write_json(drawn / "sweep.json", sweep_file | {"settings": sweep_file["settings"] | {"temperature": 0.5}})
    require_answers(model_folder, drawn, examples, 2)
    assert caplog.records.pop().getMessage().endswith("its responses were drawn, and are others each time")


@pytest.mark.full
def test_right_responses_that_were_written_by_hand_are_not_found_again(tmp_path, swept, model_folder, monkeypatch):
    """Of twenty that are tried an eighth, two, may be worse: near-ties are decided otherwise elsewhere."""
    examples, rows = swept_examples(swept), [row for _, row in read_jsonl(swept / "predictions.jsonl")]
    forged = tmp_path / "forged"
    shutil.copytree(swept, forged)
    monkeypatch.setattr(
        answering, "_rescore", lambda sweep, examples, row, response: float(response == row["response"])
    )
    for written in range(1, 4):
        told = [row | {"correct": True} for row in rows]
        for row in told[:written]:
            row["response"] = f"it is {examples[row['content']].answers[0]}"
        write_jsonl(forged / "predictions.jsonl", told)
        complaint = "^3 of 20 responses have a lower score than its sweep recorded: to kv-0 it answers"
        with pytest.raises(PosgapError, match=complaint) if written > 2 else nullcontext():
            require_answers(model_folder, forged, examples, 20)


def test_responses_that_were_right_are_tried_first_and_nobody_foretells_which(swept, model_folder, monkeypatch):
    tried = []

    def responses(sweep, model, examples, rows):
        tried.append([(row["id"], row["placement"], row["correct"]) for row in rows])
        return [row["response"] for row in rows]

    monkeypatch.setattr(answering, "_responses", responses)
    rows = [row for _, row in read_jsonl(swept / "predictions.jsonl")]
    write_jsonl(swept / "predictions.jsonl", (row | {"correct": at % 2 == 0} for at, row in enumerate(rows)))
    for _ in range(8):
        require_answers(model_folder, swept, {}, 5)
    assert all(correct for drawn in tried for *_, correct in drawn)
    assert len({str(drawn) for drawn in tried}) > 1  # all alike once in 10 ** 30


def test_memory_is_that_of_the_weights_in_their_precision_and_of_a_container_s_limit(
    model_folder, tmp_path, monkeypatch
):
    weights = (model_folder / "model.safetensors").stat().st_size
    assert needed_bytes(model_folder, "float32") == 2 * needed_bytes(model_folder, "bfloat16") == int(1.2 * weights)
    assert 0 < available_bytes() < 2**50


@pytest.mark.parametrize(
    ("groups", "folder", "names"),
    [
        ("0::/\n", "", ("memory.max", "memory.current", "file")),
        ("0::/a/pod\n", "a/pod", ("memory.max", "memory.current", "file")),
        ("4:memory:/pod\n0::/\n", "memory/pod", ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache")),
    ],
)
def test_the_memory_of_a_container_is_up_to_its_limit(tmp_path, monkeypatch, groups, folder, names):
    limit, used, of_files = names
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 9 kB\n")
    (tmp_path / "groups" / folder).mkdir(parents=True)
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    assert available_bytes() == 9 * 1024  # of the machine, where nothing is known of the container
    for name, text in {limit: "5000", used: "4000", "memory.stat": f"anon 900\n{of_files} 3000"}.items():
        (tmp_path / "groups" / folder / name).write_text(f"{text}\n")
    assert available_bytes() == 4000
    (tmp_path / "groups" / folder / limit).write_text("max\n" if limit == "memory.max" else f"{2**63}\n")
    assert available_bytes() == 9 * 1024
