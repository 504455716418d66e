"""A task in a YAML file of one's own is a task like any other, and known by what it says."""

import json
import re
from pathlib import Path

import pytest
from command_line import fails, run, shown
from endpoint import Endpoint, served
from examples import prompt_text, qa_example
from pydantic import ValidationError

from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.placements import Placement, all_placements
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder
from posgap.tasks.task_file import definition_of
from posgap.verbs.sweep import sweep_model

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
        for order in (PromptOrder(), PromptOrder("before"), PromptOrder("both", 1)):
            example = qa_example(0, 3)
            own, of_qa = (prompt_text(each, example, placement, order) for each in (task, QA))
            assert own == of_qa
    for response in ("Paris", "paris\nLyon", "Lyon\nParis", ""):
        assert task.score(response, ["Paris"]) == QA.score(response, ["Paris"])


def test_placements_of_the_file_are_swept_unless_others_are_asked_for(tmp_path, file):
    task = TASKS[config(tmp_path, file).task]
    assert task.choose_placements(3) == [Placement((1,), 3), Placement((3,), 3)]
    assert task.choose_placements(3, ["2"]) == [Placement((2,), 3)]


def test_a_config_holds_what_the_file_says_so_that_another_text_is_another_task(tmp_path, file):
    before = config(tmp_path, file)
    assert json.loads(before.task)["name"] == "tickets"
    file.write_text(FILE.replace("placements: [1, 3]", "placements: [1, 2]"))
    after = config(tmp_path, file)
    assert before.parameter_values()["task"] != after.parameter_values()["task"]
    file.unlink()
    assert config(tmp_path, before.task).task == before.task  # as a manifest gives it back


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("name: tickets", "name: qa"), "qa is "),
        (("name: tickets", "name: Two words"), "`name`: "),
        (("{documents}", "{document}"), "`template`: may have {documents}, {question} "),
        (("{question}", "The question"), "`template`: must have {question} "),
        (("metric: litm", "metric: luck"), "'luck'"),
        (("metric: litm", "metrics: litm"), "`metrics`"),
        (("Answer:", ""), "`template`: must have three paragraphs"),
        (("name: tickets\n", ""), "`name`"),
        (("metric: litm", "metrc: em"), "`metrc`; did you mean metric?"),
        (("metric: litm", "colour: red"), "`colour`; it may have name, template, document"),
        (("[1, 3]", "[1, 0]"), "`placements.1`"),
        (("[1, 3]", "[1, 3, 1]"), "`placements`"),
        (("[1, 3]", "1,3"), "`placements`"),
        (("metric: litm", "document: '{text} {title[0]}'"), "`document`: may have {text}, {title}, {number} "),
        (("metric: litm", "document: '{text} {number:99999999}'"), "`document`: may have "),
        (("metric: litm", "document: '{text} {title!r}'"), "`document`: may have "),
        (("metric: litm", "document: '{text} {'"), "`document`: may have "),
        (("metric: litm", "document: '{title}'"), "`document`: must have {text} "),
        (("metric: litm", "target: the answer"), "`target`: must have {answer} "),
        (("metric: litm", "closed_book: '{question} {documents}'"), "`closed_book`: may have {question} "),
        (("{documents}", "{documents} {documents}"), "`template`: must have {documents} "),
        ((FILE, "- tickets"), "`name: tickets`"),
        ((FILE, ""), "`name: tickets`"),
        ((FILE, "name: [a"), "in line 1"),
        ((FILE, f"{FILE}name: other"), "'name'"),
    ],
)
def test_a_file_that_is_no_task_is_refused_by_what_is_wrong(tmp_path, file, change, named):
    assert change[0] in FILE
    file.write_text(FILE.replace(*change))
    with pytest.raises(ValidationError, match=re.escape(named)):
        config(tmp_path, file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises((PosgapError, ValueError), match=r"nowhere\.yaml"):
        definition_of(tmp_path / "nowhere.yaml")


def test_a_sweep_by_a_file_says_its_name_and_keeps_its_definition(tmp_path, file, model_folder):
    write_examples(tmp_path / "e.jsonl", [qa_example(i, 3) for i in range(3)])
    swept = sweep_model(config(tmp_path, file, model=str(model_folder), max_new_tokens=2))
    result = read_sweep(swept)
    assert (result.task, result.placements) == ("tickets", [[1], [3]])
    assert result.asked_task.template == QA.template
    again = SweepConfig(**read_manifest(swept)["config"])
    assert TASKS[again.task].name == "tickets"


def test_the_command_line_takes_a_file_and_tells_two_texts_of_one_name_apart(
    capsys, tmp_path, model_folder, monkeypatch
):
    """From another folder, with spaces in its path; what changed is named, in prompts or beside them."""
    write_examples(tmp_path / "e.jsonl", [qa_example(i, 3) for i in range(3)])
    (tmp_path / "my tasks").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    texts = {"first": FILE, "worded": FILE.replace("Answer:", "Label:"), "guessed": f"{FILE}chance: 0.5\n"}
    texts["written"] = f"{FILE}document: '{{number}} {{text}}'\n"
    asked = ["--examples", "../e.jsonl", "--model", model_folder, "--n-docs", 3, "--max-new-tokens", 2]
    for name, text in texts.items():
        (tmp_path / "my tasks" / "my own.yaml").write_text(text)
        words = ["sweep", "--task", "../my tasks/my own.yaml", *asked, "--max-unanswered", 100, "--out", name]
        assert run(capsys, *words)[0] == 0
    for name, said in (("worded", "prompt ("), ("written", "prompt ("), ("guessed", "tickets with chance ")):
        complaint = fails(capsys, "compare", "first", name, "--out", f"compared-{name}")
        assert "not asked alike" in complaint and said in complaint
    assert run(capsys, "compare", "first", "worded", "--allow", "prompt", "--out", "allowed")[0] == 0
    gate = ["gate", "--base", "first", "--candidate", "guessed", "--out", "gate"]
    assert "tickets with chance " in fails(capsys, *gate)


def test_the_command_line_says_what_is_wrong_with_a_file_and_still_knows_the_names(capsys, tmp_path, file):
    words = ["sweep", "--examples", tmp_path, "--model", "m", "--out", tmp_path / "out", "--task"]
    file.write_text(FILE.replace("metric", "metrik"))
    assert "--task: " in (said := fails(capsys, *words, file)) and "no field `metrik`; did you mean metric?" in said
    assert "nowhere.yml: no such file" in fails(capsys, *words, tmp_path / "nowhere.yml")
    assert "'tickets' is not one of 'kv', 'qa'" in fails(capsys, *words, "tickets")
    assert "|FILE.yaml]" in shown("sweep")


def test_prompts_whose_documents_are_written_otherwise_have_another_digest(tmp_path, file):
    """A teacher's responses to them, for one, are not taken for those to the others."""
    tasks = [TASKS[config(tmp_path, file).task]]
    file.write_text(f"{FILE}document: '{{number}} {{text}}'\n")
    tasks.append(TASKS[config(tmp_path, file).task])
    assert tasks[0].template == tasks[1].template
    assert len({TextPromptBuilder(task, 5).digest() for task in tasks}) == 2


PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = dict(zip(("shots", "counting"), re.findall(r"```json\n(\{.+\})\n```", PAGE)))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("turns", "User: The "),
        ("shots", "Word: daisy\nLabel: 13\nWord: oak\nLabel: 58\n\nWord: rose\nLabel:"),
        (
            "counting",
            "Anna, Tom, Anna, Eva, Anna.\nIda, Max, Max, Leo, Max.\n\nQuestion: How many times",
        ),
    ],
)
def test_the_tasks_on_the_page_of_tasks_can_be_asked(tmp_path, capsys, name, shown):
    """By a model that knows the right answers, at every position; one that repeats the prompt is never right."""
    (definition,) = re.findall(rf"```yaml\n(name: {name}\n.+?)```", PAGE, re.DOTALL)
    (tmp_path / "task.yaml").write_text(definition)
    examples = tmp_path / "e.jsonl"
    if name in EXAMPLES:
        (tmp_path / "own.jsonl").write_text(EXAMPLES[name])
        made = ["data", "import", "--format", "own", "--input", tmp_path / "own.jsonl"]
    else:
        made = ["data", "make", "needle", "--n-examples", 1, "--n-docs", 2]
    assert run(capsys, *made, "--out", examples)[0] == 0
    (example,) = read_examples(examples)
    answers = {"knows": lambda text: example.answers[0], "repeats": lambda text: text.split("\n\n", 1)[1]}
    for model, answer in answers.items():
        with served(Endpoint(answer)) as endpoint:
            words = ["--task", tmp_path / "task.yaml", "--examples", examples, "--n-docs", 2, "--backend", "openai"]
            words += ["--base-url", endpoint.url, "--model", "m", "--positions", "1,2", "--out", tmp_path / model]
            assert run(capsys, "sweep", *words)[0] == 0
        assert any(shown in text for text in endpoint.seen)
        assert read_sweep(tmp_path / model).accuracy == [100 * (model == "knows")] * 2
