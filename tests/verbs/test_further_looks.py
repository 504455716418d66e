"""`gate --name` sweeps more examples by itself, as the policy of the name gives them."""

import pytest
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.gating.demands import Policy
from posgap.gating.verdict import read_verdict
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.options.sweep import SweepConfig
from posgap.tracking import registry
from posgap.verbs.gate import gate
from posgap.verbs.sweep import sweep_model

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("mlflow_store")]  # each sweeps a model
LAX = {"max_gap": 100, "advantageous_tolerance": 100, "min_mean": 0, "max_unclean": 100, "least_examples": 10}


def test_a_gate_goes_on_with_what_its_file_has(tmp_path, model_folder):
    """Where no example differs, 20 allow a loss of 11.9 points, and 45 one of 10 at a second look."""
    examples = tmp_path / "e.jsonl"
    write_examples(examples, [kv_example(i) for i in range(60)])
    policy = Policy(**LAX, mean_tolerance=10, most_examples=50, max_unanswered=99)
    registry.set_policy("tiny", policy.model_dump_json())
    asked = {"model": str(model_folder), "task": "kv", "n_docs": 4, "max_new_tokens": 4, "max_unanswered": 99}
    swept = sweep_model(SweepConfig(**asked, examples=examples, limit=20, out=tmp_path / "swept"))
    config = GateConfig(candidate=swept, base=swept, name="tiny", out=tmp_path / "gate")
    gate(config)
    verdict = read_verdict(tmp_path / "gate")
    more = read_sweep(tmp_path / "gate-looks" / "candidate-2")
    assert verdict.passed and verdict.look == 2
    assert more.n_examples == 50 and more.model_digest == read_sweep(swept).model_digest
    assert read_sweep(tmp_path / "gate" / "candidate") == more
