"""Two-hop examples from the public formats, and synthetic ones."""

import gzip
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from posgap.data.readers import read_hotpotqa, read_musique
from posgap.data.reading import read_examples
from posgap.data.synthetic import two_hop_examples
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import read_json
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.tasks.metrics import sub_exact_match
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make

HOTPOT = {
    "_id": "5a7a",
    "question": "Where was the founder of Acme born?",
    "answer": "Ghent",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Jan Peeters", 0], ["Acme", 1], ["Acme", 0]],
    "context": [
        ["Bruges", ["Bruges is a city."]],
        ["Acme", ["Acme is a company.", " Jan Peeters founded it."]],
        ["Jan Peeters", ["Jan Peeters was born in Ghent."]],
        ["Antwerp", ["Antwerp has a port.", " It is large."]],
    ],
}
DICT_FORM = HOTPOT | {
    "supporting_facts": {"title": ["Jan Peeters", "Acme", "Acme"], "sent_id": [0, 1, 0]},
    "context": {"title": [t for t, _ in HOTPOT["context"]], "sentences": [s for _, s in HOTPOT["context"]]},
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the founder of Acme born?",
    "answer": "Ghent",
    "answer_aliases": ["Gent"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Jan Peeters", "paragraph_text": "He was born in Ghent.", "is_supporting": True},
        {"idx": 1, "title": "Bruges", "paragraph_text": "A city.", "is_supporting": False},
        {"idx": 2, "title": "Acme", "paragraph_text": "Jan Peeters founded it.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "founder of Acme", "answer": "Jan Peeters", "paragraph_support_idx": 2},
        {"id": 2, "question": "#1 born", "answer": "Ghent", "paragraph_support_idx": 0},
    ],
}


def written(path, items):
    lines = "".join(json.dumps(item) + "\n" for item in items) if ".jsonl" in path.suffixes else json.dumps(items)
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


@pytest.mark.parametrize("form", [HOTPOT, DICT_FORM], ids=["lists", "dict of lists"])
@pytest.mark.parametrize("name", ["h.json", "h.json.gz", "h.jsonl"])
def test_hotpot_in_both_forms_and_packings(tmp_path, form, name):
    ((number, example),) = read_hotpotqa(written(tmp_path / name, [form]))
    assert (number, example.id, example.answers) == (1, "5a7a", ["Ghent"])
    # The founder's page alone holds the answer, so it is the second hop whatever the facts' order.
    assert [d.title for d in example.gold] == ["Acme", "Jan Peeters"]
    assert example.gold[0].text == "Acme is a company. Jan Peeters founded it."
    assert [d.title for d in example.distractors] == ["Bruges", "Antwerp"]


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({"type": "comparison"}, ["Jan Peeters", "Acme"]),
        ({"answer": "yes"}, ["Jan Peeters", "Acme"]),
        ({"answer": "Jan Peeters"}, ["Jan Peeters", "Acme"]),  # both hold it
        ({"answer": "company"}, ["Jan Peeters", "Acme"]),
    ],
)
def test_hops_that_the_answer_does_not_tell_are_in_the_order_of_the_facts(tmp_path, changes, order):
    ((_, example),) = read_hotpotqa(written(tmp_path / "h.json", [HOTPOT | changes]))
    assert [d.title for d in example.gold] == order


def test_an_item_without_id_is_named_by_its_number(tmp_path):
    item = {k: v for k, v in HOTPOT.items() if k != "_id"}
    file = written(tmp_path / "h.json", [item] * 2)
    assert [e.id for _, e in read_hotpotqa(file)] == ["hotpot-00001", "hotpot-00002"]


def test_questions_of_more_or_fewer_hops_are_no_examples(tmp_path):
    four = [[title, 0] for title, _ in HOTPOT["context"]]
    items = [HOTPOT | {"supporting_facts": four}, HOTPOT, HOTPOT | {"supporting_facts": [["Acme", 0]]}]
    assert [e is not None for _, e in read_hotpotqa(written(tmp_path / "h.json", items))] == [False, True, False]


def test_musique_hops_are_in_the_order_of_the_decomposition(tmp_path):
    ((_, example),) = read_musique(written(tmp_path / "m.jsonl", [MUSIQUE]))
    assert example.answers == ["Ghent", "Gent"]
    assert [d.title for d in example.gold] == ["Acme", "Jan Peeters"]
    assert [d.title for d in example.distractors] == ["Bruges"]


def test_only_two_hop_musique_is_imported_and_the_rest_is_counted(tmp_path, caplog):
    three = MUSIQUE | {"question_decomposition": [*MUSIQUE["question_decomposition"], {"paragraph_support_idx": 1}]}
    unanswerable = MUSIQUE | {"question_decomposition": [{"paragraph_support_idx": None}] * 2}
    file = written(tmp_path / "m.jsonl", [three, MUSIQUE, unanswerable])
    with caplog.at_level(logging.INFO, logger="posgap"):
        data_import(ImportConfig(input=file, out=tmp_path / "e.jsonl", format="musique"))
    assert [e.id for e in read_examples(tmp_path / "e.jsonl")] == ["2hop__1_2"]
    assert "left out 2 that do not rest on two documents" in caplog.text


def test_the_public_hotpot_file(tmp_path, hotpot_file, caplog):
    config = ImportConfig(input=hotpot_file, out=tmp_path / "e.jsonl.gz", format="hotpotqa", min_docs=10)
    with caplog.at_level(logging.INFO, logger="posgap"):
        data_import(config)
    examples = read_examples(tmp_path / "e.jsonl.gz")
    assert "left out 1 with fewer than 10 documents" in caplog.text
    assert len(examples) == len({e.id for e in examples}) == 59
    assert all(len(e.gold) == 2 and len(e.distractors) == 8 for e in examples)
    assert [d.title for d in examples[0].gold] == ["Scott Derrickson", "Ed Wood"]
    second = examples[1]
    assert second.answers == ["Chief of Protocol"]
    assert [d.title for d in second.gold] == ["Kiss and Tell (1945 film)", "Shirley Temple"]
    # In a chain the answer never stands in the first hop alone.
    for row, (_, example) in zip(read_json(hotpot_file), read_hotpotqa(hotpot_file)):
        holds = [sub_exact_match(f"{d.title} {d.text}", example.answers) for d in example.gold]
        assert row["type"] == "comparison" or holds != [True, False]


def test_2wiki_has_hotpot_s_form(tmp_path):
    item = HOTPOT | {"type": "compositional", "evidences": [["Acme", "founder", "Jan Peeters"]]}
    file = written(tmp_path / "w.json", [item, HOTPOT | {"type": "bridge_comparison", "supporting_facts": []}])
    data_import(ImportConfig(input=file, out=tmp_path / "e.jsonl", format="2wiki"))
    (example,) = read_examples(tmp_path / "e.jsonl")
    assert [d.title for d in example.gold] == ["Acme", "Jan Peeters"]


def without(item, field):
    return {k: v for k, v in item.items() if k != field}


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (without(HOTPOT, "answer"), "`answer`"),
        (HOTPOT | {"context": [["Acme", "text"]]}, "`context.0.1`"),
        (
            HOTPOT | {"context": {"title": ["Acme"], "sentences": []}},
            "`context`: `title` and `sentences`",
        ),
        ("text", '"text"'),
    ],
)
def test_broken_hotpot_items_are_named(tmp_path, item, named):
    with refuses(Malformed, named, at="h.json:2"):
        list(read_hotpotqa(written(tmp_path / "h.json", [HOTPOT, item])))


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (without(MUSIQUE, "paragraphs"), ["`paragraphs`"]),
        (
            MUSIQUE | {"question_decomposition": [{"paragraph_support_idx": 7}]},
            ["`question_decomposition`", "idx 7"],
        ),
    ],
)
def test_broken_musique_lines_are_named(tmp_path, item, named):
    with refuses(Malformed, *named, at="m.jsonl:2"):
        list(read_musique(written(tmp_path / "m.jsonl", [MUSIQUE, item])))


@pytest.mark.parametrize(
    ("content", "at", "named"),
    [
        (b"{}", "h.json:1", "`question`"),
        (b"[{", "h.json:1", ""),
        (b"\xff\xfe", "h.json", ""),
    ],
)
def test_a_file_that_is_no_array_is_named(tmp_path, content, at, named):
    (tmp_path / "h.json").write_bytes(content)
    with refuses(Malformed, named, at=at):
        list(read_hotpotqa(tmp_path / "h.json"))


def test_a_gold_paragraph_is_told_from_others_of_its_title_or_left_out(tmp_path):
    """Fullwiki lacks gold paragraphs; titles may be written in another form, or stand twice."""
    context = [["Jos\u00e9", ["A painter."]], ["A&B", ["By José."]], ["José", ["Born in Ghent."]], ["C", ["A town."]]]
    item = {"question": "Where?", "answer": "Ghent", "type": "bridge", "context": context}
    facts = [[["Jose\u0301", 0], ["A&amp;B", 0]], [["José", 0], ["Nowhere", 0]], [["C", 0], ["A&B", 0]]]
    rows = [item | {"_id": str(n), "supporting_facts": fact} for n, fact in enumerate(facts)]
    rows.append(rows[0] | {"answer": "Bruges", "_id": "3"})
    found = [example for _, example in read_hotpotqa(written(tmp_path / "h.json", rows))]
    assert [d.text for d in found[0].gold] == ["By José.", "Born in Ghent."]
    assert (found[1], found[3]) == (None, None) and found[2]


def test_an_import_that_leaves_nothing_says_so(tmp_path):
    file = written(tmp_path / "h.json", [HOTPOT])
    with refuses(PosgapError, "lines 1 to", "1 with fewer than 10"):
        data_import(ImportConfig(input=file, out=tmp_path / "e.jsonl", format="hotpotqa", min_docs=10))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 24))
def test_made_facts_are_one_cycle_and_the_answer_takes_two_hops(seed, n_docs):
    for example in two_hop_examples(3, n_docs, seed):
        contact = {d.title: d.text for d in [*example.gold, *example.distractors]}
        assert len(contact) == n_docs
        first, second = example.gold
        assert example.question == f"Who is the contact of {first.title}'s contact?"
        assert [second.title, example.answers] == [first.text, [second.text]]
        seen, person = [], first.title
        while person not in seen:
            seen.append(person)
            person = contact[person]
        assert len(seen) == n_docs and person == first.title


def test_made_two_hop_examples_are_repeatable_and_never_alike(tmp_path):
    files = (tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz")
    made = [data_make(MakeConfig(kind="two-hop", out=file, n_examples=50, seed=3)) for file in files]
    assert made[0].read_bytes() == made[1].read_bytes()
    examples = read_examples(made[0])
    assert len(examples) == 50 and all(len(e.distractors) == 18 for e in examples)
    few = list(two_hop_examples(12144, 3, seed=0))  # 24 * 23 * 22, every one there is
    assert len({(e.gold[0].title, *(d.text for d in (*e.gold, *e.distractors))) for e in few}) == 12144
    with refuses(PosgapError, "n_examples=12145", "3 documents"):
        list(two_hop_examples(12145, 3, seed=0))
