"""Is there anything new to train on? Asked of data in S3 and of the registry's champion."""

from pathlib import Path

import mlflow
import pytest
from examples import kv_example
from kfp import dsl
from s3 import put
from written_sweeps import copy_of, promotion, write_sweep

from posgap.components.table import data_version as data_version_component
from posgap.components.table import validate
from posgap.data.reading import write_examples
from posgap.foundation.errors import NotFound
from posgap.foundation.files import digest_path, read_json, write_json
from posgap.options.data_version import DataVersionConfig
from posgap.pipelines.local import run_locally
from posgap.storage.cache import take_snapshot
from posgap.storage.inputs import read_manifest
from posgap.tracking.registry import champion
from posgap.tracking.version_record import record_of
from posgap.verbs.data_version import VERSION_FILE, data_version
from posgap.verbs.promote import promote

pytestmark = pytest.mark.usefixtures("mlflow_store")


def read_version(folder):
    return read_json(Path(folder) / VERSION_FILE)


@pytest.fixture
def data(bucket, tmp_path):
    """Writes a data version to S3; returns its sha256."""

    def write(day: str, n: int) -> str:
        file = tmp_path / f"{day}.jsonl.gz"
        write_examples(file, [kv_example(i) for i in range(n)])
        put(f"{bucket}/data/train-{day}.jsonl.gz", file.read_bytes())
        return digest_path(file)

    return write


@pytest.fixture
def crown(tmp_path, model_folder):
    """Promotes a model that was made from what has these digests."""
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])

    def made_from(name: str, *ancestors: str, recipe: str = "") -> None:
        model = copy_of(model_folder, tmp_path / name)
        write_json(model / "manifest.json", {"ancestors": sorted([*ancestors, "m"]), "config": {"model": "base"}})
        promote(promotion(tmp_path, f"of-{name}", model, base).model_copy(update={"recipe": recipe}))

    return made_from


@pytest.mark.full
def test_what_changed_since_the_champion(bucket, data, crown, tmp_path, model_folder):
    config = DataVersionConfig(data=f"{bucket}/data/train-", model=str(model_folder), name="tiny", out=tmp_path / "out")
    with pytest.raises(NotFound):
        data_version(config)
    first, base = data("2026-11-20", 5), digest_path(model_folder)

    def ask(**more):
        return read_version(data_version(config.model_copy(update=more)))

    answer = ask()
    assert answer.pop("cache_keys").keys() == {"eval", "train", "champion"}
    assert answer == {
        "version": "2026-11-20",
        "uri": f"{bucket}/data/train-2026-11-20.jsonl.gz",
        "eval_uri": "",
        "digests": {"data": first, "base model": base},
        "champion": None,
        "changed": ["data", "base model"],
        "skip": False,
        "note": "tiny has no champion",
    }
    crown("one", first, base)
    assert record_of(champion("tiny")).ancestors == sorted([first, base, "m"])
    same = ask()
    assert same["skip"] and same["changed"] == [] and same["champion"] == "1"
    run = mlflow.get_run(read_manifest(tmp_path / "out")["mlflow_run_id"])
    assert (
        run.data.tags["mlflow.note.content"]
        == same["note"]
        == ("skipped: tiny version 1 was made from data version 2026-11-20 and this base model")
    )
    assert run.data.tags["posgap.skip"] == "true" and run.data.tags["posgap.data_version"] == "2026-11-20"
    # The same data under a newer name is no change; other data is.
    data("2026-11-27", 5)
    assert ask()["version"] == "2026-11-27" and ask()["skip"]
    second = data("2026-12-04", 6)
    assert ask()["changed"] == ["data"] and ask()["note"] == "data changed since tiny version 1"
    crown("two", second, base)
    assert ask()["skip"]
    other = copy_of(model_folder, tmp_path / "other")
    assert ask(model=str(other))["changed"] == ["base model"]
    assert ask(model="some/model-on-the-hub")["digests"]["base model"] == "some/model-on-the-hub"


def test_a_folder_is_imported_by_an_address_that_begins_no_other(bucket, tmp_path):
    for version in ("1", "10"):
        put(f"{bucket}/data/v={version}/examples.jsonl", b"{}")
        put(f"{bucket}/data/v={version}/_SUCCESS", b"")
    config = DataVersionConfig(data=f"{bucket}/data/", name="tiny", only_new=False, out=tmp_path / "out")
    assert read_version(data_version(config))["uri"] == f"{bucket}/data/v=10/"


@dsl.pipeline(name="retraining")
def retraining(data: str, model: str, name: str, only_new: bool = True):
    version = data_version_component(data=data, model=model, name=name, only_new=only_new).set_caching_options(False)
    base = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    with dsl.If(version.outputs["Output"] == True, name="something new"):  # noqa: E712  KFP reads the comparison
        train = dsl.importer(artifact_uri=version.outputs["uri"], artifact_class=dsl.Dataset).output
        validate(examples=train, model=base, n_docs=4, cache_key=version.outputs["train_key"])


@pytest.mark.nightly
def test_a_pipeline_trains_on_what_is_new_and_skips_what_is_not(bucket, data, crown, tmp_path, model_folder):
    first, model = data("2026-11-20", 5), copy_of(model_folder, tmp_path / "base-model")
    arguments = {"data": f"{bucket}/data/train-", "model": str(model), "name": "tiny"}

    def steps(run: str, **more) -> set[str]:
        run_locally(retraining, arguments | more, tmp_path / run, tmp_path / "kfp-cache", tmp_path / f"{run}.log")
        written = [read_manifest(path.parent) for path in (tmp_path / run).rglob("manifest.json")]
        return {manifest["stage"] for manifest in written}

    assert steps("one") == {"data_version", "validate"}
    crown("model", first, digest_path(model))
    assert steps("two") == {"data_version"}
    second = data("2026-11-27", 6)
    assert steps("three") == {"data_version", "validate"}
    # What is not new is not done again either where that does not matter, but taken from the cache.
    assert steps("four", only_new=False) == {"data_version"}
    # Another model behind the same address.
    crown("next", second, digest_path(model))
    (model / "generation_config.json").write_text("{}")
    assert steps("five") == {"data_version", "validate"}
    assert steps("six", only_new=False) == {"data_version"}


@pytest.mark.nightly
@pytest.mark.full
def test_another_recipe_is_something_new_where_the_champion_says_how_it_was_made(tmp_path, crown, model_folder):
    write_examples(tmp_path / "data.jsonl", [kv_example(0)])
    made_from = digest_path(tmp_path / "data.jsonl"), digest_path(model_folder)
    config = DataVersionConfig(
        data=str(tmp_path / "data.jsonl"), model=str(model_folder), name="tiny", recipe="r1", out=tmp_path / "out"
    )

    def changed(recipe: str) -> list[str]:
        return read_version(data_version(config.model_copy(update={"recipe": recipe})))["changed"]

    crown("silent", *made_from)
    assert changed("r1") == changed("r2") == []  # this champion does not say
    crown("telling", *made_from, recipe="r1")
    assert (changed("r1"), changed("r2"), changed("")) == ([], ["recipe"], [])


@pytest.mark.nightly
@pytest.mark.full
def test_keys_change_with_the_content_behind_a_place_and_with_nothing_else(bucket, data, crown, tmp_path, model_folder):
    model = copy_of(model_folder, tmp_path / "base-model")
    for day, n in (("2026-11-20", 5), ("2026-11-27", 5)):
        data(day, n)
    first, second = (f"{bucket}/data/train-{day}.jsonl.gz" for day in ("2026-11-20", "2026-11-27"))
    write_examples(tmp_path / "eval.jsonl", [kv_example(9)])
    config = DataVersionConfig(
        data=first,
        data_eval=str(tmp_path / "eval.jsonl"),
        model=str(model),
        name="tiny",
        only_new=False,
        out=tmp_path / "o",
    )

    def changed(before: dict[str, str], **more) -> tuple[set[str], dict[str, str]]:
        keys = read_version(data_version(config.model_copy(update=more)))["cache_keys"]
        return {name for name in keys if keys[name] != before.get(name)}, keys

    _, keys = changed({})
    assert changed(keys, data=second)[0] == set()  # the same bytes under another name
    data("2026-11-27", 6)
    assert changed(keys, data=second)[0] == {"train"}
    with open(model / "config.json", "a") as file:
        file.write(" ")
    was, (now, keys) = keys, changed(keys)
    assert now == {"eval", "train", "champion"}
    (model / "manifest.json").write_text("{}")  # is no part of a folder's content
    assert changed(keys)[0] == set()
    write_examples(tmp_path / "eval.jsonl", [kv_example(8)])
    now, keys = changed(keys)
    assert now == {"eval", "train", "champion"} and keys != was
    crown("one", "x")
    now, keys = changed(keys)
    assert now == {"champion"}
    crown("two", "y")
    assert changed(keys)[0] == {"champion"}


def test_of_s3_a_key_needs_no_download(bucket, s3_calls, tmp_path):
    place = f"{bucket}/model"
    for name, text in (("config.json", b"{}"), ("model.safetensors", b"weights"), (".hidden", b"1")):
        put(f"{place}/{name}", text)
    before = take_snapshot(place).cache_key()
    put(f"{place}/.hidden", b"2")
    put(f"{place}/manifest.json", b"{}")
    assert take_snapshot(place).cache_key() == before
    put(f"{place}/model.safetensors", b"others!")
    assert take_snapshot(place).cache_key() != before
    assert not s3_calls.count()["GetObject"]
