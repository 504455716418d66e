"""The tasks on retrieved passages: what moves, what stays, and the retriever's own order; BM25's hard distractors."""

import re

import numpy as np
import pytest
from endpoint import Endpoint, served
from examples import prompt_text, qa_example
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import posgap
from posgap.cli.main import main as command_line
from posgap.data.expectations import answering_distractors, expectations
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError, Rejection
from posgap.foundation.files import read_json, write_jsonl
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.summary import summary_text
from posgap.measurement.sweeps import read_sweep
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.options.validate import ValidateConfig
from posgap.tasks.content import examples_digest
from posgap.tasks.examples import Document, Example, Passage, RankedExample
from posgap.tasks.metrics import METRICS, holds_answer
from posgap.tasks.placements import Placement
from posgap.tasks.rag import as_retrieved
from posgap.tasks.registry import TASKS
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make
from posgap.verbs.validate import validate

RAG_TASKS = ("rag", "rag-one", "rag-alone")


def ranked_example(relevant: str, name: str = "r") -> RankedExample:
    """Passages A, B, C, ..., of which "x" in `relevant` marks the relevant ones: "-x-x" are B and D."""
    passages = [
        Passage(title=chr(65 + i), text=f"text {chr(65 + i)}", score=1 / (1 + i), relevant=mark == "x")
        for i, mark in enumerate(relevant)
    ]
    return RankedExample(id=name, question="q", answers=["text"], passages=passages)


def order(task: str, relevant: str, position: int, n_docs: int, shuffle: int = 0) -> str:
    arranged = TASKS[task].slots.arrange(ranked_example(relevant), Placement((position,), n_docs), shuffle)
    return "".join(document.title for document in arranged)


@pytest.mark.parametrize(
    ("task", "orders"),
    [
        ("rag", ["BDAC", "ABDC", "ACBD", "ACBD"]),  # a block of two ends at the last slot
        ("rag-one", ["BACD", "ABCD", "ACBD", "ACDB"]),
        ("rag-alone", ["BACE", "ABCE", "ACBE", "ACEB"]),
    ],
)
def test_what_moves_and_what_stays(task, orders):
    assert [order(task, "-x-xe", position, 4) for position in (1, 2, 3, 4)] == orders


def test_a_prompt_holds_the_relevant_passages_and_the_best_ranked_others():
    assert order("rag", "----x", 1, 3) == "EAB"
    assert "".join(d.title for d in as_retrieved(ranked_example("----x"), 3)) == "ABE"
    assert order("rag", "xxxxx", 2, 3) == "ABC"
    with refuses(PosgapError, "3 passages", "4 documents", "--n-docs 3"):
        order("rag", "x--", 1, 4)
    with refuses(PosgapError, qa_example().id):
        as_retrieved(qa_example(), 2)


def test_a_sweep_says_where_all_documents_of_its_prompts_are_relevant(model_folder, caplog):
    some = [ranked_example("xx-", "a"), ranked_example("x--", "b")]
    options = {"n_docs": 2, "max_new_tokens": 1, "quiet": True}
    posgap.sweep(model_folder, some, "rag", **options)
    assert "in 1 of 2 examples all 2 documents of a prompt are relevant, so that position cannot matter" in caplog.text
    with refuses(PosgapError, "1 of 1", "2 documents", "--n-docs"):
        posgap.sweep(model_folder, some[:1], "rag", **options)


@given(st.data())
def test_every_order_has_the_documents_that_were_retrieved(data):
    marks = data.draw(st.text("x-", min_size=1, max_size=9).filter(lambda text: "x" in text))
    task, n_docs = data.draw(st.sampled_from(RAG_TASKS)), data.draw(st.integers(1, len(marks)))
    position, shuffle = data.draw(st.integers(1, n_docs)), data.draw(st.integers(0, 2))
    alone = task == "rag-alone"
    if alone and marks.count("-") < n_docs - 1:
        return
    documents = "".join(d.title for d in as_retrieved(ranked_example(marks), n_docs, alone))
    arranged = order(task, marks, position, n_docs, shuffle)
    assert sorted(arranged) == sorted(documents) and list(documents) == sorted(documents)
    first = chr(65 + marks.index("x"))
    if task != "rag" or marks.count("x") == 1:
        assert arranged[position - 1] == first


def test_without_ranks_rag_with_one_gold_document_asks_what_qa_asks():
    example = qa_example(n_distractors=4)
    for placement in TASKS["qa"].choose_placements(4):
        prompts = {prompt_text(TASKS[task], example, placement) for task in ("qa", *RAG_TASKS)}
        assert len(prompts) == 1


def test_what_the_retriever_ranked_where_is_part_of_what_is_asked():
    assert examples_digest([ranked_example("-x-x")], 4) != examples_digest([ranked_example("x--x")], 4)
    # What no prompt of so many documents shows is no part of it.
    assert examples_digest([ranked_example("-x--")], 2) == examples_digest([ranked_example("-x---")], 2)


def test_validate_takes_several_relevant_passages_and_counts_unmarked_answers():
    suite = expectations(4, 100, of_any_number=TASKS["rag"].slots.of_any_number)
    (of_gold,) = [e for e in suite if e.column == "n_gold"]
    assert (of_gold.min_value, getattr(of_gold, "max_value", None)) == (1, None)
    counted = answering_distractors([ranked_example("-x-x"), qa_example()], "litm")
    assert counted == {"examples_with_answering_distractors": 1, "answering_distractors": 2}


def test_a_passage_holds_an_answer_by_the_task_s_own_metric():
    quality = Document(title="on", text="High\nquality, for 12,50 euros.")
    for answer, found_by in {
        "Ali": {"litm", "contains_any"},  # within a word
        "high quality": {"litm", "contains_any", "sub_em"},
        "quali": {"litm", "contains_any"},
        "Alice": set(),
    }.items():
        holding = {name for name in ("litm", "contains_any", "sub_em") if holds_answer(quality, [answer], name)}
        assert holding == found_by, answer
    # What copies the whole passage is right by the metric where the passage holds an answer, and only there.
    assert METRICS["litm"].score("on High quality", ["Ali"]) and holds_answer(quality, ["Ali"])
    assert not METRICS["sub_em"].score("on High quality", ["Ali"])
    example = Example(
        id="q", question="?", answers=["Ali"], gold=[Document(title="", text="Ali")], distractors=[quality]
    )
    assert answering_distractors([example], "litm")["answering_distractors"] == 1
    assert answering_distractors([example], "sub_em")["answering_distractors"] == 0


def test_relevance_by_answers_goes_by_whole_words(tmp_path):
    """A log's passage about quality is no evidence for Ali, and holds no answer by the metric of rag either."""
    texts = ["Ali won.", "Of good quality.", "Another."]
    log = tmp_path / "log.jsonl"
    write_jsonl(log, [{"question": "Who won?", "answers": ["Ali"], "passages": [{"text": text} for text in texts]}])
    assert [p.relevant for p in read_examples(log)[0].passages] == [True, False, False]
    config = ImportConfig(format="rag", input=log, out=tmp_path / "kept.jsonl", answering="drop")
    assert [p.text for p in read_examples(data_import(config))[0].passages] == texts


def test_a_log_is_validated_and_comes_out_as_examples(log_file, tmp_path, model_folder, caplog):
    caplog.set_level("INFO")
    options = {"examples": log_file, "model": str(model_folder), "n_docs": 4, "max_new_tokens": 4}
    out = validate(ValidateConfig(**options, task="rag", out=tmp_path / "valid"))
    assert read_examples(out) == read_examples(log_file)
    report = read_json(out / "validation.json")
    assert (report["success"], report["answering_distractors"]) == (True, 0)
    with refuses(Rejection, "`n_gold`", "rag-000006 (2)"):
        validate(ValidateConfig(**options, task="qa", out=tmp_path / "invalid"))
    labelled = tmp_path / "labelled.jsonl"
    write_examples(labelled, [ranked_example("-x--", f"r{i}") for i in range(2)])
    validate(ValidateConfig(**options | {"examples": labelled}, task="rag", out=tmp_path / "labelled"))
    assert "in 2 of 2 examples passages that are not relevant hold an answer, 6 in all" in caplog.text


def questions() -> list[Example]:
    facts = {
        "Who wrote the opera Fidelio?": ("Beethoven", "Fidelio is the only opera of Ludwig van Beethoven."),
        "Who wrote the opera Carmen?": ("Bizet", "Carmen is an opera by Georges Bizet."),
        "Who wrote the opera Aida?": ("Verdi", "Aida is an opera by Giuseppe Verdi."),
        "What is the highest mountain of Austria?": ("Großglockner", "The Großglockner is a mountain."),
        "Which opera did Beethoven write?": ("Fidelio", "Beethoven wrote one opera, Fidelio."),
    }
    return [
        Example(id=f"q{i}", question=question, answers=[answer], gold=[Document(title="", text=text)], distractors=[])
        for i, (question, (answer, text)) in enumerate(facts.items())
    ]


def test_bm25_ranks_similar_passages_first_and_none_that_answers(tmp_path):
    write_examples(tmp_path / "q.jsonl", questions())
    config = MakeConfig(
        kind="qa", examples=tmp_path / "q.jsonl", out=tmp_path / "e.jsonl", n_docs=3, distractors="bm25"
    )
    data_make(config)
    made = read_examples(tmp_path / "e.jsonl")
    fidelio = next(example for example in made if example.id == "q0")
    assert {d.text.split()[0] for d in fidelio.distractors} == {"Carmen", "Aida"}
    for example in made:
        assert len(example.passages) == 3 and len(example.gold) == 1
        assert not any(holds_answer(document, example.answers) for document in example.distractors)
        scores = [passage.score for passage in example.passages]
        assert scores == sorted(scores, reverse=True)
    # Made of what was made, they are the same: own distractors do not count.
    data_make(config.model_copy(update={"out": tmp_path / "again.jsonl", "examples": tmp_path / "e.jsonl"}))
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "e.jsonl").read_bytes()


def test_a_question_of_stop_words_alone_and_one_with_two_gold_documents(tmp_path):
    two = questions()[0].model_copy(update={"gold": [questions()[i].gold[0] for i in (1, 0)], "id": "two"})
    of_stop_words = questions()[3].model_copy(update={"question": "Which is it?", "id": "stop"})
    write_examples(tmp_path / "q.jsonl", [*questions(), two, of_stop_words])
    data_make(
        MakeConfig(kind="qa", examples=tmp_path / "q.jsonl", out=tmp_path / "e.jsonl", n_docs=3, distractors="bm25")
    )
    made = {example.id: example for example in read_examples(tmp_path / "e.jsonl")}
    assert isinstance(made["two"], Example) and made["two"].gold == two.gold
    assert len(made["stop"].passages) == 3


def test_nq_with_bm25_s_distractors(nq_file, tmp_path):
    from posgap.data.distractors import with_ranked_distractors
    from posgap.data.readers import read_litm_qa

    examples = [example for _, example in read_litm_qa(nq_file)][:300]
    made = [example for example in with_ranked_distractors(examples, 10) if example]
    ranks = np.array([[p.relevant for p in example.passages].index(True) + 1 for example in made])
    assert len(made) > 290 and (ranks == 1).mean() > 0.5  # BM25 finds most of the passages that answer


@pytest.fixture
def log_file(tmp_path):
    """A CSV of a log with a row for each passage: of 8 questions, with one or two relevant of 4 passages."""
    lines = ["question,answer,rank,passage,score"]
    for i in range(8):
        texts = [f"Nobody {i} got it.", f"Prize {i} went to Person{i}x.", "It rained.", f"Person{i}x lived {i} years."]
        texts[3] = texts[3] if i % 2 else "It snowed."
        lines += [f"Who got prize {i}?,Person{i}x,{n},{text},{1 / n:.2f}" for n, text in enumerate(texts, start=1)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "log.csv"


def reads_both_ends(text: str) -> str:
    """A model that is biased by construction: it reads the first and the last document alone."""
    documents = [line for line in text.splitlines() if line.startswith("Document [")]
    person = re.search(r"Person\d+x", documents[0] + documents[-1])
    return person[0] if person else "I do not know"


@pytest.mark.usefixtures("pictures")
def test_a_log_in_csv_becomes_a_curve_in_one_command(log_file, tmp_path, caplog):
    with served(Endpoint(reads_both_ends)) as endpoint:
        arguments = ["--examples", str(log_file), "--task", "rag", "--n-docs", "4", "--out", str(tmp_path / "swept")]
        asked = ["--backend", "openai", "--base-url", endpoint.url, "--model", "biased"]
        with pytest.raises(SystemExit, match="^0$"):
            command_line(["sweep", *arguments, *asked])
        asked_too = {"baselines": ["as-retrieved", "oracle"]}
        result = posgap.sweep(endpoint.url, log_file, "rag", name="biased", n_docs=4, **asked_too)
        with refuses(PosgapError, "task qa", "as-retrieved"):
            posgap.sweep(endpoint.url, log_file, "qa", name="biased", n_docs=4, baselines=["as-retrieved"])
        one = posgap.sweep(endpoint.url, log_file, "rag-one", name="biased", n_docs=4)
    swept = read_sweep(tmp_path / "swept")
    # A block of two begins at 1 to 3; of one at 1 to 4.
    assert swept.accuracy == [100.0, 0.0, 50.0, 100.0] == result.figures.accuracy
    assert swept.baselines["as-retrieved"].accuracy == 50, "which a log is asked by itself"
    # The second relevant passage stays last, where the model reads it.
    assert one.figures.accuracy == [100.0, 50.0, 50.0, 100.0]
    # As retrieved, the relevant passages are second and, of every other question, last: first they would win a half.
    baselines = result.figures.baselines
    assert (baselines["as-retrieved"].accuracy, baselines["oracle"].accuracy) == (50.0, 100.0)
    assert baselines["as-retrieved"].best_over == 50.0 and baselines["oracle"].best_over == 0.0
    assert "differs from the retriever's order by +50.0 points" in " ".join(summary_text(result.figures))
    assert (tmp_path / "swept" / "sweep.png").stat().st_size > 10_000
    # A verdict reads the log again, and does not say again what it was taken for.
    caplog.set_level("INFO", logger="posgap")
    caplog.clear()
    assert len(swept_examples(tmp_path / "swept")) == 8 and not caplog.messages
