"""DPR's files, users' own, drawn distractors and needles."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from refusals import refuses

from posgap.data.distractors import with_distractors
from posgap.data.readers import read_dpr, read_own
from posgap.data.reading import read_examples, write_examples
from posgap.data.synthetic import favorite_examples, needle_examples
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import write_json, write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.tasks.examples import Document, Example
from posgap.tasks.metrics import METRICS, lost_in_the_middle
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make


def passage(text: str, **marks) -> dict:
    return {"id": "1", "title": f"on {text}", "text": text, "score": "1.0", **marks}


def example(number: int, gold: str, answer: str) -> Example:
    return Example(
        id=f"e-{number}", question="?", answers=[answer], gold=[Document(title="t", text=gold)], distractors=[]
    )


@pytest.mark.parametrize(
    ("fields", "gold", "distractors"),
    [
        # isgold wins over hasanswer; what has the answer is no distractor, marked or not.
        (
            {
                "ctxs": [
                    passage("a dog", hasanswer=False),
                    passage("the Cat sat", hasanswer=True),
                    passage("cat, gold", isgold=True, hasanswer=True),
                    passage("one CAT!"),
                    passage("a cow"),
                ]
            },
            "cat, gold",
            ["a dog", "a cow"],
        ),
        # DPR's own spelling; the first passage with the answer.
        (
            {
                "ctxs": [
                    passage("a dog", has_answer=False),
                    passage("cat 1", has_answer=True),
                    passage("cat 2", has_answer=True),
                ]
            },
            "cat 1",
            ["a dog"],
        ),
        (
            {
                "positive_ctxs": [passage("cat 1"), passage("cat 2")],
                "hard_negative_ctxs": [passage("hard"), passage("a cat")],
                "negative_ctxs": [passage("easy")],
            },
            "cat 1",
            ["hard", "easy"],
        ),
    ],
)
def test_dpr_passages_become_gold_and_distractors(tmp_path, fields, gold, distractors):
    write_json(tmp_path / "dpr.json", [{"question": "who?", "answers": ["the cat"], **fields}])
    ((number, example),) = read_dpr(tmp_path / "dpr.json")
    assert (number, example.question, example.answers) == (1, "who?", ["the cat"])
    assert [d.text for d in example.gold] == [gold]
    assert [d.text for d in example.distractors] == distractors


def test_dpr_questions_without_an_answering_passage_are_counted(tmp_path, caplog):
    caplog.set_level("INFO", "posgap")
    row = {"question": "who?", "answers": ["cat"], "ctxs": [passage("cat", hasanswer=True)]}
    write_jsonl(tmp_path / "dpr.jsonl", [row, row | {"ctxs": [passage("dog")]}])
    config = ImportConfig(format="dpr", input=tmp_path / "dpr.jsonl", out=tmp_path / "e.jsonl")
    assert len(read_examples(data_import(config))) == 1
    assert "left out 1 without a passage that contains the answer" in caplog.text


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"question": "who?", "answers": ["a"]}, "`positive_ctxs`"),
        ({"question": "who?", "answers": ["a"], "ctxs": [{"title": "t"}]}, "`ctxs.0.text`"),
        ({"question": "who?", "answers": "a", "ctxs": []}, "`answers`"),
    ],
)
def test_broken_dpr_rows_are_named(tmp_path, row, named):
    write_jsonl(tmp_path / "dpr.jsonl", [row])
    with refuses(Malformed, named, at="dpr.jsonl:1"):
        list(read_dpr(tmp_path / "dpr.jsonl"))


OWN = {"question": "Who?", "answers": ["me"], "documents": [{"text": "you"}, {"text": "me", "gold": True}]}


def test_a_file_of_one_s_own_needs_three_fields(tmp_path):
    two = [{"text": "b", "gold": 2}, {"text": "c", "title": "C"}, {"text": "a", "gold": 1}]
    write_jsonl(tmp_path / "own.jsonl", [OWN, {"id": "mine", "question": "?", "answers": "b", "documents": two}])
    (_, single), (_, hops) = read_own(tmp_path / "own.jsonl")
    assert (single.id, single.answers, single.gold[0].text) == ("own-000001", ["me"], "me")
    assert single.distractors == [Document(title="", text="you")]
    assert (hops.id, hops.answers, [d.text for d in hops.gold]) == ("mine", ["b"], ["a", "b"])
    assert [d.title for d in hops.distractors] == ["C"]


def test_the_documented_example_is_read(tmp_path):
    documented = (ROOT / "docs" / "formats.md").read_text().split("### Your own file")[1].split("```")[1]
    write_jsonl(tmp_path / "own.jsonl", [json.loads(documented.removeprefix("json"))])
    ((_, example),) = read_own(tmp_path / "own.jsonl")
    assert [d.title for d in (*example.gold, *example.distractors)] == ["Röntgen", "Marie Curie"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"answers": []}, ["`answers`"]),
        ({"question": ""}, ["`question`"]),
        ({"documents": [{"title": "t"}]}, ["`documents.0.text`"]),
        ({"documents": [{"text": "a"}]}, ["`documents`", "0 are"]),
        ({"documents": [{"text": "a", "gold": True}] * 2}, ["`documents`", "2 are"]),
        ({"documents": [{"text": "a", "gold": 2}]}, ["`documents`", "1 are"]),
        ({"documents": [{"text": "a", "gold": 3}]}, ["`documents.0.gold`"]),
    ],
)
def test_faults_of_one_s_own_file_are_named_by_line_and_field(tmp_path, change, named):
    write_jsonl(tmp_path / "own.jsonl", [OWN, OWN | change])
    with refuses(Malformed, *named, at="own.jsonl:2"):
        list(read_own(tmp_path / "own.jsonl"))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.text("abc ", max_size=6), st.text("abc", min_size=1, max_size=2)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_drawn_distractors_never_hold_an_answer(pairs, n_docs, seed):
    examples = [example(i, text, answer) for i, (text, answer) in enumerate(pairs)]
    made = list(with_distractors(examples, n_docs, seed))
    pool = {document for e in examples for document in e.gold}
    for was, now in zip(examples, made, strict=True):
        right = [METRICS[name].score for name in ("litm", "sub_em")]
        usable = {d for d in pool - set(was.gold) if not any(by(f"{d.title} {d.text}", was.answers) for by in right)}
        assert (now is None) == (len(usable) < n_docs - 1)
        if now:
            assert now.gold == was.gold and len(set(now.distractors)) == len(now.distractors) == n_docs - 1
            assert set(now.distractors) <= usable
    assert made == list(with_distractors(examples, n_docs, seed))


def test_twenty_documents_are_made_of_the_public_oracle_file(tmp_path, nq_file):
    imported = ImportConfig(format="litm-qa", input=nq_file, out=tmp_path / "oracle.jsonl", last=60)
    config = MakeConfig(kind="qa", examples=data_import(imported), out=tmp_path / "qa.jsonl", seed=1)
    made = read_examples(data_make(config))
    assert len(made) == 60 and all(len(e.distractors) == 19 and len(e.gold) == 1 for e in made)
    # As the public script scores it, no copy of a distractor is right.
    assert not any(lost_in_the_middle(f"{d.title} {d.text}", e.answers) for e in made for d in e.distractors)
    other = read_examples(data_make(config.model_copy(update={"out": tmp_path / "other.jsonl", "seed": 2})))
    assert [e.gold for e in other] == [e.gold for e in made]
    assert [e.distractors for e in other] != [e.distractors for e in made]


def test_questions_without_enough_passages_are_left_out(tmp_path, caplog):
    caplog.set_level("INFO", "posgap")
    # "T" is in every passage, as it is in every response.
    write_examples(tmp_path / "e.jsonl", [example(i, f"text {i}", "T" if i == 2 else "answer") for i in range(4)])
    config = MakeConfig(kind="qa", examples=tmp_path / "e.jsonl", out=tmp_path / "qa.jsonl", n_docs=4)
    assert [e.id for e in read_examples(data_make(config))] == ["e-0", "e-1", "e-3"]
    assert "left out 1: too few passages without their answer" in caplog.text
    with refuses(PosgapError, "e.jsonl", "4 passages", "n_docs"):
        data_make(config.model_copy(update={"n_docs": 5, "out": tmp_path / "other.jsonl"}))
    assert not (tmp_path / "other.jsonl").exists()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12), st.integers(4, 9))
def test_one_document_alone_states_the_needle(seed, n_docs, facts, digits):
    (example,) = needle_examples(1, n_docs, facts, digits, seed)
    (answer,), (gold,) = example.answers, example.gold
    assert len(answer) == digits and f"is {answer}." in gold.text and gold.title in example.question
    assert len(example.distractors) == n_docs - 1
    assert not any(lost_in_the_middle(f"{d.title} {d.text}", [answer]) for d in example.distractors)
    attribute = example.question.removeprefix("What is the ").removesuffix("?")
    assert [d.title for d in [gold, *example.distractors] if f"The {attribute} is {answer}." in d.text] == [gold.title]
    assert gold.text.count(" is ") == facts


def test_needle_files_are_equal_for_equal_seeds(tmp_path):
    files = [tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"]
    made = [data_make(MakeConfig(kind="needle", out=file, n_examples=3, n_docs=5, seed=4)) for file in files]
    assert made[0].read_bytes() == made[1].read_bytes()
    with refuses(PosgapError, "digits=1"):
        list(needle_examples(1, 20, facts=3, digits=1, seed=0))
    assert len({json.dumps(e.model_dump()) for e in read_examples(made[0])}) == 3


def test_favorites_are_questions_of_one_sentence_each():
    made = list(favorite_examples(3, 5, 7))
    assert made == list(favorite_examples(3, 5, 7)) and made != list(favorite_examples(3, 5, 8))
    for example in made:
        texts = [document.text for document in example.gold + example.distractors]
        assert len(texts) == 5 and [example.answers[0] in text for text in texts] == [True, *[False] * 4]
        assert example.gold[0].title in example.question
    with refuses(PosgapError, "n_docs=31"):
        next(favorite_examples(1, 31, 0))
