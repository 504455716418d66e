"""Stages against a real MLflow server over HTTP, and without it when it dies."""

import logging
import os
from pathlib import Path

import boto3
import mlflow
import pytest
from mlflow_server import serving
from written_sweeps import copy_of, promotion, write_sweep

from posgap.options.base import StageConfig
from posgap.storage.inputs import read_manifest
from posgap.verbs.frame import stage
from posgap.verbs.promote import promote

pytestmark = pytest.mark.full


@pytest.fixture
def server(tmp_path, empty_store, monkeypatch):
    with serving(tmp_path, str(tmp_path / "store"), empty_store) as (uri, stop):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield stop


@pytest.fixture
def server_on_s3(bucket, tmp_path, empty_store, monkeypatch):
    with serving(tmp_path, f"{bucket}/mlflow", empty_store) as (uri, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        # Artifacts go through the server: its clients know nothing of S3.
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        yield


def test_promotion_and_loading_go_through_the_server(server, tmp_path, model_folder):
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
    promote(promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base))
    pipe = mlflow.transformers.load_model("models:/tiny@champion")
    assert pipe.model.num_parameters() == 84864
    assert list((tmp_path / "store").rglob("*.safetensors"))


def test_a_server_on_s3_keeps_artifacts_and_models_there(server_on_s3, bucket, s3_endpoint, tmp_path, model_folder):
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
    promoted = promote(promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base))
    pipe = mlflow.transformers.load_model("models:/tiny@champion")
    assert pipe.model.num_parameters() == 84864
    of_run = mlflow.artifacts.load_dict(f"runs:/{read_manifest(promoted)['mlflow_run_id']}/promotion.json")
    assert of_run["name"] == "tiny"
    access = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    listed = boto3.client("s3", endpoint_url=s3_endpoint, **access).list_objects_v2(Bucket=bucket.removeprefix("s3://"))
    names = {Path(stored["Key"]).name for stored in listed["Contents"]}
    assert {"model.safetensors", "promotion.json", "gate.json", "manifest.json"} <= names
    assert not (tmp_path / "store").exists()


def test_a_server_that_dies_takes_no_results_with_it(server, tmp_path, caplog):
    @stage
    def work(config, out, run):
        run.metrics({"before": 1})
        server()
        run.metrics({"after": 1})
        run.metrics({"after": 2})
        (out / "result.txt").write_text("kept")

    with caplog.at_level(logging.WARNING, logger="posgap"):
        work(StageConfig(out=tmp_path / "out"))
    assert (tmp_path / "out" / "result.txt").read_text() == "kept"
    assert read_manifest(tmp_path / "out")["mlflow_run_id"]
    (record,) = caplog.records
    assert "run the command again when the" in record.getMessage()
