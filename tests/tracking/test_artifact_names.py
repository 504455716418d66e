"""A server whose artifacts have hostile names: nothing is written outside the folder that a download was given."""

import json
import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from report_pages import sweep_of

from posgap.foundation.errors import PosgapError
from posgap.foundation.retries import RetryPolicy
from posgap.tracking import registry, server
from posgap.tracking.presentation import short_tags
from posgap.tracking.registry import bring

NAMES = ["../escaped", "../../escaped", "a/../../../escaped", "/tmp/escaped", "..%2f..%2fescaped", "%2e%2e/escaped",
         "..\\escaped", "file:///escaped", "a\0b", "m\x1b[2J\nposgap: error: forged"]  # fmt: skip


@pytest.fixture
def listing():
    """A server that lists an artifact of any name, and has bytes at every path."""
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_list = "path=" in self.path or "runs/get" in self.path
            files = [{"path": name, "is_dir": False, "file_size": 3} for name in names]
            if not self.path.endswith("sweep"):
                files = [{"path": "sweep", "is_dir": True}]
            if "runs/get" in self.path:
                place = f"http://127.0.0.1:{self.server.server_port}/api/2.0/mlflow-artifacts/artifacts/1/r/artifacts"
                info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "artifact_uri": place,
                        "status": "FINISHED", "lifecycle_stage": "active", "start_time": 1}  # fmt: skip
                content = json.dumps({"run": {"info": info, "data": {}}}).encode()
            else:
                content = json.dumps({"root_uri": "", "files": files}).encode() if is_list else b"bad"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/json" if is_list else "application/octet-stream")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}", names
    listening.shutdown()


def test_no_name_of_an_artifact_leads_out_of_the_folder(listing, tmp_path, monkeypatch):
    url, names = listing
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    once = partial(server.call_mlflow, retry_policy=RetryPolicy(tries=1))
    monkeypatch.setattr(registry, "call_mlflow", once)
    monkeypatch.setattr(registry, "look_up", once)
    for number, name in enumerate(NAMES):
        names[:] = [name]
        place = tmp_path / str(number) / "deep" / "place"
        place.mkdir(parents=True)
        try:
            bring("r", "sweep", place)
        except PosgapError as told:
            assert len(str(told).splitlines()) == 1
        found = [Path(at) / each for at, _, files in os.walk(tmp_path / str(number)) for each in files]
        assert all(file.is_relative_to(place) for file in found), (name, found)
    assert not Path("/tmp/escaped").exists() and not Path("/escaped").exists()


def test_a_version_s_tags_show_what_others_named_with_escapes():
    sweep = sweep_of([[1], [2]], [90, 80])
    tags = short_tags(sweep.model_copy(update={"task": "kv\x1b[2J"}), "r1\n::set-output::", "admitted", "default")
    assert all(value.isprintable() for value in tags.values())
    assert tags["gap"].startswith("10.0 (") and tags["data"].startswith("kv\\x1b[2J, ")
