"""Up to which length a position gap stays small: the effective length, the map of several, and what they will take."""

import numpy as np
import pytest
from written_sweeps import write_sweep

from posgap.foundation.files import write_json
from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.filling import FillRecord
from posgap.measurement.lengths import (
    EffectiveLength,
    LengthMap,
    effective_length,
    folder_at,
    is_of_lengths,
    length_map,
    read_lengths,
)
from posgap.measurement.spending import TokenTotals
from posgap.measurement.statistics import tango_bound
from posgap.measurement.sweeps import LENGTHS_FILE


def scores(rng, n: int, accuracies) -> np.ndarray:
    return (rng.random((n, len(accuracies))) < accuracies).astype(float)


def test_the_effective_length_ends_before_the_first_gap_that_is_too_large():
    flat, steep = np.ones((100, 3)), np.tile([1.0, 0.0, 1.0], (100, 1))
    at = [100, 200, 300]
    found = [effective_length(at, of, 10) for of in ([flat] * 3, [flat, flat, steep], [steep, flat, flat])]
    assert [(each.tokens, each.low, each.high) for each in found] == [(300, 300, 300), (200, 200, 200), (0, 0, 0)]
    few = effective_length(at, [flat[:10]] * 3, 10)  # of which nobody can say that the gap is so small
    assert (few.tokens, few.low, few.high) == (300, 0, 300)
    assert few.sentence(at).endswith(
        "300 or more tokens (95 % bounds of the effective length: under 100 to 300 or more)."
    )
    assert "more than 10 points at 100 tokens already" in found[2].sentence(at)


def test_a_gap_of_exactly_what_is_allowed_is_allowed():
    at, ten = [100, 200], np.ones((100, 2))
    ten[:10, 1] = 0
    assert effective_length(at, [ten, ten], 10).tokens == 200
    assert effective_length(at, [ten, ten], 10 - 1e-9).tokens == 0


@pytest.mark.parametrize(("placements", "number"), [(2, 1), (3, 3)])
def test_the_upper_end_goes_by_lower_bounds_that_hold_together(placements, number):
    """Each at the level by the number of all ordered pairs of placements of all lengths (Bonferroni): so many examples
    must be wrong at one placement alone before the shortest length is said to be too long."""
    at = list(range(100, 100 * (number + 1), 100))

    def fewest(is_too_much) -> int:
        return next(wrong for wrong in range(100) if is_too_much(wrong))

    def says(wrong: int) -> bool:
        scores = np.ones((100, placements))
        scores[:wrong, 1] = 0
        found = effective_length(at, [scores, *[np.ones((100, placements))] * (number - 1)], 10)
        assert found.high in (0, at[-1])
        return not found.high

    def exceeds(wrong: int, pairs: int) -> bool:
        return -100 * float(tango_bound(np.array(0), np.array(wrong), 100, 0.05 / pairs)) > 10

    pairs = placements * (placements - 1) * number
    assert fewest(says) == fewest(lambda wrong: exceeds(wrong, pairs)) > fewest(lambda wrong: exceeds(wrong, 1))


def test_the_bounds_of_the_effective_length_are_wrong_in_at_most_five_percent():
    """Gaps of exactly 10, 10 and 20 points: 200 is the effective length, with both bounds at their limit."""
    rng, at, runs = np.random.default_rng(0), [100, 200, 300], 80
    accuracies = ([0.9, 0.8, 0.9], [0.8, 0.8, 0.7], [0.9, 0.7, 0.9])
    found = [effective_length(at, [scores(rng, 150, a) for a in accuracies], 10) for _ in range(runs)]
    assert all(each.low <= each.tokens <= each.high for each in found)
    assert sum(each.low > 200 for each in found) <= 0.08 * runs
    assert sum(each.high < 200 for each in found) <= 0.08 * runs


@pytest.mark.filterwarnings("error")
def test_one_depth_shows_no_gap():
    found = effective_length([100, 200], [np.ones((100, 1))] * 2, 10)
    assert (found.tokens, found.low, found.high) == (200, 0, 200)


def test_the_lower_end_goes_by_the_upper_bounds_of_the_gaps():
    """Each of which has to be small enough, at all lengths up to it."""
    flat, some = np.ones((100, 3)), np.ones((100, 3))
    some[:6, 1] = 0
    (_, of_flat), (_, of_some) = (statistics.gap_interval(scores) for scores in (flat, some))
    assert of_flat < 6 < of_some
    at = [100, 200, 300]
    for correct, most, low in (
        ([flat, some, flat], of_some, 300),
        ([flat, some, flat], of_some - 1e-6, 100),
        ([some, flat, flat], of_some - 1e-6, 0),
        ([flat, flat, some], of_flat, 200),
    ):
        assert effective_length(at, correct, most).low == low


@pytest.mark.parametrize(
    ("tokens", "low", "high", "sentence"),
    [
        (2000, 1000, 3000,
         "The measured gap is at most 7.5 points up to a length of 2,000 tokens (95 % bounds of the effective "
         "length: 1,000 to 3,000 or more)."),
        (3000, 3000, 3000,
         "The measured gap is at most 7.5 points up to a length of 3,000 or more tokens (95 % bounds of the "
         "effective length: 3,000 or more)."),
        (0, 0, 1000,
         "The measured gap is more than 7.5 points at 1,000 tokens already (95 % bounds of the effective length: "
         "under 1,000 to 1,000)."),
    ],
)  # fmt: skip
def test_the_effective_length_is_said_with_its_bounds(tokens, low, high, sentence):
    asked = [1000, 2000, 3000]
    assert EffectiveLength(most_gap=7.5, tokens=tokens, low=low, high=high).sentence(asked) == sentence


@pytest.fixture
def swept(tmp_path) -> list[Evidence]:
    """Sweeps at 1,000 and 2,000 tokens, the longer one with a gap."""
    swept = []
    for tokens, at_middle in ((1000, 0.9), (2000, 0.3)):
        evidence = Evidence(write_sweep(tmp_path / f"{tokens}", [0.9, 0.9, at_middle, 0.9, 0.9]))
        depths = [0, 25, 50, 75, 100]
        filled = FillRecord(
            length=f"{tokens // 40}%", tokens=tokens, depths=depths, seed=0, pool="p", documents=tokens // 100
        )
        spent = TokenTotals(prompts=7, prompt_tokens=tokens - 1, completion_tokens=9) if tokens == 1000 else None
        update = {"filled": filled, "spent": spent}
        evidence.sweep = evidence.sweep.model_copy(update=update)
        swept.append(evidence)
    return swept


FIGURES = ("accuracy", "ci95", "mean", "mean_ci95", "gap", "gap_ci95", "gap_noise")


def test_a_map_has_a_row_of_each_sweep(swept, tmp_path):
    found = length_map(swept, 4000, 20)
    for name in FIGURES:
        assert getattr(found, name) == [getattr(each.sweep, name) for each in swept], name
    assert (found.lengths, found.tokens, found.documents) == (["25%", "50%"], [1000, 2000], [10, 20])
    assert found.prompt_tokens == [142.71, None] and found.context == 4000
    sweep = swept[0].sweep
    for name in ("task", "model", "label", "metric", "n_examples"):
        assert getattr(found, name) == getattr(sweep, name)
    assert found.effective == effective_length([1000, 2000], [each.correct for each in swept], 20)
    assert found.effective.tokens == 1000
    assert found.depth_names == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert found.title == "m: accuracy by length and depth"
    first, last = (each.sweep for each in swept)
    (low, high), most = last.gap_ci95, max(first.gap_ci95[1], last.gap_ci95[1])
    assert found.summary_text() == [
        found.effective.sentence([1000, 2000]),
        f"It is largest at 2,000 tokens: {last.gap:.1f} points (95 % interval at this length "
        f"{low:.1f} to {high:.1f}; 95 % bound for all lengths {most:.1f}). The mean over "
        f"the depths is {first.mean:.1f} % at 1,000 tokens and {last.mean:.1f} % at 2,000, of the same 200 examples; "
        "the model's context is 4,000 tokens.",
    ]
    whole = EffectiveLength(most_gap=20, tokens=2000, low=0, high=2000)
    other = found.model_copy(update={"gap_noise": [50.0, 1.0], "effective": whole})
    assert other.summary_text() == [whole.sentence([1000, 2000]), found.summary_text()[1]]
    write_json(tmp_path / LENGTHS_FILE, found.model_dump(mode="json"))
    assert read_lengths(tmp_path) == read_lengths(tmp_path / LENGTHS_FILE) == found
    assert is_of_lengths(tmp_path) and is_of_lengths(tmp_path / LENGTHS_FILE)
    assert not is_of_lengths(tmp_path / "1000") and not is_of_lengths(tmp_path / "none")
    assert folder_at(tmp_path, 1000) == tmp_path / "1000"


@pytest.mark.parametrize("name", ["tokens", "documents", "prompt_tokens", *FIGURES])
def test_a_map_that_has_not_a_figure_of_each_length_is_refused(swept, name):
    there = length_map(swept, 4000, 20).model_dump()
    with pytest.raises(ValueError, match=f"{name}: 1 .* 2 "):
        LengthMap(**there | {name: there[name][:1]})


@pytest.mark.parametrize("name", ["accuracy", "ci95"])
def test_a_map_that_has_not_a_figure_of_each_depth_is_refused(swept, name):
    there = length_map(swept, 4000, 20).model_dump()
    with pytest.raises(ValueError, match=r"accuracy: \D"):
        LengthMap(**there | {name: [there[name][0], there[name][1][:4]]})


@pytest.mark.parametrize("tokens", [[2000, 1000], [1000, 1000]])
def test_lengths_of_a_map_grow(swept, tokens):
    with pytest.raises(ValueError, match=r"tokens: \D"):
        LengthMap(**length_map(swept, 4000, 20).model_dump() | {"tokens": tokens})
