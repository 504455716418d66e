"""What one pod writes another reads: records name places that every pod finds, never those of the pod itself."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from examples import kv_example
from pods import Pods, defaults
from written_sweeps import LAX

from posgap.components.table import champion, gate, merge, promote, sweep
from posgap.data.reading import write_examples
from posgap.foundation.files import write_json
from posgap.storage.cache import fetch_location
from posgap.tracking import registry
from posgap.verbs import promote as promote_verb

ASKED = {"n_docs": 5, "max_new_tokens": 1, "metric": "contains_any", "positions": "1,3,5", "task": "kv"}
NAME = "tiny"


@pytest.fixture
def pods(bucket, tmp_path, mlflow_store) -> Pods:
    return Pods(f"{bucket}/kfp/run", tmp_path / "pods")


@pytest.fixture
def given(pods, bucket, tmp_path, values_folder) -> dict[str, str]:
    """The addresses of base model and examples."""
    write_examples(tmp_path / "examples.jsonl", [kv_example(number, 5) for number in range(100)])
    return {
        "model": pods.put(values_folder, f"{bucket}/models/base"),
        "examples": pods.put(tmp_path / "examples.jsonl", f"{bucket}/data/eval.jsonl"),
    }


def swept(pods: Pods, given, **settings) -> str:
    parts = []
    for shard in ("1/2", "2/2"):
        part = pods.run(sweep, {**given}, shard=shard, settings=ASKED | settings)
        parts.append(part["out"])
    return pods.run(merge, {"sweeps": parts})["out"]


def words(folder) -> Iterator[str]:
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix in (".json", ".md", ".html"):
            yield file.read_text(encoding="utf-8")


@pytest.mark.full
def test_a_first_version_is_promoted_where_no_path_of_another_pod_is(pods, given, tmp_path):
    """On the first live cluster every run ended with `/s3/posgap/models/tiny: no such folder`."""
    base, candidate = swept(pods, given, label="base"), swept(pods, given, label="new")
    rival = pods.run(champion, {"examples": given["examples"], "like": base}, name=NAME)["out"]
    judged = {"candidate": candidate, "base": base, "champion": rival, "examples": given["examples"]}
    decision = pods.run(gate, judged, name=NAME, settings=LAX)
    assert decision["Output"] is True
    promoted = {"model": given["model"], "gate": decision["out"], "sweep": candidate, "examples": given["examples"]}
    crowned = pods.run(promote, promoted, name=NAME)["out"]
    assert registry.champion(NAME) and pods.metadata["out"]["judged_again"] is False
    for made in (base, candidate, rival, decision["out"], crowned):
        for text in words(fetch_location(made)):
            assert str(tmp_path / "pods") not in text


def test_a_promotion_in_a_pipeline_judges_again_if_another_run_has_promoted(tmp_path, monkeypatch):
    """Hours of training ended with `compares the model with another champion; gate again`, three times."""
    asked = []

    def judge_again(config):
        asked.append(config)
        config.gate_again.mkdir()
        config.out.mkdir()
        write_json(config.out / "promotion.json", {"name": NAME, "version": "2", "alias": "champion"})

    monkeypatch.setattr(promote_verb, "promote", judge_again)
    names = ("model", "gate", "sweep", "examples", "base")
    inputs = {name: SimpleNamespace(path=str(tmp_path / name), uri="") for name in names}
    out = SimpleNamespace(path=str(tmp_path / "out"), uri="", metadata={})
    promote.python_func(**inputs, out=out, **defaults(promote, {*inputs, "out"}))
    assert asked[0].base == tmp_path / "base" and out.metadata["judged_again"] is True
