"""posgap as a library: what it says is what the command line says."""

import logging
import re
import shutil

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from endpoint import Endpoint, served
from examples import kv_example
from places import ROOT
from s3 import put
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import posgap
from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import BadModel, BadOption, BadOutput, PosgapError
from posgap.gating.evidence import FILES
from posgap.gating.verdict import judge
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.options.sweep import SweepConfig
from posgap.verbs.sweep import sweep_model as sweep_stage

OPTIONS = {"n_docs": 4, "max_new_tokens": 2, "label": "tiny"}


@pytest.fixture(scope="module")
def rows():
    return [kv_example(number) for number in range(4)]


@pytest.fixture
def in_memory(model_folder):
    return AutoModelForCausalLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def swept(model_folder, rows):
    """A sweep of a model in memory, which no test changes."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)
    return posgap.sweep(model, rows, tokenizer=tokenizer, **OPTIONS)


@pytest.fixture(scope="module")
def by_stage(tmp_path_factory, rows, model_folder):
    """The folder of the same sweep, which no test changes."""
    folder = tmp_path_factory.mktemp("by-stage")
    write_examples(folder / "e.jsonl", rows)
    config = SweepConfig(examples=folder / "e.jsonl", model=str(model_folder), out=folder / "stage", **OPTIONS)
    return sweep_stage(config)


def figures(sweep) -> dict:
    """All of a sweep's figures that do not say where the model came from, or how long it took."""
    return sweep.model_dump(mode="json", exclude={"model", "model_digest", "spent"})


def test_a_model_in_memory_a_folder_and_the_stage_say_the_same(swept, by_stage, rows, model_folder):
    named = posgap.sweep(model_folder, rows, **OPTIONS)
    assert figures(swept.figures) == figures(named.figures) == figures(read_sweep(by_stage))
    assert swept.predictions == named.predictions == read_predictions(by_stage)
    assert named.figures.model_digest == read_sweep(by_stage).model_digest
    assert posgap.load(by_stage).predictions == swept.predictions


def test_what_is_saved_is_what_the_stage_writes_and_is_read_back(swept, by_stage, tmp_path):
    folder = swept.save(tmp_path / "saved")
    assert (folder / "predictions.jsonl").read_bytes() == (by_stage / "predictions.jsonl").read_bytes()
    names = {file.name for file in by_stage.iterdir()} - {"manifest.json"}
    assert {file.name for file in folder.iterdir()} == names
    again = posgap.load(folder)
    assert (again.figures, again.predictions) == (swept.figures, swept.predictions)
    with pytest.raises(BadOutput, match=f"^{folder}: "):
        swept.save(folder)


def test_frame_and_curve_have_every_response_and_figure(swept):
    assert list(swept.frame["id"].unique()) == [f"kv-{i}" for i in range(4)] and len(swept.frame) == 16
    assert (100 * swept.frame.groupby("position")["correct"].mean()).tolist() == swept.figures.accuracy
    assert swept.curve["accuracy"].tolist() == swept.figures.accuracy
    assert list(zip(swept.curve["low"], swept.curve["high"])) == swept.figures.ci95
    assert swept.gap == (swept.figures.gap, *swept.figures.gap_ci95) and float(swept.gap) == swept.figures.gap
    assert str(posgap.Estimate(38.46, 31.02, 46.2)) == "38.5 (31.0 to 46.2)"


def test_a_borrowed_model_is_given_back_as_it_was(in_memory, rows):
    model, tokenizer = in_memory
    model.train()
    model.model.layers[0].eval()  # somebody freezes a part
    tokenizer.pad_token = None
    model.generation_config.temperature = 0.3
    before = torch.random.get_rng_state()
    posgap.sweep(model, rows, tokenizer=tokenizer, **OPTIONS)
    assert model.training and not model.model.layers[0].training and model.model.layers[1].training
    assert model.generation_config.temperature == 0.3 and tokenizer.pad_token is None
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_is_written_or_tracked(in_memory, rows, tmp_path, mlflow_store):
    model, tokenizer = in_memory
    posgap.sweep(model, rows, tokenizer=tokenizer, **OPTIONS)
    assert not mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert not list(tmp_path.iterdir())


def test_progress_is_shown_unless_the_call_is_quiet(in_memory, rows, capsys, monkeypatch):
    model, tokenizer = in_memory
    logger = logging.getLogger("posgap")
    for each in (logger, logging.getLogger()):  # as in a process of its own, whatever other tests left
        monkeypatch.setattr(each, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    logger.manager._clear_cache()
    loggers_before = logger.handlers[:]
    posgap.sweep(model, rows, tokenizer=tokenizer, **OPTIONS)
    shown = capsys.readouterr().err
    assert "posgap | 16 prompts: 4 examples, each at 4 placements\n" in shown
    assert "sweep of tiny: 16 of 16 in 00:00" in shown
    posgap.sweep(model, rows, tokenizer=tokenizer, quiet=True, **OPTIONS)
    assert capsys.readouterr().err == ""
    assert logging.getLogger("posgap").handlers == loggers_before


def test_an_endpoint_is_swept_by_its_address(rows):
    with served(Endpoint(lambda text: "0")) as endpoint:
        there = posgap.sweep(endpoint.url, rows, name="served", **OPTIONS)
    assert there.figures.model == "served" and set(there.frame["response"]) == {"0"}
    with pytest.raises(PosgapError, match="^http://localhost:1/v1: "):
        posgap.sweep("http://localhost:1/v1", rows)


def test_so_many_examples_are_made_for_the_task():
    with served(Endpoint()) as endpoint:
        retrieved = posgap.sweep(endpoint.url, 3, name="served", n_docs=5)
    assert retrieved.figures.accuracy == [100.0] * 5 and retrieved.frame["id"].nunique() == 3


def test_rows_come_from_wherever_people_have_them(tmp_path):
    document = {"title": "t", "text": "x"}
    row = {"question": "q", "answers": ["a"], "gold": [document], "distractors": [document] * 2}
    expected = posgap.examples([row])
    assert [example.id for example in posgap.examples([row, row])] == ["1", "2"]
    assert posgap.examples(pd.DataFrame([row])) == expected
    write_examples(tmp_path / "e.jsonl", expected)
    assert posgap.examples(tmp_path / "e.jsonl") == posgap.examples(str(tmp_path / "e.jsonl")) == expected
    frame = pd.DataFrame([row | {"answers": np.array(["a"]), "gold": np.array([document])}])
    assert posgap.examples(frame) == expected
    assert len(posgap.examples([row] * 5, limit=3)) == 3
    # Key-value rows beside others in one frame have empty cells.
    records = [["k", "v"], ["l", "w"]]
    kv = {"question": "k", "answers": ["v"], "key": "k", "value": "v", "records": records}
    for mixed in ([row, kv], pd.DataFrame([row, kv])):
        assert [type(example).__name__ for example in posgap.examples(mixed)] == ["Example", "KVExample"]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "^examples: "),
        ([{"question": "q"}], "examples:1: .*passages.* question"),
        (["text"], "row 1: .* str$"),
        ([{"question": 1, "answers": ["a"], "gold": [], "distractors": []}], "row 1: .*question"),
        ("missing.jsonl", "^missing.jsonl: "),
        (5, "^examples: .* int$"),
    ],
)
def test_bad_rows_get_one_line(rows, complaint):
    with pytest.raises(PosgapError, match=complaint):
        posgap.examples(rows)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tokenizer": None}, "`tokenizer`"),
        ({"backend": "vllm"}, "^backend vllm: .* transformers "),
        ({"depth": 3}, "^posgap.sweep: .* depth; "),
        ({"out": "x"}, "^posgap.sweep: out "),
        ({"modle": 3}, r"^posgap.sweep: .* modle; .* model\?$"),
        ({"n_docs": 99}, "needs?|distractors"),
        ({"task": "k v"}, "task"),
        ({"positions": "9"}, "position 9: .* 1..4"),
    ],
)
def test_bad_options_get_one_line(in_memory, rows, options, complaint):
    model, tokenizer = in_memory
    with pytest.raises(PosgapError, match=complaint) as error:
        posgap.sweep(model, rows, **{"tokenizer": tokenizer, **OPTIONS, **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [None, object(), 3])
def test_what_is_no_model_gets_one_line(rows, model):
    with pytest.raises(PosgapError, match=f" {type(model).__name__}"):
        posgap.sweep(model, rows)


def test_other_models_that_cannot_be_asked_get_one_line(in_memory, rows):
    model, tokenizer = in_memory
    with pytest.raises(PosgapError, match=" LlamaModel"):
        posgap.sweep(model.model, rows, tokenizer=tokenizer)
    with pytest.raises(BadModel, match="^posgap.sweep: .* meta "):
        posgap.sweep(model.to("meta"), rows, tokenizer=tokenizer)
    with pytest.raises(BadOption, match="`tokenizer`"):
        posgap.sweep(tiny_model.untrained(0), rows, tokenizer="tokenizer")
    with pytest.raises(BadOption, match="^posgap.gate: .*candidate"):
        posgap.gate(None)


def test_a_pipeline_brings_model_and_tokenizer(in_memory, rows, swept):
    model, tokenizer = in_memory
    together = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert posgap.sweep(together, rows, **OPTIONS).predictions == swept.predictions


def test_too_many_unanswered_prompts_give_no_figures(rows):
    with served(Endpoint(lambda text: "")) as endpoint, pytest.raises(PosgapError, match=": .*max_unanswered"):
        posgap.sweep(endpoint.url, rows, name="silent", **OPTIONS)


def test_sweeps_are_compared_as_the_command_does(swept, tmp_path):
    same = swept.compare(swept)
    assert same.gap.value == same.mean.value == 0 and "cannot be told from" in same.verdict
    assert same.curve["difference"].tolist() == [0.0] * 4
    assert "tiny (this)" in str(same) and "tiny (this)" in same.report(tmp_path / "c.html").read_text()
    other = posgap.SweepResult(swept.figures.model_copy(update={"task": "qa"}), swept.predictions)
    with pytest.raises(PosgapError, match=r": task \("):
        swept.compare(other)


@pytest.mark.full
def test_the_gate_judges_results_as_it_judges_folders(swept, tmp_path):
    folder = swept.save(tmp_path / "candidate")
    demands = {"least_examples": 4, "max_gap": 50}
    verdict = posgap.gate(swept, swept, **demands)
    config = GateConfig(candidate=folder, base=folder, out=tmp_path / "out", **demands)
    policy = posgap.api.library.Policy.of(config)
    assert verdict.rules == judge(folder, folder, None, policy).rules
    assert posgap.gate(folder, folder, **demands).rules == verdict.rules
    assert {rule.name for rule in posgap.gate(swept).rules} < {rule.name for rule in verdict.rules}
    with pytest.raises(PosgapError, match=r"posgap\.gate: .*most_gap"):
        posgap.gate(swept, most_gap=3)


@pytest.mark.full
def test_what_lies_in_s3_is_read_from_there(swept, rows, bucket, tmp_path):
    write_examples(tmp_path / "e.jsonl", rows)
    put(f"{bucket}/e.jsonl", (tmp_path / "e.jsonl").read_bytes())
    for file in swept.save(tmp_path / "saved").iterdir():
        put(f"{bucket}/swept/{file.name}", file.read_bytes())
    assert posgap.examples(f"{bucket}/e.jsonl") == rows
    assert posgap.load(f"{bucket}/swept").predictions == swept.predictions
    verdict = posgap.gate(f"{bucket}/swept", swept, least_examples=4)
    assert verdict.rules == posgap.gate(swept, swept, least_examples=4).rules
    with pytest.raises(PosgapError, match="s3:///x: .*s3://bucket/key"):
        posgap.load("s3:///x")


@pytest.mark.full
def test_judging_draws_and_writes_no_page(swept, monkeypatch):
    def unasked(*_, **__):
        raise AssertionError

    monkeypatch.setattr("posgap.measurement.sweep_folder.write_readable", unasked)
    assert posgap.gate(swept, swept).evidence["candidate"].files.keys() == {*FILES} - {"judgements.jsonl"}


@pytest.mark.usefixtures("pictures")
def test_a_picture_and_a_page_say_the_figures(swept, tmp_path):
    swept.plot().savefig(tmp_path / "gap.png")
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")
    page = swept.report(tmp_path / "gap.html").read_text(encoding="utf-8")
    assert f"{swept.figures.gap:.1f}" in page and "tiny" in page
    assert repr(swept).startswith("<SweepResult 'tiny': task kv, 4 examples at 4 placements, gap ")


def test_every_public_name_is_there():
    for name in posgap._LAZY:
        assert getattr(posgap, name).__doc__, name
    assert set(posgap._LAZY) <= set(dir(posgap))
    with pytest.raises(AttributeError, match="'swep'"):
        posgap.swep  # noqa: B018


DOCS = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.usefixtures("pictures")
def test_the_examples_of_the_docs_run_as_they_stand(tmp_path, monkeypatch, model_folder):
    """But for the model, which is a tiny one under the hub's name."""
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        shutil.copytree(model_folder, name)
    write_examples(tmp_path / "examples.jsonl", [kv_example(number, 20) for number in range(3)])
    # The tiny model reads no long keys.
    monkeypatch.setattr(
        "posgap.api.library.made_examples", lambda task, n, n_docs, _: [kv_example(i, n_docs) for i in range(2)]
    )
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS, flags=re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, names)
    assert {file.name for file in tmp_path.glob("*.*")} >= {"gap.png", "wrong.csv", "base.html"}
    assert "cannot be told from" in names["base"].compare(names["candidate"]).verdict
    assert [example.question for example in names["mine"]] == ["How long is the bridge?"]


def test_the_readme_shows_lines_of_the_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert 'posgap.sweep("HuggingFaceTB/SmolLM2-135M-Instruct").plot()' in readme
    first, second = re.findall(r"```python\n.*?```", DOCS, flags=re.S)[:2]
    assert len(first.splitlines()) - 2 <= 4 and len(second.splitlines()) - 2 <= 10
