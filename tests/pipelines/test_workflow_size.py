"""preflight's estimate of what Argo keeps of a run is about what KFP's and Argo's rules make of compiled files."""

import pytest
from places import ROOT
from workflow_size import sizes_of

from posgap.kubeflow.prerequisites import estimate_workflow
from posgap.options.cluster import ClusterConfig
from posgap.options.preflight import PreflightConfig
from posgap.pipelines.compilation import compiled_text, load, parse
from posgap.pipelines.mitigation import mitigation_pipeline

RUNS = [
    ("r1", 1),
    ("r1", 16),
    ("mitigate", 10),
    ("r1+mitigate", 12),
    ("r1 then mitigate", 4),
    ("r1+sft+seqkd+mitigate", 1),
    ("r1+sft+seqkd then mitigate", 4),
]


def form_of(methods: str, shards: int) -> PreflightConfig:
    paths = {"base_model": "s3://lab/model", "data_train": "s3://lab/train", "data_eval": "s3://lab/eval"}
    return PreflightConfig(**paths, methods=methods, shards=shards, out="o")


@pytest.mark.parametrize(("methods", "shards"), RUNS)
def test_preflight_knows_the_size_of_the_committed_pipeline(methods, shards):
    _, packed = sizes_of(load(ROOT / "pipelines/mitigation.yaml"), form_of(methods, shards))
    assert estimate_workflow(methods, shards) == pytest.approx(packed, rel=0.06)


@pytest.mark.full
@pytest.mark.parametrize(("methods", "shards"), [("r1", 16), ("r1+sft+seqkd+mitigate", 4)])
def test_and_of_one_that_was_compiled_for_a_trainer_and_many_settings(methods, shards):
    cluster = ClusterConfig(trainer=True, pull_secret="registry", registry="registry.example.com/machine-learning/team")
    _, packed = sizes_of(parse(compiled_text(mitigation_pipeline(cluster)), "test"), form_of(methods, shards))
    assert estimate_workflow(methods, shards) == pytest.approx(packed, rel=0.12)


@pytest.mark.parametrize("name", ["mitigation", "watch"])
def test_only_the_form_describes_its_parameters(name):
    # They were a quarter of the file, and Argo keeps eight copies of a component for each step that ran.
    compiled = load(ROOT / "pipelines" / f"{name}.yaml")
    assert all(spec["description"] for spec in compiled.parameters.values())
    for component in compiled.spec["components"].values():
        for parameter in component.get("inputDefinitions", {}).get("parameters", {}).values():
            assert "description" not in parameter
