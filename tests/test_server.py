"""Stages against a real MLflow server over HTTP, and without it when it dies."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import mlflow
import pytest
from test_gate import copy_of, promotion, write_sweep

from posgap.config import StageConfig
from posgap.inputs import read_manifest
from posgap.stage import stage
from posgap.stages.promote import promote

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A tracking server with a SQLite database that hands artifacts through."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--workers", "1"]
    command += ["--artifacts-destination", str(tmp_path / "store"), "--serve-artifacts"]
    with open(tmp_path / "server.log", "wb") as shown:
        process = subprocess.Popen(command, stdout=shown, stderr=shown, start_new_session=True)
    uri, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=1).close()
            break
        except OSError:
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.5)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def stop():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    yield stop
    stop()


def test_promotion_and_loading_go_through_the_server(server, tmp_path, model_folder):
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
    promote(promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "one"), base))
    pipe = mlflow.transformers.load_model("models:/tiny@champion")
    assert pipe.model.num_parameters() == 84864
    assert list((tmp_path / "store").rglob("*.safetensors"))


def test_a_server_that_dies_takes_no_results_with_it(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

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
    assert read_manifest(tmp_path / "out")["mlflow_run_id"] == ""
    (record,) = caplog.records
    assert "tracking stopped, results are kept locally" in record.getMessage()
