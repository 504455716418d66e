"""Great Expectations over examples: what is wrong is named by rule and row."""

import json

import pytest
from examples import kv_example, qa_example
from refusals import refuses

from posgap.data.expectations import example_table, expectations, run_expectations
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import Rejection
from posgap.options.validate import ValidateConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.content import content_key
from posgap.tasks.examples import Document
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.validate import validate


def config(tmp_path, examples, model_folder, **options):
    write_examples(tmp_path / "e.jsonl", examples)
    options = {"n_docs": 4, "max_new_tokens": 4} | options
    return ValidateConfig(examples=tmp_path / "e.jsonl", model=str(model_folder), out=tmp_path / "out", **options)


def test_good_examples_pass_and_come_out_unchanged(tmp_path, model_folder):
    examples = [kv_example(i) for i in range(5)]
    out = validate(config(tmp_path, examples, model_folder))
    assert read_examples(out) == examples
    report = json.loads((out / "validation.json").read_text())
    assert report["success"] and report["evaluated"] == 10
    assert "All examples fulfil all expectations" in (out / "validation.html").read_text()
    assert read_manifest(out)["stage"] == "validate"


def test_a_limit_looks_at_the_first_examples_and_passes_on_no_others(tmp_path, model_folder):
    examples = [*(kv_example(i) for i in range(3)), changed(3, answers=[])]
    out = validate(config(tmp_path, examples, model_folder, limit=2))
    assert read_examples(out) == examples[:2] and json.loads((out / "validation.json").read_text())["examples"] == 2


def changed(number, **update):
    return kv_example(number).model_copy(update=update)


def gold_twice(number):
    example = kv_example(number)
    return example.model_copy(update={"records": [*example.records, (example.key, "f")]})


BAD = {
    "question": (lambda: [changed(0, question="  ")], "`question` must not be blank,"),
    "no answers": (lambda: [changed(0, answers=[])], "`n_answers` must be at least 1,"),
    "blank answer": (lambda: [changed(0, answers=[" "])], "`shortest_answer` must be at least 1,"),
    "key twice": (lambda: [kv_example(1), gold_twice(0)], r"`key_occurrences` must be 1, .* kv-0 \(2\)"),
    "answer": (lambda: [changed(0, answers=["zz"])], r"`gold_holds_answer` must be true, .* kv-0 \(False\)"),
    "few documents": (lambda: [kv_example(0, n_records=3)], r"`n_docs` must be at least 4, .* in kv-0 \(3\)$"),
}


def failures(examples, tokenizer, tmp_path, task="kv", context=512, n_docs=4, excluded=frozenset()):
    builder = PromptBuilder(TASKS[task], tokenizer, context, 4)
    table = example_table(examples, builder, n_docs, excluded)
    return run_expectations(table, expectations(n_docs, builder.context - builder.max_new_tokens))["failures"]


@pytest.mark.parametrize("fault", BAD)
def test_each_fault_is_named_with_its_row(fault, tokenizer, tmp_path):
    import re

    make, complaint = BAD[fault]
    complaints = failures(make(), tokenizer, tmp_path)
    assert any(re.search(complaint, line) for line in complaints), complaints


def test_a_gold_document_among_the_distractors_is_named(tokenizer, tmp_path):
    good = qa_example()
    bad = qa_example(1).model_copy(update={"distractors": [*qa_example(1).distractors, qa_example(1).gold[0]]})
    complaints = failures([good, bad], tokenizer, tmp_path, task="qa")
    assert any("`gold_among_distractors`" in line and "qa-1 (1)" in line for line in complaints)


def test_a_gold_document_without_the_answer_is_named(tokenizer, tmp_path):
    bad = qa_example().model_copy(update={"gold": [Document(title="Nobel Prize", text="It is a prize.")]})
    assert any("`gold_holds_answer`" in line and "qa-0" in line for line in failures([bad], tokenizer, tmp_path, "qa"))


def test_two_hop_examples_have_two_gold_documents_and_may_ask_for_a_judgement(tokenizer, tmp_path):
    single, double = qa_example(0), qa_example(1, n_distractors=5)
    double = double.model_copy(
        update={"gold": double.distractors[:2], "distractors": double.distractors[2:], "answers": ["yes"]}
    )
    builder = PromptBuilder(TASKS["multihop-cot"], tokenizer, 512, 4)
    complaints = run_expectations(example_table([single, double], builder, 4), expectations(4, 500, n_gold=2))[
        "failures"
    ]
    assert any("`n_gold`" in line and "qa-0 (1)" in line for line in complaints)
    assert not any("qa-1" in line for line in complaints)


def test_a_prompt_beyond_the_context_is_named(tokenizer, tmp_path):
    complaints = failures([kv_example(0)], tokenizer, tmp_path, context=20)
    assert any("`prompt_tokens`" in line and "kv-0 (22)" in line for line in complaints)


def test_examples_that_were_trained_on_are_named_whatever_their_id(tokenizer, tmp_path):
    seen = {content_key(kv_example(0))}
    complaints = failures([changed(0, id="new"), kv_example(1)], tokenizer, tmp_path, excluded=seen)
    assert complaints == ["`in_excluded` must be false, but is not so in new (True)"]


def test_a_failing_suite_stops_with_rows_named_and_keeps_its_report(tmp_path, model_folder):
    given = config(tmp_path, [kv_example(1), changed(2, answers=["zz"])], model_folder)
    file = tmp_path / "e.jsonl"
    file.write_text(file.read_text().replace("\n", "\n\n", 1))
    with refuses(Rejection, "`gold_holds_answer`", "kv-2 (False)"):
        validate(given)
    assert not (tmp_path / "out").exists()
    page = (tmp_path / "out.rejected" / "validation.html").read_text()
    assert "a gold document holds an answer: 1 of 2 fail" in page and "All examples fulfil" not in page
    assert (
        '<tr><td>3</td><td class="text">kv-2</td><td class="text"><code>false</code></td></tr>' in page
    )  # a blank line before it
    assert "https://" not in page.replace("https://github.com", "")  # it opens where there is no network
    assert not json.loads((tmp_path / "out.rejected" / "validation.json").read_text())["success"]


def test_where_questions_have_too_few_documents_the_command_that_draws_more_is_named(tmp_path, model_folder):
    short = config(tmp_path, [qa_example(0, n_distractors=0)], model_folder, task="qa")
    with refuses(Rejection, f"make qa --examples {short.examples} --n-docs {short.n_docs} --out FILE`"):
        validate(short)
    records = config(tmp_path, [kv_example(0, n_records=2)], model_folder)
    with refuses(Rejection, "`n_docs`") as refused:
        validate(records)
    assert "make qa" not in str(refused.value)
