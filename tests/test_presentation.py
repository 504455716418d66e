"""What people see of a registered version, on a real MLflow server."""

import mlflow
import pytest
from mlflow_server import serving
from test_gate import base as base
from test_gate import promotion

from posgap.foundation.files import digest
from posgap.measurement.sweeps import read_sweep
from posgap.stages.promote import promote
from posgap.storage.inputs import read_manifest


@pytest.fixture
def server(tmp_path, empty_store, monkeypatch):
    """A client of a real server."""
    folder = tmp_path / "mlflow"
    folder.mkdir()
    with serving(folder, str(folder / "store"), empty_store) as (uri, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield mlflow.MlflowClient(uri)


def test_a_version_says_what_it_is_on_its_page(tmp_path, server, base, model_folder):
    admitted = promotion(tmp_path, "new", model_folder, base)
    for _ in range(2):  # promoted again it says the same
        promote(admitted.model_copy(update={"force": True}))
    swept = read_sweep(admitted.sweep)
    (version,) = server.search_model_versions("name='tiny'")
    for_people = sorted(version.tags)[: -len([tag for tag in version.tags if tag >= "posgap."])]
    assert for_people == ["data", "gap", "gate", "mean", "method", "policy"]
    assert version.tags["gap"] == f"{swept.gap:.1f} ({swept.gap_ci95[0]:.1f} to {swept.gap_ci95[1]:.1f})"
    assert version.tags["gate"] == "admitted" and swept.examples_digest[:12] in version.tags["data"]
    assert all(len(value) <= 64 for tag, value in version.tags.items() if tag != "posgap.policy")
    # The description shows the picture that lies with the run that promoted it.
    run = server.get_run(version.tags["posgap.promotion_run"])
    assert run.info.run_id == read_manifest(admitted.out)["mlflow_run_id"]
    assert f"get-artifact?run_uuid={run.info.run_id}&path=curve.png" in version.description
    assert f"a gap of {swept.gap:.1f} points" in version.description and len(version.description) < 5000
    for name in ("curve.png", "model_card.md", "evidence.json"):
        kept = server.download_artifacts(run.info.run_id, name, str(tmp_path))
        assert digest(kept) == digest(admitted.out / name)
    assert version.description.startswith(f"Gap {version.tags['gap']}, mean {version.tags['mean']}.\n")
    # Run and logged model have the figures, and the run the curve over positions.
    model = server.get_logged_model(version.source.removeprefix("models:/"))
    figures = {"gap": swept.gap, "gap_high": swept.gap_ci95[1], "mean": swept.mean, "worst": swept.worst.accuracy}
    figures = {name: round(value, 2) for name, value in figures.items()}
    of_model = {metric.key: metric.value for metric in model.metrics}
    assert figures.items() <= run.data.metrics.items() and figures.items() <= of_model.items()
    history = server.get_metric_history(run.info.run_id, "accuracy_by_position")
    assert {metric.step: metric.value for metric in history} == dict(zip(swept.positions, swept.accuracy))
    assert server.get_registered_model("tiny").description.startswith("Models that posgap's gate admitted")
