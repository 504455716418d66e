"""A version that the registry gives back answers what the sweep recorded; what does not is told from it."""

import pytest
from examples import kv_example
from refusals import refuses

from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction, NotAlike
from posgap.foundation.files import read_json, write_json
from posgap.generation.backends import BACKENDS
from posgap.measurement.predictions import read_predictions, swept_rows
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models import memory
from posgap.models.loading import load_tokenizer, save_model
from posgap.models.memory import available_bytes, needed_bytes
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.tracking import answering
from posgap.tracking.answering import SweptAnswers, as_swept, require_kept_alike, why_not_tried
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model


@pytest.fixture
def examples(tmp_path):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(6)])
    return tmp_path / "e.jsonl"


@pytest.fixture
def swept(tmp_path, model_folder, examples):
    return sweep_model(
        SweepConfig(examples=examples, model=str(model_folder), n_docs=4, limit=5, out=tmp_path / "swept")
    )


def answered_again(model, swept, examples=None):
    """How many responses of a sweep a model gives again, and how many there are."""
    rows = swept_rows(read_predictions(swept))
    found = SweptAnswers(read_sweep(swept), model, swept_examples(swept, examples)).answer(rows)
    return sum(row["response"] == answer.text for row, answer in zip(rows, found, strict=True)), len(rows)


def test_the_swept_model_answers_as_recorded(swept, model_folder, examples):
    assert answered_again(model_folder, swept) == answered_again(model_folder, swept, examples) == (20, 20)


def test_another_model_does_not(tmp_path, swept, model_folder):
    other = load_model(str(model_folder))
    for weight in other.parameters():
        weight.data.neg_()
    save_model(other, load_tokenizer(str(model_folder)), tmp_path / "other")
    assert answered_again(tmp_path / "other", swept)[0] < 7


@pytest.mark.parametrize("change", [{"max_new_tokens": 5}, {"question": "both"}, {"shuffle": 2}])
def test_what_was_asked_is_held_against_the_settings(swept, model_folder, change):
    told = read_json(swept / "sweep.json")
    write_json(swept / "sweep.json", told | {"settings": told["settings"] | change})
    (name,) = change
    with refuses(Contradiction, f" {name} "):
        SweptAnswers(read_sweep(swept), model_folder, {})


def test_a_version_is_served_as_this_sweep_asked_and_not_as_another_one_did(tmp_path, swept):
    """A model is registered once, with how the sweep of then asked."""
    asked, now = as_swept(read_sweep(swept)), read_sweep(swept)
    model = tmp_path / "data" / "model"
    require_kept_alike(model, now)  # of an older version nothing is known
    write_json(tmp_path / "data" / "asked.json", asked)
    require_kept_alike(model, now)
    for name, value in {"system": "Be brief.", "dtype": "bfloat16", "stop": ["x"], "max_new_tokens": 3}.items():
        write_json(tmp_path / "data" / "asked.json", asked | {name: value})
        with refuses(NotAlike, f" {name} "):
            require_kept_alike(model, now)


def test_parts_of_a_merged_sweep_say_where_the_examples_are(tmp_path, model_folder, examples):
    parts = [
        sweep_model(
            SweepConfig(examples=examples, model=str(model_folder), n_docs=4, shard=f"{i}/2", out=tmp_path / f"p{i}")
        )
        for i in (1, 2)
    ]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert answered_again(model_folder, merged) == (24, 24)


def test_why_it_cannot_be_tried_is_said(monkeypatch, swept, model_folder):
    told = read_sweep(swept)
    assert why_not_tried(told, model_folder) == ""
    with monkeypatch.context() as patch:
        patch.setattr(answering, "available_bytes", lambda: 1000.0)
        assert why_not_tried(told, model_folder) == "it needs 0.0 GiB of memory, and 0.0 GiB are free"
    unknown = "its sweep has settings that this posgap does not know"
    drawn = "its responses were drawn, and are others each time"
    changes = [({"backend": "somebody's"}, unknown), ({"speed": 2}, unknown), ({"temperature": 0.5}, drawn)]
    for change, why in [*changes, ({"backend": "openai"}, "an endpoint answered")]:
        assert why_not_tried(told.model_copy(update={"settings": told.settings | change}), model_folder) == why


def test_all_settings_of_a_sweep_are_known():
    backends = set().union(*(backend.parameters.model_fields for backend in BACKENDS))
    known = answering._AskedSettings.model_fields.keys() | answering._OTHERS | backends
    assert known == SweepConfig.parameters().keys()
    for name, field in answering._AskedSettings.model_fields.items():
        assert field.default == SweepConfig.default(name), name


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
