"""A package adds one choice of each kind: the whole of posgap knows it (docs/extending.md)."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from examples import kv_example, qa_example
from places import ROOT
from warm import posgap_on_path  # noqa: F401  a fixture

from posgap.data.reading import read_examples, write_examples
from posgap.foundation.files import read_json, read_jsonl, write_jsonl
from posgap.foundation.registry import Registry
from posgap.options.table import VERBS  # its verbs, once read, make every registry
from posgap.tasks.content import content_key

PACKAGE = ROOT / "tests" / "extension"


@pytest.fixture(scope="module")
def posgap(tmp_path_factory):
    """Runs commands of posgap, one after the other, each in a process that sees the package as installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, site, dirs_exist_ok=True)

    def run(
        *commands: list[object], entry_points: str = "", more: dict[str, str] | None = None
    ) -> list[subprocess.CompletedProcess]:
        if entry_points:
            shutil.copytree(site, other := site.with_name("other"), dirs_exist_ok=True)
            (other / "acme_posgap-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
            for name, text in (more or {}).items():
                (other / "acme_posgap" / name).write_text(text)
        environment = os.environ | {"PYTHONPATH": str(other if entry_points else site)}
        return [
            subprocess.run(["posgap", *map(str, words)], env=environment, capture_output=True, text=True, timeout=300)
            for words in commands
        ]

    return run


def codes(done: list[subprocess.CompletedProcess]) -> list[int]:
    return [each.returncode for each in done]


def said(done: list[subprocess.CompletedProcess]) -> str:
    return "".join(each.stderr for each in done)


@pytest.mark.full
def test_help_and_a_sweep_know_a_package_s_task_metric_and_backend(posgap, tmp_path):
    write_examples(tmp_path / "e.jsonl", [qa_example(i) for i in range(3)])
    answer = qa_example(1).answers[0]
    sweep = ["sweep", "--task", "notes", "--metric", "begins", "--backend", "rule", "--said", f"{answer} it is"]
    sweep += ["--examples", tmp_path / "e.jsonl", "--model", "none", "--n-docs", 3, "--out", tmp_path / "swept"]
    sweep += ["--baselines", "misled"]
    done = posgap(["sweep", "--help-all"], sweep)
    assert codes(done) == [0, 0], said(done)
    shown = " ".join(done[0].stdout.split())
    assert all(words in shown for words in ("notes: the label of a note", "begins: the response begins", "--said TEXT"))
    swept = read_json(tmp_path / "swept" / "sweep.json")
    right = [qa_example(i).answers[0] == answer for i in range(3)]
    assert (swept["task"], swept["metric"], list(swept["baselines"])) == ("notes", "begins", ["misled"])
    assert swept["accuracy"] == [pytest.approx(100 * sum(right) / 3)] * 3 and any(right)


@pytest.mark.full
def test_data_make_knows_a_package_s_kind_and_its_option(posgap, tmp_path):
    make = ["data", "make", "roll", "--n-examples", 2, "--step", 5, "--seed", 1, "--out", tmp_path / "made.jsonl"]
    done = posgap(
        make, [*make, "--distractors", "bm25"], ["data", "make", "kv", "--step", 1, "--out", tmp_path / "kv.jsonl"]
    )
    assert codes(done) == [0, 2, 2], said(done)
    assert "`distractors` is an option of qa, not of roll" in done[1].stderr
    assert "`step` is an option of roll, not of kv" in done[2].stderr
    texts = [[d.text for d in (*e.gold, *e.distractors)] for e in read_examples(tmp_path / "made.jsonl")]
    assert texts == [["1", "6", "11"], ["2", "7", "12"]]


@pytest.mark.full
def test_distillation_knows_a_package_s_method_and_its_parameter(posgap, tmp_path, model_folder):
    examples = [kv_example(i) for i in range(4)]
    write_examples(tmp_path / "e.jsonl", examples)
    responses = {"placement": [1], "n_docs": 5, "response": "0", "token_ids": [25, 2], "correct": True}
    write_jsonl(tmp_path / "responses.jsonl", [{"id": e.id, "content": content_key(e), **responses} for e in examples])

    def distill(temperature: float) -> list[object]:
        words = ["distill", "--method", "reverse-kl", "--kl-temperature", temperature, "--k", 2, "--epochs", 1]
        words += ["--examples", tmp_path / "e.jsonl", "--responses", tmp_path / "responses.jsonl"]
        return [*words, "--model", model_folder, "--out", tmp_path / f"at-{temperature:g}"]

    done = posgap(distill(1.0), distill(100.0), distill(-1.0))
    assert codes(done) == [0, 0, 2], said(done)
    assert "--kl-temperature: Input should be greater than 0" in done[2].stderr
    first = [next(read_jsonl(tmp_path / folder / "history.jsonl"))[1]["loss"] for folder in ("at-1", "at-100")]
    assert first[0] > 100 * first[1] > 0  # hot distributions are nearly the same
    config = read_json(tmp_path / "at-1" / "manifest.json")["config"]
    assert (config["method"], config["kl_temperature"]) == ("reverse-kl", 1)


@pytest.mark.full
def test_the_gate_and_the_search_know_a_package_s_rule_and_curve(posgap, tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(3)])
    options = ["--examples", tmp_path / "e.jsonl", "--model", model_folder, "--n-docs", 4, "--max-new-tokens", 2]
    sweep = ["sweep", *options, "--backend", "rule", "--said", kv_example(0).value, "--out", tmp_path / "swept"]
    gate = ["gate", "--candidate", tmp_path / "swept", "--base", tmp_path / "swept", "--out", tmp_path / "gate"]
    write_examples(tmp_path / "more.jsonl", [kv_example(i) for i in range(8)])
    compared = ["mitigate", *options, "--examples", tmp_path / "more.jsonl", "--methods", "reversed"]
    compared += ["--backend", "rule", "--said", "no idea", "--out", tmp_path / "compared"]
    search = ["scale", "search", *options, "--curve", "knee", "--knees", 2, "--generations", 1, "--population", 3]
    done = posgap(
        sweep,
        [*gate, "--least-worst", 99],
        [*search, "--out", tmp_path / "search"],
        compared,
    )
    assert codes(done)[:2] == [0, 3] and codes(done)[3] == 0, said(done)
    (found,) = [each for each in read_json(tmp_path / "compared" / "mitigate.json")["found"] if each["measured"]]
    assert found["code"].startswith("def reorder(passages)") and not found["command"]
    rulings = {rule["name"]: rule for rule in read_json(tmp_path / "gate" / "gate.json")["rules"]}
    assert not rulings["floor"]["passed"] and rulings["floor"]["threshold"] == 99
    if codes(done)[2] == 0:
        scaling = read_json(tmp_path / "search" / "scaling.json")
        assert scaling["curve"]["kind"] == "knee" and len(scaling["control_points"]) == 4
    else:
        # An untrained model: the search says so at once, runs, and says so again.
        assert "the search fails unless some factors change that" in done[2].stderr
        assert "answers none of the questions correctly" in done[2].stderr.splitlines()[-1]


@pytest.mark.usefixtures("mlflow_store")
def test_the_compiled_pipeline_and_its_form_know_a_package_s_method_and_parameters(posgap, tmp_path, model_folder):
    for name, first in {"train": 0, "eval": 9}.items():
        write_examples(tmp_path / f"{name}.jsonl", [kv_example(first + i) for i in range(3)])
    form = ["preflight", "--data-train", tmp_path / "train.jsonl", "--data-eval", tmp_path / "eval.jsonl"]
    form += ["--base-model", model_folder, "--n-docs", 4, "--inference-backend", "transformers"]
    form += [
        "--methods",
        "r1+reverse-kl",
        "--settings",
        json.dumps({"kl_temperature": 2.0, "least_worst": 50}),
        "--out",
        tmp_path / "form",
    ]
    done = posgap(["pipeline", "compile", "--out", tmp_path / "pipeline.yaml"], form)
    assert codes(done) == [0, 0], said(done)
    plan = read_json(tmp_path / "form" / "preflight.json")
    assert plan["trained"] == ["r1", "reverse-kl"] and not plan["mitigated"]
    assert plan["settings"]["distill"]["kl_temperature"] == 2 and plan["settings"]["gate"]["least_worst"] == 50
    spec, _ = yaml.safe_load_all((tmp_path / "pipeline.yaml").read_text())
    assert "reverse-kl" in spec["root"]["inputDefinitions"]["parameters"]["methods"]["description"]
    parameters = {
        name: component["inputDefinitions"]["parameters"]
        for name, component in spec["components"].items()
        if "executorLabel" in component and "parameters" in component.get("inputDefinitions", {})
    }
    assert parameters["comp-distill"]["kl_temperature"]["defaultValue"] == 1
    assert parameters["comp-gate"]["least_worst"]["parameterType"] == "NUMBER_DOUBLE"
    shown = spec["root"]["inputDefinitions"]["parameters"]
    assert "notes: the label of a note" in shown["task"]["description"]


def test_a_package_that_is_broken_or_takes_a_name_is_left_out_with_a_warning(posgap):
    entries = "[posgap.metrics]\nmissing = acme_posgap.nothing:HERE\n[posgap.tasks]\nkv = posgap.tasks.retrieval:QA\n"
    done = posgap(["sweep", "--help"], entry_points=entries)
    assert codes(done) == [0]
    assert "metric missing of acme_posgap.nothing:HERE is left out: No module named 'acme_posgap.nothing'" in said(done)
    assert "task kv of posgap.tasks.retrieval:QA is left out: the name 'qa' is taken" in said(done)


def test_a_task_may_stand_in_one_module_with_a_backend(posgap):
    entries = "[posgap.tasks]\nnotes = acme_posgap.both:NOTES\n"
    both = "from acme_posgap.backend import RULE\nfrom acme_posgap.task import NOTES\n"
    done = posgap(["sweep", "--help"], entry_points=entries, more={"both.py": both})
    assert codes(done) == [0] and "is left out" not in said(done)


def test_every_kind_has_an_example_and_the_docs_say_how_long_it_is():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [^|]+ \| `([\w.]+)` \|.*\| `(\w+\.py)` \|", page, re.MULTILINE))
    # Openers are of rooms, and no user chooses one.
    assert [*VERBS.values()] and set(rows) == {choices.group for choices in Registry.all} - {"posgap.openers"}
    entries = (PACKAGE / "acme_posgap-1.0.dist-info" / "entry_points.txt").read_text()
    for group, file in rows.items():
        source = (PACKAGE / "acme_posgap" / file).read_text(encoding="utf-8")
        lines = len(source.splitlines())
        assert f"| `{file}` | {lines} |" in page and lines < 30
        assert f"[{group}]" in entries
    assert (PACKAGE / "acme_posgap" / "metric.py").read_text(encoding="utf-8") in page
