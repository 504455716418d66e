"""What a sweep and a step of R1 hand to a GPU, counted without one, stays within bounds."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import counts
import gpu


def test_a_sweep_launches_hardly_more_than_plain_generate_and_answers_alike():
    found = counts.count_sweep(examples=4, positions=5, rows=10, new_tokens=8, dtype="float32")
    theirs, ours = found["theirs"], found["ours"]
    assert ours["operations"] <= 1.2 * theirs["operations"]
    assert ours["passes"] <= theirs["passes"] and ours["masked"] == 0
    assert ours["reads"] <= theirs["reads"] and ours["copied_mb"] <= 1.1 * theirs["copied_mb"] + 1


@pytest.mark.parametrize("rows", [2, 20])
def test_a_step_of_r1_reads_at_most_four_scalars_and_loses_as_its_twin_does(rows):
    found = counts.count_step(rows, examples=4, prompt_tokens=60, layers=2, dtype="float32")
    theirs, ours = found["theirs"], found["ours"]
    assert ours["own_reads"] <= 4 and ours["reads"] < theirs["reads"]
    # What is checked once, before the first step, counts here as much as the step itself.
    assert ours["operations"] <= 1.4 * theirs["operations"] and ours["tokens"] < 0.75 * theirs["tokens"]


def test_the_prediction_is_held_against_all_that_cards_took():
    for name, (model, work, seconds) in counts.SEEN.items():
        assert 0.8 < work.predict(model) / seconds < 1.25, name


@pytest.mark.parametrize("name", gpu.PARTS)
def test_what_is_to_be_run_on_a_gpu_is_a_command_of_its_script(name):
    """Each option stands in the script, as one of its own or among the numbers that it takes."""
    for command in (gpu.PARTS[name].command, gpu.PARTS[name].quick):
        script, *words = command.split()
        source = (gpu.ROOT / "benchmarks" / script).read_text()
        for word in words:
            assert not word.startswith("--") or f'"{word}"' in source or f'"{word[2:]}"' in source, word
