"""The tasks on several relevant documents at a distance: the grid, and what position and distance do apart."""

import re

import numpy as np
import pytest
from endpoint import Endpoint, served
from examples import prompt_text

import posgap
from posgap.data.config import MakeConfig
from posgap.data.made import made_examples
from posgap.data.readers import read_hotpotqa
from posgap.data.verbs import make
from posgap.foundation.errors import PosgapError
from posgap.gating.demands import Policy
from posgap.gating.evidence import evidence_gaps
from posgap.measurement.figures import summarize
from posgap.measurement.grid import grid_of
from posgap.measurement.report import charts, page
from posgap.measurement.sweeps import read_sweep
from posgap.tasks.metrics import METRICS
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.spans import distance, distance_category


@pytest.mark.parametrize(
    ("positions", "step", "name"),
    [((3, 4), 1, "distance 1"), ((2, 6, 10), 4, "distance 4"), ((2, 6, 9), 0, "uneven"), ((6, 2), 0, "uneven")],
)
def test_the_category_is_the_distance(positions, step, name):
    assert (distance(positions), distance_category(positions)) == (step, name)


@pytest.mark.parametrize("n_docs", [4, 5, 20])
def test_the_grid_has_every_distance_at_every_first_position(n_docs):
    placements = TASKS["spans"].choose_placements(n_docs)
    cells = [(distance(p.positions), p.positions[0]) for p in placements]
    steps, firsts = ({cell[i] for cell in cells} for i in (0, 1))
    assert len(cells) == len(set(cells)) == len(steps) * len(firsts) and {1} <= steps and {1} <= firsts
    assert max(p.positions[-1] for p in placements) == n_docs  # the farthest reach the end
    assert all(len(p.positions) == 2 for p in placements)


def test_too_few_documents_for_a_grid_are_named():
    with pytest.raises(PosgapError, match="n_docs=3: too few for two gold documents at two distances; give 4 or more"):
        TASKS["spans"].choose_placements(3)
    assert [p.positions for p in TASKS["spans"].choose_placements(3, ["1+3"])] == [(1, 3)]


def test_all_and_share_of_the_answers():
    answers = ["12", "345", "the Abbey"]
    for response, share in (("345 and 12, abbey", 1), ("12, 3456", 1 / 3), ("", 0), ("12 345", 2 / 3)):
        assert METRICS["share_of"].score(response, answers) == pytest.approx(share)
        assert METRICS["all_of"].score(response, answers) is (share == 1)
    assert METRICS["share_of"].score("a", []) == 0 and METRICS["all_of"].score("a", []) is False


def test_made_examples_ask_for_a_number_of_each_gold_document(tmp_path):
    make(MakeConfig(kind="spans", out=tmp_path / "s.jsonl", n_examples=5, n_docs=8))
    for example in read_examples(tmp_path / "s.jsonl"):
        assert len(example.gold) == len(example.answers) == 2 and len(example.distractors) == 6
        for document, answer in zip(example.gold, example.answers):
            attribute = re.search(rf"The ([a-z ]+) of {document.title} is {answer}\.", document.text)[1]
            assert f"the {attribute} of {document.title}" in example.question
            assert not any(answer in d.text for d in example.distractors)
        # What `sft` trains on has every number, since the first alone would be no right response.
        task = TASKS["spans"]
        placement = task.choose_placements(24)[0]
        assert task.score(task.right_response(example, placement), task.right_answers(example, placement)) == 1
    assert len(next(made_examples(TASKS["spans"], 1, 12, 0)).gold) == 2


def test_one_needle_is_what_it_was(tmp_path):
    make(MakeConfig(kind="needle", out=tmp_path / "n.jsonl", n_examples=1, n_docs=3))
    (example,) = read_examples(tmp_path / "n.jsonl")
    assert example.question.startswith("What is the ") and len(example.answers) == len(example.gold) == 1


def test_position_and_distance_are_told_apart():
    """Scores that fall by 10 points a first position and by 2 points a step of distance, by construction."""
    placements = [[first, first + step] for step in (1, 4, 7) for first in (1, 3, 6)]
    share = np.array([0.9 - 0.1 * (first - 1) - 0.02 * (second - first) for first, second in placements])
    correct = np.array([share > (i + 0.5) / 1000 for i in range(1000)], dtype=float)
    grid = grid_of(correct, placements, seed=0)
    assert grid.by_position.values == [1, 3, 6] and grid.by_distance.values == [1, 4, 7]
    assert grid.by_position.gap == pytest.approx(50, abs=0.2) and grid.by_distance.gap == pytest.approx(12, abs=0.2)
    assert grid.far_minus_near == pytest.approx(-12, abs=0.2)
    assert grid.far_minus_near_ci95[0] < -12 < grid.far_minus_near_ci95[1] < 0
    assert grid.by_distance.gap_ci95[0] < 12 < grid.by_distance.gap_ci95[1]
    assert grid_of(correct[:, :8], placements[:8], 0) is None  # a cell is missing
    assert grid_of(correct[:, :3], placements[:3], 0) is None  # one distance
    assert grid_of(correct[:, :3], [[1], [2], [3]], 0) is None


def test_pairs_of_other_tasks_have_no_grid():
    placements, correct = [[1, 2], [1, 3], [2, 3], [2, 4]], np.eye(4)
    of_spans = summarize(correct, placements, 0, [distance_category(p) for p in placements])
    assert of_spans["grid"] and list(of_spans["by_category"]) == ["distance 1", "distance 2"]
    assert "grid" not in summarize(correct, placements, 0, ["connected", "disconnected"] * 2)


def reads_near(text: str) -> str:
    """A model that is biased by construction: it knows the facts of the first half, and two if they stand close by."""
    documents = [line for line in text.splitlines() if line.startswith("Document [")]
    asked = re.findall(r"the ([a-z ]+) of (\w+ \w+)", text.rpartition("Question:")[2])
    places = {
        i: m[1] for i, d in enumerate(documents) for a, of in asked if (m := re.search(rf"{a} of {of} is (\d+)", d))
    }
    first, last = min(places), max(places)
    near = last - first <= 2 or first == 0
    return " and ".join(places.values()) if near and first < len(documents) / 2 else places[first]


def test_a_sweep_of_spans_and_what_its_page_shows(tmp_path):
    with served(Endpoint(reads_near)) as endpoint:
        result = posgap.sweep(endpoint.url, 6, "spans", name="near", n_docs=8)
        shares = posgap.sweep(endpoint.url, 6, "spans", name="near", n_docs=8, metric="share_of")
    result.save(tmp_path / "swept")
    swept = read_sweep(tmp_path / "swept")
    assert swept.grid == result.figures.grid and swept.grid.by_distance.values == [1, 2, 3, 4]
    accuracy = {(distance(p), p[0]): value for p, value in zip(swept.placements, swept.accuracy)}
    assert accuracy == {(d, f): 100 * (f < 5 and (d <= 2 or f == 1)) for d in (1, 2, 3, 4) for f in (1, 2, 3, 4)}
    assert swept.grid.far_minus_near == -75 and swept.grid.by_position.gap == 50
    assert set(shares.figures.accuracy) == {50.0, 100.0}
    # The later document reaches where the first cannot.
    assert evidence_gaps(swept, Policy(least_examples=5)) == []
    text = page([swept], "title")
    assert "accuracy by distance and first position" in text and 'aria-label="Accuracy by distance"' in text
    assert charts([swept])["grids"][0]["rows"][0][0] == 1
    assert "By absolute position, averaged over distances, the gap is 50.0 points" in text


def test_hotpotqa_s_two_documents_at_distances(hotpot_file):
    examples = [example for _, example in read_hotpotqa(hotpot_file) if example][:5]
    task = TASKS["spans"]
    for placement in task.choose_placements(10):
        for example in examples:
            prompt = prompt_text(task, example, placement)
            lines = [line for line in prompt.splitlines() if line.startswith("Document [")]
            assert [f"(Title: {d.title})" in lines[p - 1] for d, p in zip(example.gold, placement.positions)] == [
                True
            ] * 2
