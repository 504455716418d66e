"""The rollout components in a pipeline of one's own, run by KFP."""

import html

import pytest
from kfp import dsl

from posgap.components.table import rollout_experiment, rollout_measure, rollout_predict
from posgap.foundation.files import read_json
from posgap.pipelines.local import run_locally


@dsl.pipeline
def why(texts: str, model: str):
    """Why a model is biased: measure -> predict, and an experiment beside them."""
    read = dsl.importer(artifact_uri=texts, artifact_class=dsl.Dataset).output
    looked_at = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    measured = rollout_measure(texts=read, model=looked_at, length=32).outputs["out"]
    like_it = {"encoding": "measured", "residual": ["measured"], "content": ["heads"]}
    rollout_predict(measurement=measured, **like_it)
    rollout_experiment(iterations=2)


@pytest.mark.full
@pytest.mark.nightly
def test_the_rollout_components_run_one_after_the_other(tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 8)
    inputs = {"texts": str(tmp_path / "t.txt"), "model": str(model_folder)}
    run = run_locally(why, inputs, tmp_path / "run", tmp_path / "cache", tmp_path / "run.log")
    files = {"measure": "measurement", "predict": "prediction", "experiment": "experiment"}
    for verb, file in files.items():
        step = run / f"rollout-{verb}"
        sentence = read_json(step / "out" / f"{file}.json")["summary"]
        page = (step / "picture").read_text()
        assert f"<title>{html.escape(sentence)}" in page and 'src="data:image/png;base64,' in page
    compared = run / "rollout-predict"
    sentence = read_json(compared / "out" / "comparison.json")["summary"]
    page = (compared / "picture").read_text()
    assert f"; {html.escape(sentence)}</title>" in page and page.count("data:image/png") == 2
    assert read_json(run / "rollout-predict" / "out" / "prediction.json")["settings"]["encoding"] == "measured"
