"""Public formats in, examples out; what is broken is named by line and field."""

import gzip
import json
import tracemalloc

import pytest
from examples import kv_example, qa_example
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from posgap.data.readers import read_litm_kv, read_litm_qa
from posgap.data.reading import read_examples, write_examples
from posgap.data.synthetic import uuid_records
from posgap.foundation.errors import Malformed, NotFound, Unreadable
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make

KV_LINE = {
    "ordered_kv_records": [["ab12", "f0"], ["ab99", "11"], ["cd00", "22"], ["cd77", "33"], ["ef", "44"]],
    "key": "ab99",
    "value": "11",
}
QA_LINE = {
    "question": "who?",
    "answers": ["me"],
    "ctxs": [
        {"title": "t", "text": "me", "hasanswer": True, "isgold": True},
        {"title": "u", "text": "you", "hasanswer": False, "isgold": False},
    ],
}


def test_whole_keys_stay_as_they_are(tmp_path):
    write_jsonl(tmp_path / "kv.jsonl", [KV_LINE])
    ((line, example),) = read_litm_kv(tmp_path / "kv.jsonl")
    assert line == 1
    assert (example.key, example.value, example.answers) == ("ab99", "11", ["11"])
    assert example.records == [tuple(r) for r in KV_LINE["ordered_kv_records"]]
    assert example.gold[0].text == "11" and len(example.distractors) == 4


def test_cut_keys_are_distinct_and_the_queried_one_stays(tmp_path):
    write_jsonl(tmp_path / "kv.jsonl", [KV_LINE])
    ((_, example),) = read_litm_kv(tmp_path / "kv.jsonl", key_digits=2, value_digits=1)
    # ab12 has the queried key's first digits and goes; of the two cd the first stays.
    assert example.records == [("ab", "1"), ("cd", "2"), ("ef", "4")]
    assert (example.key, example.value) == ("ab", "1")


def test_further_queries_ask_for_other_keys_of_the_same_line(tmp_path):
    write_jsonl(tmp_path / "kv.jsonl", [KV_LINE])
    examples = [e for _, e in read_litm_kv(tmp_path / "kv.jsonl", queries=5)]
    assert examples[0].key == "ab99"
    assert sorted(e.key for e in examples) == sorted(k for k, _ in KV_LINE["ordered_kv_records"])
    assert len({e.id for e in examples}) == 5
    assert all(dict(e.records)[e.key] == e.value for e in examples)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 80))
def test_generated_records_can_always_be_cut_to_twenty(seed, n_keys):
    (row,) = uuid_records(1, max(n_keys, 60), seed)
    assert len({k for k, _ in row["ordered_kv_records"]}) == max(n_keys, 60)
    assert [row["key"], row["value"]] in row["ordered_kv_records"]
    assert len({k[:2] for k, _ in row["ordered_kv_records"]}) >= 20


def test_made_files_have_the_public_form_and_are_equal_for_equal_seeds(tmp_path, kv_file):
    first = data_make(MakeConfig(kind="kv", out=tmp_path / "a.jsonl.gz", n_examples=3, seed=7))
    again = data_make(MakeConfig(kind="kv", out=tmp_path / "b.jsonl.gz", n_examples=3, seed=7))
    assert first.read_bytes() == again.read_bytes()
    _, public = next(read_jsonl(kv_file))
    _, made = next(read_jsonl(first))
    assert made.keys() == public.keys()
    assert len(made["ordered_kv_records"]) == len(public["ordered_kv_records"]) == 75
    shape = lambda uuid: [len(part) for part in uuid.split("-")]  # noqa: E731
    assert shape(made["key"]) == shape(public["key"])


def test_the_public_kv_file_is_read_whole(kv_file):
    examples = [e for _, e in read_litm_kv(kv_file, key_digits=2, value_digits=1)]
    assert len(examples) == 300
    for example in examples:
        keys = [k for k, _ in example.records]
        assert len(set(keys)) == len(keys) >= 20
        assert dict(example.records)[example.key] == example.value


def test_the_public_qa_file_has_one_gold_with_the_answer(nq_file):
    examples = [e for _, e in read_litm_qa(nq_file)]
    assert len(examples) == 1955
    assert examples[0].answers == ["Wilhelm Conrad Röntgen"]
    assert all(len(e.gold) == 1 and not e.distractors for e in examples)


def test_examples_survive_a_round_trip(tmp_path):
    examples = [kv_example(1), qa_example(2)]
    write_examples(tmp_path / "e.jsonl.gz", examples)
    assert read_examples(tmp_path / "e.jsonl.gz") == examples


def test_lines_are_chosen_by_number(tmp_path):
    data_make(MakeConfig(kind="kv", out=tmp_path / "kv.jsonl", n_examples=5))
    data_import(ImportConfig(input=tmp_path / "kv.jsonl", out=tmp_path / "e.jsonl", first=2, last=3))
    assert [e.id for e in read_examples(tmp_path / "e.jsonl")] == ["kv-00002-0", "kv-00003-0"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{not json", ""),
        ("[1, 2]", "[1, 2]"),
        (json.dumps({k: v for k, v in KV_LINE.items() if k != "key"}), "`key`"),
        (
            json.dumps(KV_LINE | {"ordered_kv_records": [["a"]]}),
            "`ordered_kv_records.0.1`",
        ),
        (json.dumps(KV_LINE | {"value": "other"}), "`key`: "),
    ],
)
def test_broken_kv_lines_are_named(tmp_path, line, named):
    (tmp_path / "kv.jsonl").write_text(json.dumps(KV_LINE) + "\n" + line + "\n")
    with refuses(Malformed, named, at="kv.jsonl:2"):
        list(read_litm_kv(tmp_path / "kv.jsonl"))


def test_a_qa_line_without_titles_is_named(tmp_path):
    broken = QA_LINE | {"ctxs": [{"text": "me", "isgold": True}]}
    write_jsonl(tmp_path / "qa.jsonl", [QA_LINE, broken])
    with refuses(Malformed, "`ctxs.0.title`", at="qa.jsonl:2"):
        list(read_litm_qa(tmp_path / "qa.jsonl"))


def test_an_example_with_a_wrong_field_is_named(tmp_path):
    rows = [qa_example().model_dump(), qa_example(1).model_dump() | {"answers": "me"}]
    write_jsonl(tmp_path / "e.jsonl", rows)
    with refuses(Malformed, "`answers`", at="e.jsonl:2"):
        read_examples(tmp_path / "e.jsonl")


def test_an_id_that_two_examples_have_is_refused_with_both_lines(tmp_path):
    own = {"id": "a", "question": "q", "answers": ["x"], "documents": [{"text": "x", "gold": True}]}
    write_jsonl(tmp_path / "own.jsonl", [own, own | {"id": "b"}, own])
    with refuses(Malformed, "'a'", "line 1", at="own.jsonl:3"):
        data_import(ImportConfig(input=tmp_path / "own.jsonl", out=tmp_path / "e.jsonl", format="own"))
    assert not (tmp_path / "e.jsonl").exists()
    write_examples(tmp_path / "e.jsonl", [kv_example(0), kv_example(1), kv_example(1)])
    with refuses(Malformed, "'kv-1'", "line 2", at="e.jsonl:3"):
        read_examples(tmp_path / "e.jsonl")


def test_importing_keeps_no_more_in_memory_however_long_the_file_is(tmp_path):
    def peak(n_examples):
        file = data_make(MakeConfig(kind="kv", out=tmp_path / f"kv-{n_examples}.jsonl", n_examples=n_examples))
        tracemalloc.start()
        data_import(ImportConfig(input=file, out=file.with_name(f"e-{file.name}")))
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(5)  # what is imported and compiled the first time
    assert peak(400) < peak(200) + 200_000  # a file is read by blocks of a megabyte


def test_a_missing_file_is_named(tmp_path):
    with refuses(NotFound, at="none.jsonl"):
        read_examples(tmp_path / "none.jsonl")


def test_a_truncated_archive_is_named(tmp_path):
    packed = gzip.compress(json.dumps(KV_LINE).encode() * 50)
    (tmp_path / "kv.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with refuses(Unreadable, at="kv.jsonl.gz"):
        list(read_litm_kv(tmp_path / "kv.jsonl.gz"))


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "kv.jsonl.gz").write_text("hello")
    with refuses(Unreadable, at="kv.jsonl.gz"):
        list(read_litm_kv(tmp_path / "kv.jsonl.gz"))


def test_public_records_that_were_not_imported_say_how(tmp_path):
    file = tmp_path / "kv.jsonl"
    file.write_text(json.dumps({"ordered_kv_records": [["k", "v"]], "key": "k", "value": "v"}))
    with refuses(Malformed, "--format litm-kv", at=file):
        read_examples(file)
