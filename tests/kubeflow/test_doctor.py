"""What `posgap doctor` says of a machine: of packages, GPUs, and servers that answer, refuse or are not there."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from posgap.cli.main import main
from posgap.verbs import doctor


@pytest.fixture
def found(monkeypatch, tmp_path):
    """The findings by part, in an environment that names nothing but what a test sets."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "KFP_HOST",
        "HF_TOKEN",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lambda: {each.part: each for each in doctor.findings()}


@pytest.fixture
def server():
    """A server that answers /health with 200, /apis/... with 401 and all else with 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            code = 200 if self.path == "/health" else 401 if self.path.startswith("/apis/") else 503
            self.send_response(code)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    served = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


def test_a_bare_machine_has_nothing_that_is_of_no_use(found):
    seen = found()
    assert {part: each.state for part, each in seen.items() if each.state == "broken"} == {}
    assert seen["torch"].state == "yes"
    assert seen["MLflow"].state == "no" and "MLFLOW_TRACKING_URI" in seen["MLflow"].mend
    assert seen["S3"].state == "no" and "AWS_ACCESS_KEY_ID" in seen["S3"].mend
    assert "HF_HUB_OFFLINE" in seen["hub"].seen and seen["Kubeflow"].state == "no"


def test_servers_that_are_named_must_answer_and_a_password_is_not_shown(found, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("//", "//anna:geheim@"))
    monkeypatch.setenv("KFP_HOST", server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    assert found()["S3"].state == "broken", "an endpoint without credentials"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    seen = found()
    assert seen["MLflow"].state == "yes" and "geheim" not in str(seen)
    assert seen["Kubeflow"].state == "yes", "who asks for a log-in answers"
    assert seen["S3"].state == "broken" and "answers 503" in seen["S3"].seen
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    gone = found()["MLflow"]
    assert gone.state == "broken" and "does not answer" in gone.seen and "MLFLOW_TRACKING_URI" in gone.mend


def test_a_gpu_asks_for_a_torch_that_uses_it(found, monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    versions = {"torch": "2.13.0+cpu"}
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    seen = found()
    assert seen["GPU"].seen == "NVIDIA H100, 81559 MiB" and seen["torch"].state == "broken"
    assert "posgap[gpu]" in seen["FlashAttention"].mend and seen["FlashAttention"].state == "no"
    versions["torch"] = "2.13.0"
    assert found()["torch"].state == "yes"
    del versions["torch"]
    assert "pip install 'posgap[local]'" in found()["torch"].mend
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert found()["GPU"].state == "no" and not found()["FlashAttention"].mend


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_version_beyond_the_bounds_of_the_package_is_untested(found, monkeypatch, package):
    (bounds,) = (each.specifier for each in map(Requirement, requires("posgap")) if each.name == package)
    ends = {each.operator: each.version for each in bounds}
    versions = {package: ends[">="]}
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    assert found()[package].state == "yes"
    for beyond in (f"{ends['>=']}.dev1", ends["<"]):
        versions[package] = beyond
        seen = found()[package]
        assert (
            seen.state == "untested" and beyond in seen.seen and seen.mend.endswith(f"pip install '{package}{bounds}'")
        )


def test_a_full_disk_is_said(monkeypatch, tmp_path):
    usage = type("Usage", (), {"free": doctor.MIN_DISK - 1})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    assert doctor._disk(tmp_path).state == "broken"
    usage.free += 1
    assert doctor._disk(tmp_path).state == "yes"


def test_it_is_said_in_lines_or_as_json_and_by_the_exit_code(found, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and lines[0].startswith("✓ posgap ") and len(lines) == len(found())
    monkeypatch.setenv("KFP_HOST", "http://127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    shown = capsys.readouterr()
    parts = {each["part"]: each["state"] for each in json.loads(shown.out)["parts"]}
    assert ended.value.code == 1 and parts["Kubeflow"] == "broken" and "cannot be used: Kubeflow" in shown.err


def test_what_is_configured_and_lacks_its_extra_is_of_no_use(found, monkeypatch):
    installed = doctor.installed_version
    absent = {"mlflow", "boto3", "kfp"}
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name in absent else installed(name))
    bare = found()
    assert {bare[part].state for part in ("MLflow", "S3", "Kubeflow")} == {"no"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("KFP_HOST", "http://127.0.0.1:1")
    configured = found()
    for part, extra in {"MLflow": "mlflow", "S3": "s3", "Kubeflow": "kfp"}.items():
        assert configured[part].state == "broken" and f"posgap[{extra}]" in configured[part].mend
