"""Baselines: the same examples without documents, with the gold ones alone, and in a random order."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from examples import kv_example, prompt_text, qa_example
from written_sweeps import write_sweep

from posgap.api import library
from posgap.data.reading import write_examples
from posgap.data.synthetic import two_hop_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.gating.evidence import wrong_figure
from posgap.gating.rules import GateInputs, Useful
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import BaselineScores, baselines_of
from posgap.measurement.outcomes import OutcomeCounts
from posgap.measurement.predictions import PREDICTIONS_FILE, read_predictions, swept_rows
from posgap.measurement.sample import Sample
from posgap.measurement.summary import summary_text
from posgap.measurement.sweeps import read_sweep
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS
from posgap.tasks.task import AS_GIVEN, BASELINES, PromptOrder
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model

ALL = ["closed-book", "oracle", "random"]


def texts(task, example, n_docs, order=AS_GIVEN):
    asked = TASKS[task].baselines(ALL, n_docs)
    return [prompt_text(TASKS[task], example, placement, order) for placement in asked]


def test_prompts_are_those_of_lost_in_the_middle():
    """Its closedbook_qa.prompt is "Question: {question}\\nAnswer:"; its oracle is the prompt of one document."""
    example = qa_example(3, 6)
    closed, oracle, mixed = texts("qa", example, 6)
    assert closed == f"Question: {example.question}\nAnswer:"
    assert oracle == prompt_text(TASKS["qa"], example, Placement((1,), 1))
    assert all(mixed.count(document.text) == 1 for document in [*example.gold, *example.distractors[:5]])
    assert mixed.count("Document [") == 6 and mixed != prompt_text(TASKS["qa"], example, Placement((1,), 6))


def test_the_relevant_passages_are_those_that_the_task_shows():
    passages = [
        Passage(title="", text=f"{word} {i}", relevant=word == "relevant text")
        for i, word in enumerate(["other", "relevant text", "other", "other", "relevant text"])
    ]
    example = RankedExample(id="r", question="q", answers=["a"], passages=passages)
    for task, gold in (("rag", 2), ("rag-one", 2), ("rag-alone", 1)):
        _, oracle, mixed = texts(task, example, 3)
        assert (oracle.count("Document ["), mixed.count("Document [")) == (gold, 3)
        assert oracle.count("relevant text") == mixed.count("relevant text") == gold


def test_random_order_differs_between_examples_and_is_the_same_again():
    where = [[d in e.gold for d in _documents(e, 8)].index(True) for e in (kv_example(i, 8) for i in range(40))]
    assert set(where) == set(range(8)), "the gold document stands anywhere"
    assert texts("kv", kv_example(1, 8), 8) == texts("kv", kv_example(1, 8), 8)
    assert texts("kv", kv_example(1, 8), 8)[2] != texts("kv", kv_example(1, 8), 8, PromptOrder(shuffle=1))[2]


def _documents(example, n_docs):
    written = texts("kv", example, n_docs)[2]
    return sorted([*example.gold, *example.distractors], key=lambda document: written.index(document.text))


def test_two_hop_questions_without_documents_still_say_how_to_answer():
    closed, oracle, _ = texts("multihop-cot", next(two_hop_examples(1, 6, 0)), 6)
    assert "The answer is" in closed and "Document" not in closed and "document" not in closed
    assert oracle.count("Document [") == 2


@pytest.fixture
def swept(tmp_path, model_folder):
    write_examples(tmp_path / "examples.jsonl", [kv_example(i, 4) for i in range(6)])
    common = {"examples": tmp_path / "examples.jsonl", "model": str(model_folder), "n_docs": 4, "max_new_tokens": 6}

    def swept(name, **more):
        return sweep_model(SweepConfig(**common | {"out": tmp_path / name} | more))

    return swept


def test_a_sweep_with_baselines_has_the_figures_of_one_without(swept):
    plain, beside = swept("plain"), swept("beside", baselines=ALL)
    assert swept_rows(read_predictions(beside)) == read_predictions(plain)
    with_them = read_sweep(beside)
    assert list(with_them.baselines) == ALL and not read_sweep(plain).baselines
    apart = {"baselines", "settings", "spent"}
    assert with_them.model_dump(exclude=apart) == read_sweep(plain).model_dump(exclude=apart)
    rows = [row for row in read_predictions(beside) if "baseline" in row]
    assert len(rows) == 6 * 3 and all(row["placement"] == [] for row in rows)
    assert with_them.baselines["oracle"].outcomes.prompts == 6
    assert "closed-book" in (beside / "sweep.html").read_text() and "oracle" in (beside / "model_card.md").read_text()
    assert f"closed-book {with_them.baselines['closed-book'].accuracy:.1f} (" in " ".join(summary_text(with_them))


def test_parts_are_merged_into_the_sweep_that_would_have_been_at_once(swept, tmp_path):
    whole = swept("whole", baselines=ALL)
    parts = [swept(f"part-{i}", baselines=ALL, shard=f"{i}/2") for i in (1, 2)]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert read_predictions(merged) == read_predictions(whole)
    assert read_sweep(merged).baselines == read_sweep(whole).baselines and not read_sweep(parts[1]).baselines


def test_the_library_asks_as_the_command_does(swept, model_folder):
    written = read_sweep(swept("written", baselines=ALL))
    result = library.sweep(
        str(model_folder), [kv_example(i, 4) for i in range(6)], n_docs=4, max_new_tokens=6, baselines=ALL
    )
    assert result.figures.baselines == written.baselines
    assert len(result.frame) == 24 and not wrong_figure(result._evidence("this"))


def of_baseline(folder, name, right):
    """Adds a baseline to a sweep's folder, right at the first `right` examples."""
    rows = [row for _, row in read_jsonl(folder / PREDICTIONS_FILE)]
    first = list({row["id"]: row for row in rows}.values())
    more = [row | {"placement": [], "baseline": name, "correct": i < right} for i, row in enumerate(first)]
    write_jsonl(folder / PREDICTIONS_FILE, [*rows, *more])
    evidence = Evidence(folder)
    figures = baselines_of(evidence.baselines, evidence.correct, evidence.sample)
    written = json.loads((folder / "sweep.json").read_text())
    written["baselines"] = {name: baseline.model_dump(mode="json") for name, baseline in figures.items()}
    (folder / "sweep.json").write_text(json.dumps(written))
    return folder


def test_figures_are_paired_with_the_mean_over_placements(tmp_path):
    folder = of_baseline(write_sweep(tmp_path / "a", [0.9, 0.5, 0.5, 0.5, 0.9]), "oracle", 10**6)
    evidence = Evidence(folder)
    oracle = baselines_of(evidence.baselines, evidence.correct, evidence.sample)["oracle"]
    assert oracle.accuracy == 100 and oracle.over_mean == pytest.approx(100 - 100 * evidence.correct.mean())
    assert oracle.over_mean_ci95[0] < oracle.over_mean < oracle.over_mean_ci95[1]


def test_the_gate_asks_for_more_than_what_is_answered_without_documents(tmp_path):
    """By heart: 90 % right everywhere, and 95 % without any document."""

    def useful(folder):
        verdict = library.gate(folder)
        return next(rule for rule in verdict.rules if rule.name == "useful")

    flat = write_sweep(tmp_path / "flat", [0.9] * 5)
    assert useful(flat).passed
    of_baseline(flat, "closed-book", int(0.95 * read_sweep(flat).n_examples))
    assert useful(flat).outcome == "fail" and useful(flat).estimate == pytest.approx(-5, abs=0.5)
    assert "its own answers without documents" in useful(flat).meaning


def test_a_mean_that_only_equals_what_is_known_by_heart_passes_in_5_percent():
    """Closed book is measured on the same examples, and no more certain than the mean."""
    rng, passed = np.random.default_rng(0), 0
    for _ in range(400):
        easy = rng.beta(0.3, 0.7, 150)
        correct, scores = rng.random((150, 5)) < easy[:, None], (rng.random(150) < easy).astype(float)
        sweep = SimpleNamespace(asked_task=TASKS["qa"], filled=None, n_docs=5)
        baselines = {"closed-book": BaselineScores(scores, OutcomeCounts())}
        known = {"sample": Sample([f"{i:03}" for i in range(150)]), "baselines": baselines}
        case = GateInputs(SimpleNamespace(sweep=sweep, correct=correct.astype(float), **known))
        passed += Useful().judge(Useful.Limits(), case).passed
    assert 0.01 < passed / 400 <= 0.075


def test_a_claim_that_is_broken_decides_however_far_off_an_unsure_one_is():
    """A mean of 30 in every example breaks the 33 that are asked for. Closed book, right in a third of 60 examples, is
    far from certain either way."""
    correct, scores = np.full((60, 4), 0.3), np.arange(60) % 3 == 0
    sweep = SimpleNamespace(asked_task=TASKS["qa"], filled=None, n_docs=4)
    baselines = {"closed-book": BaselineScores(scores.astype(float), OutcomeCounts())}
    known = {"sample": Sample([f"{i:03}" for i in range(60)]), "baselines": baselines}
    case = GateInputs(SimpleNamespace(sweep=sweep, correct=correct, **known))
    unsure, broken = (Useful().judge(Useful.Limits(min_mean=least), case) for least in (5, 33))
    assert unsure.outcome == "unsure" and unsure.sentence.endswith("without documents: at least 0 for certain")
    assert broken.outcome == "fail" and broken.threshold == 33
    assert unsure.value - unsure.threshold < broken.value - broken.threshold  # the margin alone would choose the other


def test_a_baseline_that_its_predictions_do_not_give_is_no_evidence(tmp_path):
    folder = of_baseline(write_sweep(tmp_path / "a", [0.9] * 5), "closed-book", 150)
    assert not wrong_figure(Evidence(folder))
    written = json.loads((folder / "sweep.json").read_text())
    written["baselines"]["closed-book"]["accuracy"] = 0.0
    (folder / "sweep.json").write_text(json.dumps(written))
    assert "baselines.closed-book.accuracy" in wrong_figure(Evidence(folder))
    rows = [row for _, row in read_jsonl(folder / PREDICTIONS_FILE)]
    write_jsonl(folder / PREDICTIONS_FILE, rows[:-1])
    with pytest.raises(PosgapError, match="predictions of closed-book "):
        Evidence(folder)


@pytest.mark.parametrize(
    ("names", "complaint"), [(["oracles"], "\nbaselines\\b"), (["oracle", "oracle"], "`baselines`")]
)
def test_unknown_and_doubled_baselines_are_refused(names, complaint):
    with pytest.raises(ValueError, match=complaint):
        SweepConfig(examples="e", model="m", out="o", baselines=names)


def test_baselines_come_as_text():
    config = SweepConfig(examples="e", model="m", out="o", baselines="closed-book, oracle")
    assert config.baselines == ["closed-book", "oracle"] and set(BASELINES.names()) >= set(ALL)
