"""The demo's table of other lengths."""

import copy

from examples import kv_example

from posgap.data.reading import write_examples
from posgap.measurement.evidence import Evidence
from posgap.options.sweep import SweepConfig
from posgap.verbs import demo
from posgap.verbs.sweep import sweep_model


def test_the_candidate_is_asked_at_half_one_and_a_half_and_twice_the_length(tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i, n_records=9) for i in range(3)])
    asked = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 4, "max_new_tokens": 2}
    base = Evidence(sweep_model(SweepConfig(**asked, label="base", out=tmp_path / "base")))
    candidate = copy.copy(base)
    candidate.sweep = base.sweep.model_copy(update={"label": "trained"})
    found = demo._compare_elsewhere(base, candidate, tmp_path / "e.jsonl", tmp_path / "elsewhere")
    assert [at.length for at in found.lengths] == ["2 records", "4 records", "6 records", "8 records"]
    assert [at.comparison.placements for at in found.lengths] == [
        [[1], [2]],
        [[1], [2], [3], [4]],
        [[1], [4], [6]],
        [[1], [4], [8]],
    ]
    assert all([curve.label for curve in at.curves] == ["base", "trained"] for at in found.lengths)
    assert not found.losses()
