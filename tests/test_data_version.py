"""Is there anything new to train on? Asked of data in S3 and of the registry's champion."""

import mlflow
import pytest
from conftest import kv_example
from kfp import dsl
from s3 import put
from test_gate import copy_of, promotion, write_sweep

from posgap.components.data_version.component import data_version as data_version_component
from posgap.components.validate.component import validate
from posgap.config import DataVersionConfig
from posgap.errors import PosgapError
from posgap.files import digest, write_json
from posgap.pipelines.local import run_locally
from posgap.stages.data_version import data_version, read_data_version
from posgap.stages.promote import promote
from posgap.storage.inputs import read_manifest
from posgap.tasks.examples import write_examples
from posgap.tracking.registry import champion
from posgap.tracking.version_record import record_of


@pytest.fixture
def data(bucket, tmp_path):
    """Writes a data version to S3; returns its sha256."""

    def write(day: str, n: int) -> str:
        file = tmp_path / f"{day}.jsonl.gz"
        write_examples(file, [kv_example(i) for i in range(n)])
        put(f"{bucket}/data/train-{day}.jsonl.gz", file.read_bytes())
        return digest(file)

    return write


@pytest.fixture
def crown(tmp_path, model_folder):
    """Promotes a model that was made from what has these digests."""
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])

    def made_from(name: str, *ancestors: str) -> None:
        model = copy_of(model_folder, tmp_path / name)
        write_json(model / "manifest.json", {"ancestors": ancestors, "config": {"model": "base"}})
        promote(promotion(tmp_path, f"of-{name}", model, base))

    return made_from


def test_what_changed_since_the_champion(bucket, data, crown, tmp_path, model_folder):
    config = DataVersionConfig(data=f"{bucket}/data/train-", model=str(model_folder), name="tiny", out=tmp_path / "out")
    with pytest.raises(PosgapError, match="no data version"):
        data_version(config)
    first, base = data("2026-11-20", 5), digest(model_folder)

    def ask(**more):
        return read_data_version(data_version(config.model_copy(update=more)))

    assert ask() == {
        "version": "2026-11-20",
        "uri": f"{bucket}/data/train-2026-11-20.jsonl.gz",
        "digests": {"data": first, "base model": base},
        "champion": None,
        "changed": ["data", "base model"],
        "skip": False,
        "note": "tiny has no champion",
    }
    crown("one", first, base)
    assert record_of(champion("tiny")).ancestors == [first, base]
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


@dsl.pipeline(name="retraining")
def retraining(data: str, model: str, name: str):
    version = data_version_component(data=data, model=model, name=name).set_caching_options(False)
    base = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    with dsl.If(version.outputs["Output"] == True, name="something new"):  # noqa: E712  KFP reads the comparison
        train = dsl.importer(artifact_uri=version.outputs["uri"], artifact_class=dsl.Dataset).output
        validate(examples=train, model=base, n_docs=4)


@pytest.mark.slow
def test_a_pipeline_trains_on_what_is_new_and_skips_what_is_not(bucket, data, crown, tmp_path, model_folder):
    first = data("2026-11-20", 5)
    arguments = {"data": f"{bucket}/data/train-", "model": str(model_folder), "name": "tiny"}

    def steps(run: str) -> set[str]:
        run_locally(retraining, arguments, tmp_path / run, tmp_path / "kfp-cache", tmp_path / f"{run}.log")
        written = [read_manifest(path.parent) for path in (tmp_path / run).rglob("manifest.json")]
        return {manifest["stage"] for manifest in written}

    assert steps("one") == {"data_version", "validate"}
    crown("model", first, digest(model_folder))
    assert steps("two") == {"data_version"}
    data("2026-11-27", 6)
    assert steps("three") == {"data_version", "validate"}
