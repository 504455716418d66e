"""Retrieval logs and traces of any common layout become ranked examples: order, scores, relevance, answers."""

import json
from pathlib import Path

import pandas
import pytest
from refusals import refuses

import posgap
from posgap.data.import_report import ImportReport
from posgap.data.reading import read_examples, write_examples
from posgap.data.retrieval_logs import RetrievalLog
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import read_rows, write_json, write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.tasks.content import content_key
from posgap.tasks.examples import Example, RankedExample
from posgap.verbs.data_import import data_import

TRACES = Path(__file__).parents[1] / "traces"
QUESTION, ANSWER = "Who won the first Nobel Prize in Physics?", "Wilhelm Röntgen"
PASSAGES = [
    {"id": "a1", "title": "Curie", "text": "Marie Curie shared the prize in 1903.", "score": 0.81},
    {"id": "a2", "title": "Röntgen", "text": "Wilhelm Röntgen received it in 1901.", "score": 0.74},
    {"id": "a3", "title": "", "text": "The prize is awarded in Stockholm.", "score": 0.6},
]


def read_log(path: Path, report=None, **options):
    return RetrievalLog(str(path), **options).examples(read_rows(path), report)


def only(path: Path, **options) -> RankedExample:
    ((_, example),) = read_log(path, **options)
    return example


def test_order_and_scores_are_the_retriever_s_and_relevance_is_told_by_the_answer(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", [{"question": QUESTION, "answers": ANSWER, "passages": PASSAGES}])
    report = ImportReport()
    example = only(tmp_path / "log.jsonl", report=report)
    assert [p.id for p in example.passages] == ["a1", "a2", "a3"]
    assert [p.score for p in example.passages] == [0.81, 0.74, 0.6]
    assert (example.relevance, [p.relevant for p in example.passages]) == ("answer", [False, True, False])
    assert report.summary_lines() == ["relevant passages: 1, told in 1 question by answer"]


@pytest.mark.parametrize(
    ("fields", "relevant", "by"),
    [
        ({"relevant_ids": ["a1", "a3"]}, ["a1", "a3"], "id"),
        ({"relevant_ids": "a3"}, ["a3"], "id"),
        ({"relevant_ids": {"a1": 0, "a3": 2}}, ["a3"], "id"),  # grades, as in qrels
        ({"passages": [{**p, "relevant": p["id"] == "a3"} for p in PASSAGES]}, ["a3"], "label"),
        ({"passages": [{**p, "label": "yes" if p["id"] == "a1" else "no"} for p in PASSAGES]}, ["a1"], "label"),
        ({"passages": [{**p, "relevance": "2" if p["id"] == "a1" else "0"} for p in PASSAGES]}, ["a1"], "label"),
    ],
)
def test_relevance_goes_by_ids_then_labels(tmp_path, fields, relevant, by):
    row = {"question": QUESTION, "answers": [ANSWER], "passages": PASSAGES} | fields
    write_jsonl(tmp_path / "log.jsonl", [row])
    example = only(tmp_path / "log.jsonl")
    assert ([p.id for p in example.passages if p.relevant], example.relevance) == (relevant, by)
    assert [p.id for p in only(tmp_path / "log.jsonl", relevance="answer").passages if p.relevant] == ["a2"]


LAYOUTS = {
    "texts": {"question": QUESTION, "answer": ANSWER, "passages": [p["text"] for p in PASSAGES]},
    "ragas": {
        "user_input": QUESTION,
        "response": "Marie Curie",
        "reference": ANSWER,
        "retrieved_contexts": [p["text"] for p in PASSAGES],
    },
    "ragas of old": {
        "question": QUESTION,
        "answer": "Marie Curie",
        "ground_truth": ANSWER,
        "contexts": [p["text"] for p in PASSAGES],
    },
    "a dict of lists": {
        "query": QUESTION,
        "answers": [ANSWER],
        "passages": {"passage_text": [p["text"] for p in PASSAGES], "is_selected": [0, 1, 0]},
    },
    "scored pairs": {
        "query": QUESTION,
        "answers": [ANSWER],
        "documents": [[{"page_content": p["text"], "metadata": {}}, p["score"]] for p in PASSAGES],
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_a_row_for_each_question(tmp_path, name):
    write_json(tmp_path / "log.json", [LAYOUTS[name]])
    example = only(tmp_path / "log.json")
    assert (example.question, example.answers) == (QUESTION, [ANSWER])
    assert [p.text for p in example.passages] == [p["text"] for p in PASSAGES]
    assert [p.relevant for p in example.passages] == [False, True, False]


def test_a_row_for_each_passage_is_put_together_by_question_and_rank(tmp_path):
    rows = [
        {"question": q, "answer": ANSWER, "rank": rank, "doc_id": p["id"], "passage": p["text"], "score": p["score"]}
        for rank, p in enumerate(PASSAGES, start=1)
        for q in (QUESTION, "Who got it?")
    ]
    pandas.DataFrame(rows[::-1]).to_csv(tmp_path / "log.csv", index=False)
    second, first = (example for _, example in read_log(tmp_path / "log.csv"))
    assert (first.question, second.question) == (QUESTION, "Who got it?")
    assert [p.id for p in first.passages] == [p.id for p in second.passages] == ["a1", "a2", "a3"]
    assert [p.score for p in first.passages] == [0.81, 0.74, 0.6]


_ONE_RANK = "left out 1 with several passages at one rank: give each retrieval another `question_id`"


@pytest.mark.parametrize(
    ("ranks", "kept", "said"),
    [
        ("4 1 3 2", "bdca", ""),
        ("4 1 - 2", "bdac", "in 1 question passages have no rank, and stand behind those that have one"),
        ("3 1 2 2", "", _ONE_RANK),
        ("0 0 0 0", "", _ONE_RANK),
        ("1 2 1 2", "", _ONE_RANK),
        ("1 2 3 1", "", _ONE_RANK),
        ("2 1 1 2", "", _ONE_RANK),
    ],
)
def test_no_order_is_lost_without_a_word(tmp_path, caplog, ranks, kept, said):
    caplog.set_level("INFO")
    whole = [{"question": "Q?", "answer": "e", "rank": str(rank), "text": text} for rank, text in enumerate("efg")]
    rows = [
        {"question": QUESTION, "answer": ANSWER, "rank": rank.strip("-"), "text": text, "label": text == "a"}
        for rank, text in zip(ranks.split(), "abcd")
    ]
    pandas.DataFrame([*whole, *rows]).to_csv(tmp_path / "log.csv", index=False)
    first, *second = read_examples(tmp_path / "log.csv")
    assert [p.text for p in first.passages] == list("efg")
    assert "".join(p.text for example in second for p in example.passages) == kept
    warned = "; ".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert said in caplog.text and bool(warned) is bool(said and kept)


def test_all_answers_of_a_question_s_rows_are_accepted(tmp_path):
    answers = ["", ANSWER, "", "W. C. Röntgen", ANSWER]
    rows = [
        {"question": QUESTION, "rank": 5 - i, "text": f"{i} {ANSWER[:i]}", "answer": a} for i, a in enumerate(answers)
    ]
    rows[3]["gold_ids"], rows[2]["doc_id"] = "a2", "a2"
    pandas.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    example = only(tmp_path / "log.csv")
    assert example.answers == [ANSWER, "W. C. Röntgen"]
    assert [p.relevant for p in example.passages] == [False, False, True, False, False]
    labels = [{"question": QUESTION, "answer": a, "gold_ids": i} for a, i in ((ANSWER, "a1"), ("W. C. Röntgen", "a2"))]
    pandas.DataFrame(labels).to_csv(tmp_path / "labels.csv", index=False)
    assert [*RetrievalLog("log").labelled_by(tmp_path / "labels.csv").labels.values()] == [
        ([ANSWER, "W. C. Röntgen"], ["a1", "a2"])
    ]


def test_scores_in_a_column_of_labels_are_no_labels(tmp_path, caplog):
    rows = [{"question": QUESTION, "answer": ANSWER, "relevance": p["score"], "passage": p["text"]} for p in PASSAGES]
    pandas.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    (example,) = read_examples(tmp_path / "log.csv")
    assert (example.relevance, [p.relevant for p in example.passages]) == ("answer", [False, True, False])
    assert [p.score for p in example.passages] == [0.81, 0.74, 0.6]
    assert "in 1 question labels are not whole numbers, so they are scores" in caplog.text
    report = ImportReport()
    assert not list(read_log(tmp_path / "log.csv", relevance="label", report=report))
    assert report.summary_lines() == ["left out 1 whose passages are all relevant, so that position cannot matter"]


def test_a_passage_that_comes_twice_is_relevant_if_it_is_once(tmp_path):
    passages = [{**PASSAGES[n], "relevant": relevant} for n, relevant in ((0, 0), (1, 0), (0, 1), (2, 1), (2, 0))]
    write_jsonl(tmp_path / "log.jsonl", [{"question": QUESTION, "answers": ANSWER, "passages": passages}])
    assert [(p.id, p.relevant) for p in only(tmp_path / "log.jsonl").passages] == [
        ("a1", True),
        ("a2", False),
        ("a3", True),
    ]


def test_names_of_columns_are_told_without_regard_to_case_and_space(tmp_path):
    (tmp_path / "log.csv").write_text(
        f'Question , Answer,RANK,Passage\n{QUESTION},{ANSWER},2,"of\nmany lines"\n{QUESTION},,1,{ANSWER} won.\n'
        f"{QUESTION},,third,\n"
    )
    with refuses(Malformed, "log.csv:5: field `rank`", "'third'"):
        read_examples(tmp_path / "log.csv")
    (tmp_path / "log.csv").write_text((tmp_path / "log.csv").read_text().replace("third", "3"))
    assert [p.text for p in only(tmp_path / "log.csv").passages] == [f"{ANSWER} won.", "of\nmany lines"]
    pandas.DataFrame([{"Frage": QUESTION, "Passage": "a"}]).to_csv(tmp_path / "log.csv", index=False)
    with refuses(Malformed, "log.csv:2: field `question`", " query, ", "frage, passage"):
        read_examples(tmp_path / "log.csv")


def test_a_table_is_no_file_of_lost_in_the_middle(tmp_path):
    (tmp_path / "log.csv").write_text("question,answer,text\n")
    with refuses(PosgapError, "--format rag"):
        data_import(ImportConfig(input=tmp_path / "log.csv", out=tmp_path / "e.jsonl"))


def test_a_label_that_is_a_text_is_named_by_its_row_and_column(tmp_path):
    rows = [{"question": QUESTION, "answer": ANSWER, "gold": g, "passage": g} for g in ("yes", "", "the 2nd")]
    with refuses(Malformed, "log:3: field `gold`", "'the 2nd'"):
        list(RetrievalLog("log").examples(enumerate(rows, start=1)))


@pytest.mark.parametrize("name", ["passages", "context"])
def test_a_log_may_begin_with_questions_that_retrieved_nothing(tmp_path, name):
    lists = [
        {"question": q, "reference": ANSWER, name: cell} for q, cell in (("a", ""), (QUESTION, json.dumps(PASSAGES)))
    ]
    asked = [("a", ""), *((QUESTION, p["text"]) for p in PASSAGES)]
    texts = [{"question": q, "reference": ANSWER, "text": text} for q, text in asked]
    for rows in (lists, texts):
        pandas.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
        assert [p.relevant for p in only(tmp_path / "log.csv").passages] == [False, True, False]


@pytest.mark.parametrize("written", [json.dumps, repr])
def test_cells_of_csv_hold_lists_as_json_or_as_python_prints_them(tmp_path, written):
    row = {"question": QUESTION, "answers": written([ANSWER]), "contexts": written([p["text"] for p in PASSAGES])}
    pandas.DataFrame([row]).to_csv(tmp_path / "log.csv", index=False)
    assert [p.relevant for p in only(tmp_path / "log.csv").passages] == [False, True, False]


@pytest.mark.parametrize("trace", sorted(path.name for path in TRACES.glob("*.jsonl")))
def test_traces_that_the_libraries_wrote(tmp_path, trace):
    labels = [
        {"question": QUESTION, "answers": ANSWER, "relevant_ids": ["a2"]},
        {"question": " when did the Titanic sink?", "answers": "15 April 1912", "relevant_ids": ["b1"]},
    ]
    pandas.DataFrame(labels).to_json(tmp_path / "labels.jsonl", orient="records", lines=True)
    first, second = (
        e for _, e in RetrievalLog(trace).labelled_by(tmp_path / "labels.jsonl").examples(read_rows(TRACES / trace))
    )
    assert [p.id for p in first.passages] == ["a1", "a2", "a3", "a4"]
    assert [p.score for p in second.passages] == [0.9, 0.7, 0.5, 0.3]
    assert first.passages[0].title == "Title a1" and first.gold[0].text.startswith("Wilhelm Röntgen")
    assert (first.relevance, second.answers, second.gold[0].title) == ("id", ["15 April 1912"], "Title b1")


def test_a_trace_without_answers_says_what_to_give():
    with refuses(PosgapError, "left out 2", "--answers"):
        read_examples(TRACES / "langchain_runs.jsonl")


def test_a_log_is_imported_and_read_as_it_was(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [
        {"question": QUESTION, "answers": [ANSWER], "passages": [*PASSAGES, PASSAGES[0]]},  # one comes twice
        {"question": "Who else?", "answers": ["nobody"], "passages": PASSAGES},
        {"question": "Did she?", "answers": ["Yes"], "passages": PASSAGES},
        {"question": "Who?", "answers": [ANSWER], "passages": [{**p, "relevant": p["id"] == "a1"} for p in PASSAGES]},
    ]
    write_jsonl(tmp_path / "log.jsonl", rows)
    data_import(ImportConfig(input=tmp_path / "log.jsonl", out=tmp_path / "e.jsonl", format="rag"))
    imported = read_examples(tmp_path / "e.jsonl")
    assert imported == read_examples(tmp_path / "log.jsonl")
    assert [len(e.passages) for e in imported] == [3, 3]
    assert "left out 1 without a relevant passage" in caplog.text and ", 1 answered by yes or no" in caplog.text
    assert "relevant passages: 2, told in 1 question by answer and 1 question by label" in caplog.text
    assert "1 other passages hold an answer too" in caplog.text
    data_import(ImportConfig(input=tmp_path / "log.jsonl", out=tmp_path / "f.jsonl", format="rag", answering="drop"))
    assert [len(e.passages) for e in read_examples(tmp_path / "f.jsonl")] == [3, 2]


def test_a_json_array_is_read_by_every_command(tmp_path):
    write_json(tmp_path / "log.json", [LAYOUTS["ragas"], {**LAYOUTS["texts"], "id": 5}])
    assert [example.id for example in read_examples(tmp_path / "log.json")] == ["rag-000001", "5"]


@pytest.mark.parametrize("called", [5, [5], None, [{"run_type": "retriever", "inputs": 1, "outputs": []}]])
def test_a_run_of_a_broken_trace_is_passed_over(tmp_path, called):
    run = {"run_type": "chain", "inputs": {"question": QUESTION}, "outputs": None, "child_runs": called}
    whole = {"run_type": "retriever", "inputs": {"query": QUESTION}, "outputs": {"documents": PASSAGES}}
    labelled = {**whole, "reference_outputs": {"answer": ANSWER}}
    write_jsonl(tmp_path / "runs.jsonl", [run, labelled, whole])
    assert only(tmp_path / "runs.jsonl").gold[0].title == "Röntgen"


def test_python_takes_rows_and_frames_of_a_log():
    row = {"question": QUESTION, "answers": [ANSWER], "passages": PASSAGES}
    (example,) = posgap.examples([{name.title(): cell for name, cell in row.items()}])
    assert isinstance(example, RankedExample) and example.gold[0].title == "Röntgen"
    flat = [{"question": QUESTION, "answer": ANSWER, "text": p["text"]} for p in PASSAGES]
    (of_frame,) = posgap.examples(pandas.DataFrame(flat))
    assert [p.text for p in of_frame.passages] == [p["text"] for p in PASSAGES]


def test_a_ranked_example_has_the_content_of_the_same_question_without_ranks(tmp_path):
    (ranked,) = posgap.examples([{"question": QUESTION, "answers": [ANSWER], "passages": PASSAGES}])
    plain = Example(id="b", question=QUESTION, answers=[ANSWER], gold=ranked.gold, distractors=ranked.distractors)
    assert content_key(ranked) == content_key(plain)
    write_examples(tmp_path / "e.jsonl", [ranked, plain])
    assert read_examples(tmp_path / "e.jsonl") == [ranked, plain]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"passages": PASSAGES, "answers": ["a"]}, "log.jsonl:1: field `question`"),
        ({"question": "q", "answers": ["a"]}, "question, answers"),
        (
            {"question": "q", "answers": ["a"], "passages": ["a", 7]},
            "field `passages`: ",
        ),
        ({"question": "q", "answers": ["a"], "passages": [{"text": 7}]}, "`text`"),
        ({"question": "q", "answers": {"a": 1}, "passages": ["a"]}, "field `answers`"),
        (
            {"question": "q", "answers": ["a"], "passages": [{"text": "a", "score": "high"}]},
            "field `score`: ",
        ),
        (
            {"question": "q", "answers": ["a"], "passages": [{"text": "a", "relevant": "maybe"}]},
            "field `relevant`: 'maybe'",
        ),
        (
            {"question": "q", "answers": ["a"], "passages": ["a"], "relevant_ids": ["1"]},
            "--relevant answer",
        ),
        ({"question": "q", "answers": ["a"], "passages": ["a"], "scores": [1, 2]}, "log.jsonl:1: 2 scores for 1 "),
        (
            {"question": "q", "answers": ["a"], "passages": {"text": ["a", "b"], "score": [1]}},
            "field `passages`: ",
        ),
        ({"question": "q", "answers": ["a"], "passages": "['a'\n 'b']"}, "NumPy"),
        ({"question": "q", "answers": ["a"], "passages": "[" * 5000}, "32,767 characters"),
        ({"question": "q", "answers": [None], "passages": ["a"]}, "left out 1 "),
    ],
)
def test_what_is_wrong_is_named_by_row_and_field(tmp_path, row, named):
    write_jsonl(tmp_path / "log.jsonl", [row])
    with refuses(PosgapError if "left out" in named else Malformed, named):
        list(read_log(tmp_path / "log.jsonl"))
