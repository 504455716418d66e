"""A task in a YAML file of one's own is a task like any other, and known by what it says."""

import json

import pytest
from conftest import qa_example
from pydantic import ValidationError

from posgap.foundation.errors import PosgapError
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import read_sweep
from posgap.stages.sweep import sweep
from posgap.storage.inputs import read_manifest
from posgap.tasks.placements import Placement, all_placements
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.task import Order
from posgap.tasks.task_file import definition_of

QA = TASKS["qa"]
FILE = f"""\
name: tickets
template: |
{"".join(f"  {line}".rstrip() + chr(10) for line in QA.template.splitlines())}
metric: litm
placements: [1, 3]
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "tickets.yaml").write_text(FILE)
    return tmp_path / "tickets.yaml"


def config(tmp_path, file, **more) -> SweepConfig:
    paths = {"examples": tmp_path / "e.jsonl", "model": "m", "out": tmp_path / "out"}
    return SweepConfig(**paths | {"task": str(file), "n_docs": 3} | more)


def test_a_file_with_the_wording_of_a_task_of_ours_asks_and_scores_as_that_does(tmp_path, file):
    task = TASKS[config(tmp_path, file).task]
    for placement in all_placements(3, 1):
        for order in (Order(), Order("before"), Order("both", 1)):
            example = qa_example(0, 3)
            assert task.prompt(example, placement, order) == QA.prompt(example, placement, order)
    for response in ("Paris", "paris\nLyon", "Lyon\nParis", ""):
        assert task.score(response, ["Paris"]) == QA.score(response, ["Paris"])


def test_placements_of_the_file_are_swept_unless_others_are_asked_for(tmp_path, file):
    task = TASKS[config(tmp_path, file).task]
    assert task.placements(3) == [Placement((1,), 3), Placement((3,), 3)]
    assert task.placements(3, ["2"]) == [Placement((2,), 3)]


def test_a_config_holds_what_the_file_says_so_that_another_text_is_another_task(tmp_path, file):
    before = config(tmp_path, file)
    assert json.loads(before.task)["name"] == "tickets"
    file.write_text(FILE.replace("placements: [1, 3]", "placements: [1, 2]"))
    after = config(tmp_path, file)
    assert before.chosen()["task"] != after.chosen()["task"]
    file.unlink()
    assert config(tmp_path, before.task).task == before.task  # as a manifest gives it back


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name: tickets", "name: qa"), "qa is the name of a task that is there already"),
        (("name: tickets", "name: Two words"), "name"),
        (("{documents}", "{document}"), "braces"),
        (("{question}", "The question"), "must have {question} in it"),
        (("metric: litm", "metric: luck"), "unknown metric 'luck'"),
        (("metric: litm", "metrics: litm"), "metrics"),
        (("Answer:", ""), "three paragraphs"),
        (("name: tickets\n", ""), "name"),
    ],
)
def test_a_file_that_is_no_task_is_refused_by_what_is_wrong(tmp_path, file, change, said):
    assert change[0] in FILE
    file.write_text(FILE.replace(*change))
    with pytest.raises(ValidationError, match=said.replace("{", "\\{").replace("}", "\\}")):
        config(tmp_path, file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises((PosgapError, ValueError), match=r"nowhere\.yaml"):
        definition_of(tmp_path / "nowhere.yaml")


def test_a_sweep_by_a_file_says_its_name_and_keeps_its_definition(tmp_path, file, model_folder):
    write_examples(tmp_path / "e.jsonl", [qa_example(i, 3) for i in range(3)])
    swept = sweep(config(tmp_path, file, model=str(model_folder), max_new_tokens=2))
    result = read_sweep(swept)
    assert (result.task, result.placements) == ("tickets", [[1], [3]])
    assert result.asked_task.prompt(qa_example(0, 3), Placement((1,), 3)) == QA.prompt(
        qa_example(0, 3), Placement((1,), 3)
    )
    again = SweepConfig(**read_manifest(swept)["config"])
    assert TASKS[again.task].name == "tickets"
