"""Exports of frameworks, stores and public data, and logs that speak with two voices: `tests/logs/right.json` has what
is right of each file there; where two readings differ, both are said and an option decides."""

import json
from pathlib import Path

import pytest
from refusals import refuses

from posgap.data.import_report import ImportReport
from posgap.data.retrieval_logs import RetrievalLog, is_log
from posgap.foundation.errors import Ambiguous, BadOption, Malformed
from posgap.foundation.files import read_rows
from posgap.measurement.sweep_run import warn_of_sentences

LOGS = Path(__file__).parents[1] / "logs"
RIGHT = json.loads((LOGS / "right.json").read_text(encoding="utf-8"))
QUESTION = "Where is Orm?"
TEXTS = ["Tal exports tin since 1812.", "Orm lies in the north.", "Uln exports tin since 1813."]
ASKED = {"question": QUESTION, "answers": ["north"]}
PROMPT = f"Answer from this.\n{TEXTS[0]}\n{TEXTS[1]}\n{TEXTS[2]}\nAsked: {QUESTION}"


def passages(**columns) -> list[dict]:
    """The texts with these columns beside them."""
    return [{"text": text} | {name: cells[at] for name, cells in columns.items()} for at, text in enumerate(TEXTS)]


def read(*rows, **options):
    """The examples of rows, and what became of the others."""
    report = ImportReport()
    return [e for _, e in RetrievalLog("log", **options).examples(enumerate(rows, start=1), report)], report


def order(*rows, **options) -> list[int]:
    """The texts of the first question, by number, in the retriever's order."""
    (example, *_), _ = read(*rows, **options)
    return [TEXTS.index(passage.text) for passage in example.passages]


def options_of(error: Ambiguous) -> list[str]:
    """The options that a refusal offers."""
    return [
        part.strip("`").split("`")[0] for part in str(error).split("--")[1:] if part.startswith(("order", "col", "rel"))
    ]


@pytest.mark.parametrize("name", RIGHT)
def test_files_have_their_right_values(name):
    report, right = ImportReport(), RIGHT[name]
    examples = RetrievalLog(name).examples(read_rows(LOGS / name), report)
    if "asks" in right:
        with pytest.raises(Ambiguous) as asked:
            list(examples)
        assert all(option in str(asked.value) for option in right["asks"])
        return
    read = [example for _, example in examples]
    gold = [[at for at, passage in enumerate(each.passages, start=1) if passage.relevant] for each in read]
    answers = {answer for example in read for answer in example.answers}
    assert (gold, sorted(answers)) == (right["gold"], right["answers"])
    assert report.left_out.total() == right.get("left_out", 0)


FORMATS = {
    "AutoRAG": {
        **{"query": QUESTION, "retrieval_gt": [["b"]], "generation_gt": ["north"], "retrieved_contents": TEXTS},
        **{"retrieved_ids": ["a", "b", "c"], "retrieve_scores": [0.9, 0.8, 0.7]},
    },
    "Azure, semantic": {
        "value": passages(**{"@search.score": [0.2, 0.9, 0.5], "@search.rerankerScore": [3.1, 2.2, 1.0]}),
        **ASKED,
    },
    "Bedrock": {
        "conversationTurns": [
            {
                "prompt": {"content": [{"text": QUESTION}]},
                "referenceResponses": [{"content": [{"text": "north"}]}],
                "output": {"retrievedPassages": {"retrievalResults": [{"content": {"text": text}} for text in TEXTS]}},
            }
        ]
    },
    "BioASQ": {
        "questions": [{"body": QUESTION, "snippets": passages(), "exact_answer": [["north"]], "type": "factoid"}]
    },
    "Cohere": {**ASKED, "results": [{"relevance_score": 1 - at / 9, "document": p} for at, p in enumerate(passages())]},
    "CRUD-RAG": {"questions": QUESTION, "answers": "north"} | {f"news{n}": t for n, t in enumerate(TEXTS, start=1)},
    "KILT": {"input": QUESTION, "output": [{"answer": "north", "provenance": [{"title": "Orm"}]}], "ctxs": passages()},
    "Milvus, cosine": {**ASKED, "results": [{"distance": 1 - n / 9, "entity": p} for n, p in enumerate(passages())]},
    "OpenAI": {
        **ASKED,
        "results": [{"score": 1 - n / 9, "content": [{"type": "text", "text": t}]} for n, t in enumerate(TEXTS)],
    },
    "OpenAI, search of a store": {
        **ASKED,
        "data": [{"score": 1 - n / 9, "content": [{"type": "text", "text": t}]} for n, t in enumerate(TEXTS)],
    },
    "RankLLM": {
        "query": {"text": QUESTION, "qid": 3}, "answers": "north",
        "candidates": [{"docid": n, "score": 1 - n / 9, "doc": {"contents": t}} for n, t in enumerate(TEXTS)],
    },
    "OpenSearch": {**ASKED, "hits": {"hits": [{"_score": 1 - n / 9, "_source": p} for n, p in enumerate(passages())]}},
    "pgvector": {**ASKED, "rows": "", "documents": passages(distance=[0.1, 0.2, 0.3])},
    "Pinecone, Euclid": {**ASKED, "matches": [{"score": n, "metadata": p} for n, p in enumerate(passages())]},
    "promptfoo": {
        "results": {"results": [{"prompt": {"raw": PROMPT}, "vars": {"question": QUESTION, "context": TEXTS, **ASKED}}]}
    },
    "Qdrant": {**ASKED, "points": [{"score": 1 - n / 9, "payload": p} for n, p in enumerate(passages())]},
    "TruLens": {"input": QUESTION, "output": "?", "ground_truth": "north", "contexts": TEXTS},
    "Weaviate": {**ASKED, "objects": [{"properties": p, "metadata": {"distance": 1}} for p in passages()]},
    "a query of a store": {**ASKED, "query": {"match": {"body": "orm"}}, "documents": passages()},
    "ranks from the end": {**ASKED, "documents": passages(rank=[1, 2, 3])[::-1]},
    "HotpotQA": {"question": QUESTION, "answer": "north", "context": [["T", [text]] for text in TEXTS]},
    "Azure OpenAI": {**ASKED, "choices": [{"message": {"content": "?", "context": {"citations": passages()}}}]},
    "Cohere, by index": {
        **ASKED, "documents": [TEXTS[1], TEXTS[2], TEXTS[0]],
        "results": [{"index": 2, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.5}, {"index": 1}],
    },
    "Dify": {
        "query": QUESTION, "answer": "Tal exports tin", "expected": "north",
        "metadata": {"retriever_resources": passages(position=[1, 2, 3], score=[0.9, 0.8, 0.7])},
    },
    "Dify, hit testing": {
        "query": {"content": QUESTION, "tsne_position": None}, "answers": "north",
        "records": [{"segment": {"position": 7 - n, "content": text, "document": {"name": "a.txt"}}, "score": 1 - n / 9}
                    for n, text in enumerate(TEXTS)],
    },
    "Dify, external knowledge": {
        "query": QUESTION, "answers": "north",
        "records": [{"content": text, "score": 1 - n / 9, "title": "", "metadata": {}} for n, text in enumerate(TEXTS)],
    },
    "Flowise": {"text": "?", "question": QUESTION, "expected": "north", "sourceDocuments": passages()},
    "Gemini": {
        **ASKED,
        "candidates": [{"groundingMetadata": {"groundingChunks": [{"retrievedContext": p} for p in passages()]}}],
    },
    "Haystack, evaluation": {"questions": QUESTION, "contexts": str(TEXTS), "true_answers": "north", "doc_mrr": 0.5},
    "Kendra": {**ASKED, "ResultItems": [{"DocumentTitle": "", "Content": text} for text in TEXTS]},
    "Langfuse, trace": {
        "input": {"question": QUESTION}, "output": {"answer": "Tal exports tin"}, "expectedOutput": "north",
        "observations": [{"input": {"query": QUESTION}, "output": passages()}],
    },
    "LlamaIndex, retrieval": {
        "query": QUESTION, "reference": "north", "expected_ids": ["b"], "retrieved_ids": ["a", "b", "c"],
        "retrieved_texts": TEXTS, "expected_texts": TEXTS[1:2],
    },
    "Milvus, lists": {**ASKED, "data": [[{"distance": n / 9, "entity": p} for n, p in enumerate(passages())]]},
    "MLflow": {
        "request": json.dumps({"question": QUESTION}), "response": "?", "expected_response": "north",
        "retrieved_context": passages(doc_uri="abc"), "expected_retrieved_context": [{"doc_uri": "b"}],
    },
    "MLflow, evaluation": {
        "inputs": {"query": QUESTION}, "expectations": {"expected_response": "north"},
        "outputs": {"response": "?", "retrieved_context": [{"doc_uri": "u", "content": text} for text in TEXTS]},
    },
    "NVIDIA RAG": {**ASKED, "citations": {"total_results": 3, "results": passages(score=[9, 8, 7])}},
    "Open WebUI": {**ASKED, "sources": [{"document": TEXTS[:2], "source": {}}, {"document": TEXTS[2:], "source": {}}]},
    "Qdrant, search": {**ASKED, "result": [{"score": 1 - n / 9, "payload": p} for n, p in enumerate(passages())]},
    "R2R": {**ASKED, "results": {"chunk_search_results": passages(score=[3, 2, 1.5]), "graph_search_results": []}},
    "RAGFlow": {**ASKED, "data": {"chunks": passages(similarity=[0.9, 0.8, 0.7]), "total": 3}},
    "TEI, rerank": {
        **ASKED, "texts": [TEXTS[2], TEXTS[1], TEXTS[0]],
        "results": [{"index": n, "score": n + 0.5} for n in (2, 1, 0)],
    },
    "Weave": {
        "op_name": "predict", "inputs": {"question": QUESTION}, "expected": "north",
        "output": {"answer": "Tal exports tin", "context": TEXTS},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_exports_of_frameworks_and_stores_are_read(name):
    (example,), _ = read(FORMATS[name])
    assert (example.question, example.answers) == (QUESTION, ["north"])
    assert [passage.relevant for passage in example.passages] == [False, True, False]
    assert [TEXTS.index(passage.text) for passage in example.passages] == [0, 1, 2]


UNANSWERED = {"question": QUESTION, "answer": "north"}  # by the application itself


@pytest.mark.parametrize(
    "row",
    [
        {**UNANSWERED, "metadata": {"retriever_resources": passages()}},  # Dify
        {**UNANSWERED, "retriever_resources": passages()},
        {**UNANSWERED, "contexts": TEXTS},
        {**UNANSWERED, "retrieved_docs": TEXTS},
        {**UNANSWERED, "retrieved_passages": passages(score=[3, 2, 1])},
        {"inputs": {"question": QUESTION}, "output": {"answer": "north", "context": TEXTS}},  # Weave
        {"input": {"question": QUESTION}, "output": {"answer": "north"}, "observations": [{"output": passages()}]},
    ],
)
def test_what_an_application_answered_is_no_accepted_answer(row):
    examples, report = read(row)
    assert not examples and "without answers" in next(iter(report.left_out))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        # Ragas' testset, LlamaIndex' data, Weaviate's GraphQL, BEIR's results, LangSmith's data
        ("user_input", {"user_input": QUESTION, "reference_contexts": TEXTS[:1], "reference": "north"}),
        ("queries", {"queries": {"q": QUESTION}, "corpus": {"d": TEXTS[0]}, "relevant_docs": {"q": ["d"]}}),
        ("data", {**ASKED, "data": {"Get": {"Passage": passages()}}}),
        ("q0", {"q0": {"d0": 0.5, "d1": 0.4}}),
        ("inputs", {"id": "1", "inputs": {"question": QUESTION}, "outputs": {"answer": "north"}}),
    ],
)
def test_a_file_without_retrieved_passages_names_its_fields(name, row):
    assert is_log(row)
    with refuses(Malformed, name) as refused:
        read(row)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "rows",
    [
        [{**ASKED, "rank": 1}, {**ASKED, "text": TEXTS[0]}],  # a question whose first row has no passage
        [{"question": QUESTION, "text": TEXTS[0], "rank": {"is": 1}}],
        [{**ASKED, "documents": TEXTS, "results": [[1], {"index": 0}]}],
        [{"columns": [["question"], "answers"], "data": [[QUESTION, "north"]]}],
        [{"columns": ["question", "answers"], "data": [None, 3]}],
    ],
)
def test_rows_that_are_not_what_they_seem_are_faults_of_the_log(rows):
    with pytest.raises(Malformed):
        read(*rows)


def test_passages_whose_text_is_not_found_are_not_blamed_on_the_retriever():
    row = {"query": QUESTION, "answers": "north", "candidates": [{"doc": {"segment": text}} for text in TEXTS]}
    examples, report = read(row)
    assert not examples and "--columns text=" in next(iter(report.left_out))
    (example,), _ = read(row, columns={"text": "segment"})
    assert [passage.relevant for passage in example.passages] == [False, True, False]


def test_grades_by_id_may_stand_in_a_cell_of_text():
    (example,), _ = read({**ASKED, "passages": passages(id="abc"), "qrels": '{"a": 0, "c": 2}'})
    assert [passage.relevant for passage in example.passages] == [False, False, True]


@pytest.mark.parametrize(
    ("columns", "listed"),
    [
        ({"score": [0.1, 0.2, 0.3]}, True),  # distances, or the worst first
        ({"score": [0.2, 0.9, 0.5]}, True),
        ({"score": [0.2, 0.9, 0.5]}, False),
        ({"score": [0.1, 0.2, 0.3]}, False),
        ({"distance": [0.3, 0.2, 0.1]}, True),  # a similarity that is called so
        ({"distance": [0.3, 0.2, 0.1]}, False),
        ({"rank": [3, 1, 2]}, True),  # the first stage's, after reranking
        ({"rank": [0.1, 0.6, 0.3]}, False),  # PostgreSQL's ts_rank, shuffled
        ({"rank": [66, 31, 1]}, True),
        ({"rank": [66, 31, 1]}, False),
        ({"rank": [1, 2, 3], "score": [0.5, 0.9, 0.7]}, True),
        ({"rank": [3, 1, 2], "score": [0.5, 0.7, 0.9]}, False),
        ({"score": [0.9, 0.5, 0.1], "rerank_score": [0.1, 0.9, 0.5]}, True),
        ({"score": [0.9, 0.8, 0.7], "similarity": [0.1, 0.9, 0.5]}, True),
    ],
)
def test_two_orders_are_asked_about(columns, listed):
    own = passages(**columns)
    rows = [{**ASKED, "passages": own}] if listed else [{**ASKED, **passage} for passage in own]
    with pytest.raises(Ambiguous) as asked:
        read(*rows)
    offered = options_of(asked.value)
    assert "order listed" in offered and len(offered) > 2
    assert any(repr(text) in str(asked.value) for text in TEXTS)
    orders = {tuple(order(*rows, order=option.removeprefix("order "))) for option in offered}
    assert (0, 1, 2) in orders and len(orders) > 1, "the options give different orders"


@pytest.mark.parametrize(
    ("columns", "listed", "right"),
    [
        ({"rank": [2, 0, 1]}, False, [1, 2, 0]),  # the rows of a table have no order of their own
        ({"similarity": [0.2, 0.9, 0.5]}, False, [1, 2, 0]),
        ({"rank": [2, 0, 1], "score": [0.1, 0.9, 0.5]}, False, [1, 2, 0]),
        ({"rank": [2, 0, 1], "score": [0.9, 0.1, 0.5]}, False, [1, 2, 0]),  # distances
        ({"score": [0.2, 0.9, 0.5], "rerank_score": [0.9, 0.8, 0.1]}, True, [0, 1, 2]),
        ({"score": [0.2, 0.9, 0.5], "rrf_score": [0.03, 0.02, 0.01]}, True, [0, 1, 2]),
        ({"rank": [1, 2, 3], "score": [0.1, 0.2, 0.3]}, True, [0, 1, 2]),
        ({"score": [0.5, 0.5, 0.5]}, True, [0, 1, 2]),
        ({"position": [120, 3, 7]}, True, [0, 1, 2]),  # in the document
    ],
)
def test_one_order_is_taken_as_it_is_meant(columns, listed, right):
    own = passages(**columns)
    rows = [{**ASKED, "passages": own}] if listed else [{**ASKED, **passage} for passage in own]
    assert order(*rows) == right


@pytest.mark.parametrize("order", ["up", "x:lowest", "score", "score:best"])
def test_an_order_that_the_log_has_not_is_refused(order):
    with refuses(BadOption, "score:highest, score:lowest"):
        read({**ASKED, "passages": passages(score=[1, 2, 3])}, order=order)


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"passages": passages(score=[0, 1, 0])}, ["columns label=score", "order score:highest", "order listed"]),
        (
            {"passages": passages(relevant=[0, 1, 0], label=[1, 0, 0])},
            ["columns label=relevant", "columns label=label"],
        ),
        (
            {"passages": passages(relevant=[0, 1, 0], id="abc"), "relevant_ids": ["a"]},
            ["relevant id", "relevant label"],
        ),
        (
            {"passages": passages(chunk_id=[1, 2, 3], doc_id=[2, 1, 1]), "relevant_ids": [2]},
            ["columns id=chunk_id", "columns id=doc_id"],
        ),
        ({"passages": TEXTS, "query": "And Tal?"}, ["columns question=question", "columns question=query"]),
        ({"passages": TEXTS, "ground_truth": "tin"}, ["columns answer=ground_truth", "columns answer=answers"]),
        ({"documents": TEXTS, "reranked": TEXTS[::-1]}, ["columns passages=documents", "columns passages=reranked"]),
    ],
)
def test_two_readings_of_questions_and_relevance_are_asked_about(row, options):
    with pytest.raises(Ambiguous) as asked:
        read({**ASKED, **row})
    assert options_of(asked.value) == options
    for option in options:
        kind, _, value = option.partition(" ")
        field, _, name = value.partition("=")
        chosen = {"columns": {field: name}, "order": value, "relevant": value}[kind]
        read({**ASKED, **row}, **{"relevance" if kind == "relevant" else kind: chosen})  # is read, one way or the other


def test_all_fields_that_differ_are_named():
    with pytest.raises(Ambiguous) as asked:
        read({**ASKED, "documents": TEXTS, "contexts": TEXTS[:2], "reranked": TEXTS[::-1]})
    assert options_of(asked.value) == [f"columns passages={name}" for name in ("documents", "contexts", "reranked")]


def test_sessions_of_a_conversation_are_passages():
    sessions = [[{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}] for text in TEXTS]
    (example,), _ = read({**ASKED, "haystack_sessions": sessions, "ids": ["a", "b", "c"], "doc_ids": ["x", "y", "z"]})
    assert [passage.relevant for passage in example.passages] == [False, True, False]
    (example,), _ = read({**ASKED, "passages": TEXTS, "ids": [1, 2, 3], "doc_ids": ["x", "y", "z"], "gold_ids": ["z"]})
    assert [passage.relevant for passage in example.passages] == [False, False, True]


def test_the_ids_that_are_named_decide():
    row = {**ASKED, "passages": passages(chunk_id=[1, 2, 3], doc_id=[2, 1, 1]), "relevant_ids": [2]}
    for name, relevant in (("chunk_id", [False, True, False]), ("doc_id", [True, False, False])):
        (example,), _ = read(row, columns={"id": name})
        assert [passage.relevant for passage in example.passages] == relevant


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"input": PROMPT}, "`input`"),
        ({"prompt": {"raw": PROMPT}}, "`prompt`"),
        ({"messages": [{"role": "system", "content": "Hi"}, {"role": "user", "content": PROMPT}]}, "`messages`"),
        ({"question": PROMPT.upper().replace("\n", "\n\n  ")}, "`question`"),
        ({"input": PROMPT, "asked_by_user": QUESTION}, "question=asked_by_user"),
        ({"input": f"From this: {TEXTS[1]} {TEXTS[2][:-5]} answer {QUESTION} {TEXTS[0]}"}, "`input`"),
    ],
)
def test_a_prompt_is_no_question(row, named):
    with refuses(Ambiguous, named, "--columns question="):
        read({**row, "contexts": TEXTS, "ground_truth": "north"})
    rows = [{**row, "answers": "north", "text": text, "rank": at} for at, text in enumerate(TEXTS, start=1)]
    with refuses(Ambiguous, named):
        read(*rows)


def test_a_prompt_beside_its_question_is_passed_over():
    (example,), _ = read({"question": QUESTION, "prompt": PROMPT, "contexts": TEXTS, "ground_truth": "north"})
    assert example.question == QUESTION
    beside = {
        "contexts": passages(),
        "sources": ["a.pdf"],
        "docs": [{"url": "u"}],
        "documents": TEXTS,
        "ground_truth": "north",
    }
    (example,), _ = read({"question": QUESTION, **beside})  # the same texts twice, and files
    quoting = 'What does "Orm lies in the north." mean?'
    (example,), _ = read({"question": quoting, "contexts": TEXTS, "ground_truth": "north"})
    assert example.question == quoting


@pytest.mark.parametrize(
    "row",
    [
        {"answers": ["No Answer Present."]},
        {"answers": ["I don't know."]},
        {"answers": ["Insufficient information."], "question_type": "null_query"},
        {"question_id": "7_abs"},
        {"is_impossible": True},
        {"answerable": "False"},
        {"answers": ["N/A"]},
        {"answer": "invalid question", "answers": []},
    ],
)
def test_unanswerable_questions_are_left_out_even_if_labelled(row):
    examples, report = read({**ASKED, "passages": passages(relevant=[0, 1, 0])} | row)
    assert (examples, [*report.left_out.values()]) == ([], [1])


def test_answers_that_only_look_so_are_asked():
    for answer in ("Na", "none", "no", "unknown"):
        row = {**ASKED, "answers": [answer], "passages": passages(relevant=[0, 1, 0])}
        assert len(read(row)[0]) == 1


def test_sentences_are_not_blamed_on_the_retriever():
    reference = "Orm is a town that is known to lie in the far north."
    _, report = read({"user_input": QUESTION, "retrieved_contexts": TEXTS, "reference": reference})
    ((why, number),) = report.left_out.items()
    assert number == 1 and "sentence" in why and "relevant_ids" in why


def test_a_log_that_is_mostly_left_out_warns(caplog):
    caplog.set_level("INFO")
    rows = [{**ASKED, "passages": TEXTS}] + [{**ASKED, "answers": ["west"], "passages": TEXTS}] * 2
    _, report = read(*rows)
    report.log_summary("log")
    assert [r.levelname for r in caplog.records if "left out 2" in r.getMessage()] == ["WARNING"]


def test_one_passage_has_no_position():
    _, report = read({"question": QUESTION, "answer": "north", "text": " ".join(TEXTS)})
    assert [*report.left_out.values()] == [1] and "one passage" in next(iter(report.left_out))


@pytest.mark.parametrize(
    ("cell", "named"),
    [(json.dumps(TEXTS)[:-9], "32,767 characters"), (" ".join(TEXTS), '["...", "..."]')],
)
def test_a_cell_that_holds_no_list_is_named(cell, named):
    cell = cell.replace("exports", "exports " + "x" * 9000)
    with refuses(Malformed, "log:1: field `contexts`", named) as refused:
        read({"question": QUESTION, "ground_truth": "north", "contexts": cell})
    assert len(str(refused.value)) < 300


def test_columns_of_one_name_are_refused(tmp_path):
    with refuses(Malformed, "log:1", "`answers`"):
        read({**ASKED, "Answers": ["south"], "passages": TEXTS})
    (tmp_path / "log.csv").write_text("question,answer,text,answer,\nq,a,t,b,\n")
    with refuses(Malformed, "'answer'", at="log.csv"):
        list(read_rows(tmp_path / "log.csv"))


@pytest.mark.parametrize("name", ["log.xlsx", "log.ods", "log.xls"])
def test_a_spreadsheet_says_how_to_save_it(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with refuses(Malformed, "CSV", at=name):
        list(read_rows(tmp_path / name))


def test_a_column_that_no_row_has_is_named():
    with refuses(BadOption, "`colour`"):
        read({**ASKED, "passages": TEXTS}, columns={"answer": "colour"})


def test_sentences_with_ids_are_warned_of_before_a_prompt_is_sent(caplog):
    sentence = "The town of Orm lies in the far north of it."
    rows = [{**ASKED, "answers": sentence, "passages": passages(id="abc"), "relevant_ids": ["b"]}] * 2
    rows += [{**ASKED, "question": "Which?", "answers": "north", "passages": TEXTS}]
    examples, _ = read(*rows)
    warn_of_sentences(examples, "answer_words")
    assert "in 2 of 3 examples the right answer is a sentence" in caplog.text and "--metric key_words" in caplog.text
    caplog.clear()
    warn_of_sentences(examples, "key_words")
    warn_of_sentences(examples[1:], "answer_words")
    assert not caplog.text


def test_a_prompt_that_holds_the_beginning_of_one_long_passage_is_no_question():
    long = "Orm is a town of some ten thousand people that lies in the north."
    with refuses(Ambiguous, "`input`"):
        read({"input": f"{long[:45]}... {QUESTION}", "contexts": [TEXTS[0], long], "ground_truth": "north"})
