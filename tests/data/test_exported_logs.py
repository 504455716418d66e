"""Retrieval logs as frameworks, spreadsheets and pandas export them are read at the first try, and say what they were
taken for."""

import json

import numpy
import pandas
import pytest
from refusals import refuses

import posgap
from posgap.data.distractors import relevance
from posgap.data.reading import read_examples
from posgap.foundation.errors import BadOption, Malformed, PosgapError
from posgap.foundation.files import write_json, write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.options.sweep import SweepConfig
from posgap.tasks.examples import Document, Example, KVExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.special_tokens import count_special
from posgap.verbs.data_import import data_import

QUESTION, TEXTS = "Where is Orm?", ["Tal exports tin.", "Uln is dry.", "Orm lies in the north."]
ROW = {"question": QUESTION, "answers": ["north"], "passages": TEXTS}
DOCUMENTS = ", ".join(
    f"Document(id='{n}', metadata={{'title': 'T{n}'}}, page_content='{t}')" for n, t in enumerate(TEXTS)
)
ELASTIC = {"hits": {"hits": [{"_id": str(n), "_source": {"text": text}} for n, text in enumerate(TEXTS)]}}
SPAN = {f"retrieval.documents.{n}.document.content": text for n, text in enumerate(TEXTS)}
TEXT_FIELDS = [{"text": text} for text in TEXTS]
PAGES = [{"page_content": text} for text in TEXTS]
EXPORTS = {
    "LangChain's frame": {
        **{"query": QUESTION, "result": "?", "ground_truth": "north"},
        "source_documents": f"[{DOCUMENTS}]",
    },
    "Elasticsearch": {"query": {"match": {"text": QUESTION}}, "expected": "north", "response": ELASTIC},
    "a query of several parts": {
        **{"query": {"bool": {"must": [{"match": {"text": QUESTION}}]}}, "ideal": "north"},
        **ELASTIC,
    },
    "arrays of NumPy": {
        **{"question": QUESTION, "answers": "array(['north'], dtype=object)"},
        "contexts": f"array({TEXTS})",
    },
    "Elasticsearch's hits": {"query": QUESTION, "answers": "north", **ELASTIC},
    "flat hits": {"question": QUESTION, "answer": "north", "hits": [{"title": "", "body": text} for text in TEXTS]},
    "DeepEval": {
        **{"input": QUESTION, "expectedOutput": "north", "actualOutput": "south"},
        **{"context": ["Orm lies in the north."], "retrievalContext": TEXTS},
    },
    "RAGAS": {
        **{"user_input": [{"type": "human", "content": QUESTION}], "reference": "north"},
        "retrieved_contexts": TEXTS,
    },
    "LangSmith's runs": {
        **{"run_type": "chain", "inputs": {"question": QUESTION}, "reference_outputs": {"answer": "north"}},
        "child_runs": [{"run_type": "retriever", "inputs": {}, "outputs": {"documents": PAGES}}],
    },
    "LangSmith's columns": {
        **{"inputs.question": QUESTION, "outputs.answer": "south", "outputs.context": TEXTS},
        "reference_outputs.answer": "north",
    },
    "Langfuse": {"id": "1", "input": json.dumps({"query": QUESTION}), "answers": ["north"], "documents": TEXTS},
    "Langfuse's traces": {
        **{"id": "t", "input": {"messages": [{"role": "user", "content": QUESTION}]}, "expectedOutput": "north"},
        "observations": [{"type": "RETRIEVER", "input": QUESTION, "output": [{"pageContent": t} for t in TEXTS]}],
    },
    "Phoenix": {
        **{"attributes.input.value": QUESTION, "expected_answer": "north", "name": "retrieve", "span_id": "a"},
        "attributes.retrieval.documents": [{"document.content": text, "document.id": text} for text in TEXTS],
    },
    "OpenTelemetry": {
        **{"span_id": "a", "timestamp": "2026-01-01", "name": "retrieve", "expected_answer": "north"},
        "attributes": {"input.value": QUESTION, **SPAN},
    },
    "Chroma": {
        **{"query": QUESTION, "answers": ["north"], "documents": [TEXTS]},
        **{"ids": [["a", "b", "c"]], "distances": [[0.1, 0.2, 0.3]]},
    },
    "Qdrant": {"query": QUESTION, "answers": "north", "results": [{"id": 1, "payload": each} for each in TEXT_FIELDS]},
    "Pinecone": {"query": QUESTION, "answers": "north", "matches": [{"metadata": each} for each in TEXT_FIELDS]},
    "Haystack's pipeline": {
        **{"query": {"text": QUESTION}, "ground_truth": "north"},
        **{"retriever": {"documents": [{"content": text} for text in TEXTS]}, "llm": {"replies": ["?"]}},
    },
    "Bedrock": {
        **{"query": {"text": QUESTION}, "answers": "north"},
        "retrievalResults": [{"content": {"text": text}, "score": 0.5} for text in TEXTS],
    },
    "Azure": {"query": QUESTION, "answers": "north", "value": [{"@search.score": 1.5, "content": t} for t in TEXTS]},
    "Haystack": {"query": QUESTION, "answers": "north", "documents": [{"content": t, "meta": {}} for t in TEXTS]},
    "LongBench": {
        **{"input": QUESTION, "answers": ["north"]},
        "context": "\n\n".join(f"Passage {n}:\n{text}" for n, text in enumerate(TEXTS)),
    },
    "SQuAD's answers": {**ROW, "answers": {"text": ["north"], "answer_start": [3]}},
    "TriviaQA's answers": {"question": QUESTION, "passages": TEXTS, "answer": {"value": "north", "aliases": []}},
    "columns": {"question": QUESTION, "answer": "north"} | {f"context_{n}": text for n, text in enumerate(TEXTS)},
    "an answer that is null": {**ROW, "answers": ["north", None]},
    "chunks": {**ROW, "passages": [{"chunk": text} for text in TEXTS]},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_read_at_the_first_try(tmp_path, name):
    write_jsonl(tmp_path / "log.jsonl", [EXPORTS[name]])
    (example,) = read_examples(tmp_path / "log.jsonl")
    assert (example.question, example.answers, example.relevance) == (QUESTION, ["north"], "answer")
    assert [(passage.text, passage.relevant) for passage in example.passages] == [(t, t == TEXTS[2]) for t in TEXTS]


def test_metadata_of_exports_is_kept(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", [EXPORTS["LangChain's frame"]])
    (example,) = read_examples(tmp_path / "log.jsonl")
    assert [(p.id, p.title) for p in example.passages] == [("0", "T0"), ("1", "T1"), ("2", "T2")]


@pytest.mark.parametrize("orient", ["records", "columns", "index", "split", "table"])
def test_any_orient_of_pandas_is_read(tmp_path, orient):
    frame = pandas.DataFrame([ROW, ROW | {"question": "Which?"}])
    frame.to_json(tmp_path / "log.json", orient=orient)
    assert [example.question for example in read_examples(tmp_path / "log.json")] == [QUESTION, "Which?"]
    write_json(tmp_path / "list.json", frame.to_dict("list"))
    assert [example.question for example in read_examples(tmp_path / "list.json")] == [QUESTION, "Which?"]
    frame.to_json(tmp_path / "values.json", orient="values")
    with refuses(Malformed, "values.json:1", "orient='records'"):
        read_examples(tmp_path / "values.json")


def test_dotted_columns_may_stand_within_an_object(tmp_path):
    write_json(tmp_path / "log.json", {"spans": [EXPORTS["Phoenix"], EXPORTS["Phoenix"] | {"name": "again"}]})
    (example,) = read_examples(tmp_path / "log.json")
    assert (example.question, [p.relevant for p in example.passages]) == (QUESTION, [False, False, True])


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_may_stand_within_an_object(tmp_path, indent):
    (tmp_path / "log.json").write_text(json.dumps({"version": 1, "results": [ROW]}, indent=indent))
    assert [example.question for example in read_examples(tmp_path / "log.json")] == [QUESTION]


def test_frames_with_values_of_numpy_are_read():
    frame = pandas.DataFrame([{**ROW, "answers": 1994, "passages": numpy.array(["In 1871.", "In 1994."], object)}])
    (example,) = posgap.examples(frame)
    assert (example.answers, [p.relevant for p in example.passages]) == (["1994"], [False, True])


EXCEL = (
    "Nr;Question;Expected answer;Rank;Passage;Score;Relevant?\n1;Where is Orm?;north;1;Tal exports tin.;0,9;\n"
    ";;;2;Orm lies there.;0,8;x\n2;Where is Tal?;south; north-east;1;Orm;0,7;ja\n;;;2;Tal – here;0,2;\n"
).replace("south; north-east", '"south; north-east"')


@pytest.mark.parametrize("separator", [";", "\t", "sep=;"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252", "utf-16"])
def test_tables_of_spreadsheets_are_read(tmp_path, separator, encoding):
    text = f"sep=;\n{EXCEL}" if separator == "sep=;" else EXCEL
    if separator == "\t":
        text = EXCEL.replace("south; north", "south| north").replace(";", "\t")
    (tmp_path / "log.csv").write_bytes(text.encode(encoding))
    first, second = read_examples(tmp_path / "log.csv")
    assert (first.question, first.answers, second.answers) == (QUESTION, ["north"], ["south", "north-east"])
    assert [(p.text, p.relevant, p.score) for p in first.passages] == [
        ("Tal exports tin.", False, 0.9),
        ("Orm lies there.", True, 0.8),
    ]
    assert [p.relevant for p in second.passages] == [True, False]


def test_columns_of_other_names_are_named(tmp_path):
    rows = [{"Frage": QUESTION, "Lösung": "north", "Platz": 3 - n, "Inhalt": text} for n, text in enumerate(TEXTS)]
    pandas.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    columns = {"question": "Frage", "answer": "Lösung", "text": "Inhalt", "rank": "Platz"}
    config = ImportConfig(input=tmp_path / "log.csv", out=tmp_path / "e.jsonl", format="rag", columns=columns)
    (example,) = read_examples(data_import(config))
    assert (example.answers, [p.text for p in example.passages]) == (["north"], TEXTS[::-1])
    with refuses(BadOption, "'colour'", "answer, answers"):
        data_import(config.model_copy(update={"columns": {"colour": "Frage"}, "force": True}))


def test_a_column_that_is_named_counts_before_the_format_s(tmp_path):
    results = [{"page_name": "a", "page_snippet": text} for text in TEXTS]
    row = {"query": QUESTION, "answer": "south", "alt_ans": ["the south"], "mine": "north", "search_results": results}
    write_jsonl(tmp_path / "crag.jsonl", [row])
    config = ImportConfig(input=tmp_path / "crag.jsonl", out=tmp_path / "e.jsonl", format="rag")
    (example,) = read_examples(data_import(config.model_copy(update={"columns": {"answers": "mine"}})))
    assert (example.answers, [p.text for p in example.passages]) == (["north"], TEXTS)


def test_an_import_says_in_a_few_lines_what_it_took_for_what(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [
        {
            **ROW,
            "passages": [{"text": t, "score": 0.5 - n} for n, t in enumerate(TEXTS)] + [{"image": "x.png", "id": 1}],
        }
    ]
    write_jsonl(tmp_path / "log.jsonl", rows)
    data_import(ImportConfig(input=tmp_path / "log.jsonl", out=tmp_path / "e.jsonl", format="rag"))
    lines = [record.getMessage().partition("log.jsonl: ")[2] for record in caplog.records]
    assert [line for line in lines if line] == [
        "1 question of 1 row, each a question",
        "question from `question`, answers from `answers`, passages from `passages`, text from `text`",
        "3 passages for each question; 1 without a text are left out",
        "order: as listed; `score` agrees",
        "relevant passages: 1, told in 1 question by answer",
    ]


def test_all_faults_of_a_file_are_said_at_once(tmp_path):
    rows = [ROW, *[{"answers": ["a"], "passages": TEXTS}] * 5, {**ROW, "passages": "no list"}, {**ROW, "scores": [1]}]
    write_jsonl(tmp_path / "log.jsonl", rows)
    with pytest.raises(PosgapError) as caught:
        read_examples(tmp_path / "log.jsonl")
    said = str(caught.value)
    assert "log.jsonl:4 and 2 more: field `question`: missing" in said
    assert (
        "log.jsonl:7: field `passages`: a text and no list" in said and "log.jsonl:8: 1 scores for 3 passages" in said
    )


def test_distances_beside_a_document_keep_the_list_s_order(tmp_path):
    pairs = [[{"page_content": text, "metadata": {}}, 0.1 * n] for n, text in enumerate(TEXTS)]
    write_jsonl(tmp_path / "log.jsonl", [{**ROW, "passages": pairs}])
    assert [p.text for p in read_examples(tmp_path / "log.jsonl")[0].passages] == TEXTS


@pytest.mark.parametrize(
    "relevances",
    [
        [[1.0, 0.0, 0.0], [0.93, 0.41, 0.02]],
        [["100 %", "0 %", "0 %"], ["9 %", "8 %", "7 %"]],
        [["9 %", "4 %", "0 %"], ["9%", "8%", "7%"]],
        [[100, 0, 0], [87, 41, 2]],
    ],
)
def test_scores_are_no_labels_in_any_question_of_a_log(tmp_path, relevances):
    rows = []
    for own in relevances:
        rows.append({**ROW, "passages": [{"text": t, "relevance": r} for t, r in zip(TEXTS, own)]})
    write_jsonl(tmp_path / "log.jsonl", rows)
    assert [example.relevance for example in read_examples(tmp_path / "log.jsonl")] == ["answer", "answer"]
    graded = [{**ROW, "passages": [{"text": t, "relevance": float(t == TEXTS[2])} for t in TEXTS]}]
    write_jsonl(tmp_path / "graded.jsonl", graded)
    assert read_examples(tmp_path / "graded.jsonl")[0].relevance == "label"


@pytest.mark.parametrize(
    "ids", ["d1,d3", "d1; d3", "d1 | d3", "['d1', 'd3']", ["d1", "d3"], {"d1": 1, "d3": 2, "d2": 0}]
)
def test_ids_in_a_cell_are_told_apart(tmp_path, ids):
    passages = [{"text": text, "doc_id": f"d{n}"} for n, text in enumerate(TEXTS, start=1)]
    write_jsonl(tmp_path / "log.jsonl", [{**ROW, "passages": passages, "relevant_ids": ids}])
    assert [p.relevant for p in read_examples(tmp_path / "log.jsonl")[0].passages] == [True, False, True]


def test_ids_that_are_off_by_one_are_warned_of(tmp_path, caplog):
    passages = [{"id": n, "text": text} for n, text in enumerate(TEXTS)]
    write_jsonl(tmp_path / "log.jsonl", [{**ROW, "passages": passages, "relevant_ids": [1]}] * 3)
    read_examples(tmp_path / "log.jsonl")
    assert "in 3 of 3 questions an answer is only in passages that are not marked as relevant" in caplog.text


def test_what_a_chain_answered_is_not_accepted(tmp_path):
    for accepted in ("expected_answer", "expected_output", "golden_answers", "ground_truth"):
        row = {"question": QUESTION, "answer": "dry", accepted: "north", "documents": TEXTS}
        write_jsonl(tmp_path / "log.jsonl", [row])
        assert read_examples(tmp_path / "log.jsonl")[0].answers == ["north"]


@pytest.mark.parametrize(
    ("answers", "read"), [(1994, ["1994"]), ("1994.0", ["1994"]), ("[SEP]", ["[SEP]"]), ("a; b", ["a", "b"])]
)
def test_answers_are_read_as_they_are_meant(tmp_path, answers, read):
    passages = [f"It is {read[-1]}.", "Nobody knows."]
    write_json(tmp_path / "log.json", [{"question": QUESTION, "answers": answers, "passages": passages}])
    assert read_examples(tmp_path / "log.json")[0].answers == read


def test_an_id_that_questions_share_is_not_theirs(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", [{**ROW, "id": "u7"}, {**ROW, "id": "u7", "question": "Which?"}])
    assert [example.id for example in read_examples(tmp_path / "log.jsonl")] == ["rag-000001", "rag-000002"]


def test_the_task_is_what_the_examples_are(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", [ROW])
    paths = {"model": "m", "out": tmp_path / "out"}
    assert SweepConfig(**paths, examples=tmp_path / "log.jsonl").task == "rag"
    assert SweepConfig(**paths, examples=tmp_path / "log.jsonl", task="qa").task == "qa"
    record = KVExample(id="a", question="k", answers=["v"], key="k", value="v", records=[("k", "v")])
    write_jsonl(tmp_path / "kv.jsonl", [record.model_dump()])
    assert SweepConfig(**paths, examples=tmp_path / "kv.jsonl").task == "kv"
    assert SweepConfig(**paths, examples="s3://bucket/log.jsonl").task == "kv"


def test_an_example_that_lacks_what_its_task_needs_is_refused(tmp_path):
    write_jsonl(tmp_path / "log.jsonl", [ROW])
    (example,) = read_examples(tmp_path / "log.jsonl")
    builder = TextPromptBuilder(TASKS["kv"], 8)
    with refuses(PosgapError, "rag-000001", "task kv", "--task"):
        builder.prompt(example, Placement((1,), 3))
    assert TextPromptBuilder(TASKS["rag"], 8).prompt(example, Placement((1,), 3)).text


def test_special_tokens_in_passages_are_counted_and_split(tokenizer):
    end = tokenizer.eos_token
    document = Document(title="On chats", text=f"A turn ends with {end} there.")
    example = Example(id="a", question="Q?", answers=["x"], gold=[document], distractors=[])
    assert count_special([example, example], [end]) == {
        "examples_with_special_tokens": 2,
        "passages_with_special_tokens": 2,
    }
    builder = PromptBuilder(TASKS["qa"], tokenizer, 4096, 8)
    ids = builder(example, Placement((1,), 1))
    assert tokenizer.eos_token_id not in ids[1:-1]


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        ("白島の首都はどこですか", ["青川の名物は林檎である。", "白島の首都は海辺市である。", "黒原は広い。"]),
        ("แม่น้ำโขงไหลผ่านประเทศใด", ["ข้าวเหนียวมะม่วง", "แม่น้ำโขงไหลผ่านลาว", "กรุงเทพ"]),
        ("អង្គរវត្តនៅឯណា", ["ទន្លេមេគង្គ", "អង្គរវត្តជាប្រាសាទ", "ភ្នំពេញ"]),
        ("ນະຄອນຫຼວງວຽງຈັນ", ["ແມ່ນ້ຳຂອງ", "ນະຄອນຫຼວງຂອງລາວ", "ເຂົ້າໜຽວ"]),
    ],
)
def test_bm25_ranks_texts_without_spaces(question, texts):
    scores = relevance(question, [Document(title="", text=text) for text in texts])
    assert scores[1] > max(scores[0], scores[2])
