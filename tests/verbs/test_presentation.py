"""What people see of a registered version, on a real MLflow server."""

import mlflow
import pytest
from mlflow_server import serving
from written_sweeps import LAX, promotion

from posgap.foundation.errors import LeftPolicy
from posgap.foundation.files import digest_path, read_json
from posgap.gating.demands import Policy
from posgap.measurement.sweeps import read_sweep
from posgap.options.approve import ApproveConfig
from posgap.options.champion import ChampionConfig
from posgap.options.gate import GateConfig
from posgap.options.promote import PromoteConfig
from posgap.options.watch import WatchConfig
from posgap.storage.inputs import read_manifest
from posgap.tracking import registry
from posgap.verbs.approve import approve
from posgap.verbs.champion import champion
from posgap.verbs.gate import judge_and_write
from posgap.verbs.promote import promote
from posgap.verbs.watch import watch

pytestmark = pytest.mark.full


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
    assert for_people == ["data", "gap", "gate", "guards", "mean", "method", "policy"]
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
        assert digest_path(kept) == digest_path(admitted.out / name)
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


@pytest.mark.nightly
def test_two_versions_of_the_data_with_approval_and_watching(tmp_path, server, real):
    """A champion that was approved on the old data is watched on the new, fails a stricter policy, and is followed."""
    examples = {"old": tmp_path / "old.jsonl", "new": tmp_path / "new.jsonl"}
    client = server

    def approved(name, seed, data, number):
        model, swept = real(name, seed, data)
        gate = judge_and_write(
            GateConfig(candidate=swept, base=swept, name="tiny", out=tmp_path / f"gate-{name}", **LAX)
        )
        promote(
            PromoteConfig(
                out=tmp_path / f"promote-{name}", model=str(model), gate=gate, sweep=swept, name="tiny",
                approval=True,
            )
        )  # fmt: skip
        assert str(client.get_registered_model("tiny").aliases["challenger"]) == number
        approve(ApproveConfig(name="tiny", version=int(number)))
        assert str(client.get_registered_model("tiny").aliases["champion"]) == number

    def watched(data, name):
        swept = champion(ChampionConfig(name="tiny", examples=examples[data], out=tmp_path / f"{name}-champion"))
        return read_sweep(swept), WatchConfig(champion=swept, out=tmp_path / name)

    approved("first", 0, "old", "1")
    on_old, _ = watched("old", "at-hand")
    on_new, config = watched("new", "watch")
    assert on_old.examples_digest != on_new.examples_digest
    assert read_json(watch(config) / "watch.json")["outcome"] == "admitted"
    registry.set_policy("tiny", Policy(**LAX | {"min_mean": 99}).model_dump_json())
    with pytest.raises(LeftPolicy, match="^tiny version 1 "):
        watch(watched("new", "later")[1])
    assert "has left its policy" in client.get_model_version("tiny", "1").tags["posgap.watched"]
    registry.set_policy("tiny", Policy(**LAX).model_dump_json())
    approved("second", 1, "new", "2")
    first, second = (client.get_model_version("tiny", number).tags["data"] for number in "12")
    assert first.split()[-1] == on_old.examples_digest[:12] and second.split()[-1] == on_new.examples_digest[:12]
    assert read_json(watch(watched("new", "last")[1]) / "watch.json")["version"] == "2"
