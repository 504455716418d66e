"""Which candidate of a pipeline run is the best: by the sweeps that admitted them, whatever their order."""

import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refuses
from written_sweeps import N, write_sweep

from posgap.foundation.errors import NotAlike, NotFound
from posgap.measurement.evidence import Evidence
from posgap.tracking import candidates, champions
from posgap.tracking.candidates import best_candidate, best_of_run
from posgap.tracking.runs import PIPELINE_TAG

SEED = int(os.environ.get("CHAOS_SEED", "0"))


def test_the_best_candidate_does_not_depend_on_the_order(tmp_path):
    probabilities = {"best": [0.99] * 5, "uneven": [1.0, 1.0, 1.0, 1.0, 0.95], "worse": [0.9] * 5, "poor": [0.5] * 5}
    candidates = {
        name: Evidence(write_sweep(tmp_path / name, probability, seed=seed))
        for seed, (name, probability) in enumerate(probabilities.items())
    }
    # The uneven one has the higher mean, but not for certain, and a larger gap.
    means = {name: float(np.mean(each.correct)) for name, each in candidates.items()}
    assert max(means, key=means.__getitem__) == "uneven"
    draw = random.Random(SEED)
    for _ in range(6):
        names = draw.sample(list(candidates), len(candidates))
        assert best_candidate({name: candidates[name] for name in names}) == "best"
    assert best_candidate({name: candidates[name] for name in ("poor", "worse")}) == "worse"
    # Of the same sweep twice the model's digest decides.
    for order in ("ab", "ba"):
        twins = {name: Evidence(tmp_path / "best") for name in order}
        for name, twin in twins.items():
            twin.sweep = twin.sweep.model_copy(update={"model_digest": name})
        assert best_candidate(twins) == "a"


def wrong(*examples: int) -> np.ndarray:
    """Outcomes `[N, 5]` with so many wrong at each of the placements, the first examples of all."""
    return np.stack([np.arange(N) >= number for number in examples], axis=1).astype(float)


@pytest.mark.parametrize(
    ("chosen", "other"),
    [
        # Flat, but certainly worse than the other, which has a gap.
        (wrong(0, 0, 0, 0, N // 10), wrong(*[N // 5] * 5)),
        # With the smaller gap, and a mean that is lower, though not for certain; nobody can say that one has a gap.
        (wrong(2, 2, 2, 2, 2), wrong(0, 0, 0, 0, 3)),
        # As flat, with the higher mean.
        (wrong(1, 1, 1, 1, 1), wrong(2, 2, 2, 2, 2)),
    ],
    ids=["certainly worse", "smaller gap", "higher mean"],
)
def test_of_those_that_are_not_certainly_worse_the_flattest_is_the_best(tmp_path, chosen, other):
    sweeps = Evidence(write_sweep(tmp_path / "b", chosen)), Evidence(write_sweep(tmp_path / "a", other))
    for digest, each in zip("ba", sweeps):  # which would be first by its name, or by its digest, is not the best
        each.sweep = each.sweep.model_copy(update={"model_digest": digest})
    assert best_candidate({"b": sweeps[0], "a": sweeps[1]}) == best_candidate({"a": sweeps[1], "b": sweeps[0]}) == "b"


def test_candidates_that_were_not_asked_alike_are_not_compared(tmp_path):
    one, other = (Evidence(write_sweep(tmp_path / name, [0.9] * 5, examples=name)) for name in "ab")
    with refuses(NotAlike, ": examples ("):
        best_candidate({"1": one, "2": other})


class Tiny:
    name = "tiny"


TINY = Tiny()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Versions 1 to 4 of a pipeline run, each better than the one before; asked for by their tag alone."""
    means = {1: 0.6, 2: 0.7, 3: 0.9, 4: 0.99}
    run = SimpleNamespace(rolled_back=set(), versions=list(means), without_sweep=set(), folders=[])

    def tagged(name: str, tag: str, value: str):
        assert (name, tag, value) == ("tiny", PIPELINE_TAG, "of today")
        return [SimpleNamespace(name="tiny", version=number) for number in run.versions]

    def judged_sweep(version, folder: Path):
        run.folders.append(folder)
        if version.version in run.without_sweep:
            return None
        return write_sweep(tmp_path / f"{folder.name}-{len(run.folders)}", [means[version.version]] * 5)

    monkeypatch.setattr(
        champions,
        "rolled_back",
        lambda registered: dict.fromkeys(run.rolled_back, "rolled back: slow") if registered is TINY else None,
    )
    monkeypatch.setattr(candidates, "find_versions", tagged)
    monkeypatch.setattr(candidates, "judged_sweep", judged_sweep)
    return run


def test_the_best_candidate_of_a_run_is_chosen_except_rolled_back_ones(run):
    assert best_of_run(TINY, "1", "of today") == "4"
    # Each sweep has a folder of its own, of which none is left.
    assert [folder.name for folder in run.folders] == ["1", "2", "3", "4"]
    assert len({folder.parent for folder in run.folders}) == 1 and not run.folders[0].parent.exists()
    run.rolled_back = {"4", "1"}
    assert best_of_run(TINY, "1", "of today") == "3"
    # Who asks takes part even so.
    assert best_of_run(TINY, "4", "of today") == "4"
    run.rolled_back = {"2", "3", "4"}
    assert best_of_run(TINY, "1", "of today") == "1"
    run.rolled_back = {"2", "3"}
    assert best_of_run(TINY, "1", "of today") == "4"


def test_who_has_no_rival_is_the_best_without_a_look_at_any_sweep(run):
    assert best_of_run(TINY, "1", "") == "1"
    run.versions = [2]
    assert best_of_run(TINY, "2", "of today") == "2" and not run.folders


def test_a_candidate_whose_sweep_is_gone_cannot_be_compared(run):
    run.without_sweep = {3}
    with refuses(NotFound, at="tiny version 3"):
        best_of_run(TINY, "1", "of today")
