"""A function in place of a model: how it is called, what it may return, and what is seen of it beforehand."""

import asyncio
import json
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint import retrieve
from examples import kv_example

import posgap
from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import BadOption, PosgapError
from posgap.generation import application
from posgap.generation.application import Answer, Application, load_function, name_of
from posgap.kubeflow.arguments import to_config
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig

DOCS = 4
EXAMPLES = [kv_example(number) for number in range(8)]
ASKED = {"task": "kv", "n_docs": DOCS, "quiet": True}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(application, "FIRST_WAIT", 0.001)


def look_up(question, passages):
    return next((each.text for each in passages if each.title == question), "none of them")


def read_ends(question, passages):
    """An application that looks at the first and the last passage alone."""
    return look_up(question, [passages[0], passages[-1]])


async def later(messages):
    await asyncio.sleep(0.001)
    ((role, text),) = [tuple(each.values()) for each in messages]
    return {"text": retrieve(text) if role == "user" else "", "usage": {"input_tokens": 7, "output_tokens": 2}}


def swept(function, examples=EXAMPLES, **options):
    return posgap.sweep(function, examples, **ASKED | options)


def test_positions_are_those_of_the_passages_that_a_function_gets():
    result = swept(read_ends, version="3", label="ends")
    assert result.figures.accuracy == [100, 0, 0, 100] and result.figures.label == "ends"
    assert result.figures.settings["backend"] == "python" and result.figures.settings["version"] == "3"
    assert result.figures.served.models == (f"python:{__name__}:read_ends",)
    assert result.figures.served.fingerprints == ("3",) and result.figures.asked.decoding == "application's own"
    assert "asked twice, 8 of 8 answers are the same" in result.figures.served.notes
    assert "An application answered" in str(result)


def test_a_function_gets_the_prompt_or_the_messages_and_may_be_async():
    by_text, by_messages = swept(lambda prompt: retrieve(prompt)), swept(later)
    assert by_text.figures.accuracy == by_messages.figures.accuracy == [100] * DOCS
    spent = by_messages.figures.spent
    assert (spent.prompt_tokens, spent.completion_tokens, spent.prompts) == (7 * 8 * DOCS, 2 * 8 * DOCS, 8 * DOCS)


def test_a_function_is_known_by_its_place_and_whether_it_is_awaited():
    class Called:
        async def __call__(self, prompt):
            return retrieve(prompt)

    assert name_of(partial(look_up)) == f"python:{__name__}:look_up"
    assert name_of(str.upper) == "python:builtins:str.upper"
    functions = look_up, partial(look_up), Called(), later, partial(later)
    assert [Application(each).is_async for each in functions] == [False, False, True, True, True]


def test_async_calls_of_all_sweeps_stay_in_one_event_loop():
    loops = []

    async def answer(prompt):
        loops.append(asyncio.get_running_loop())
        return retrieve(prompt)

    swept(answer, EXAMPLES[:2])
    swept(answer, EXAMPLES[:2])
    assert len(set(loops)) == 1, "a client that was used in one loop raises in another"


def test_passages_have_the_titles_and_ids_of_a_log_and_the_baselines_their_own():
    seen = []

    def answer(question, passages):
        seen.append([(each.id, each.title, each.text) for each in passages])
        return str(len(passages))

    passages = [{"text": f"text {n}", "title": f"title {n}", "id": f"id-{n}", "relevant": n == 1} for n in range(3)]
    rows = [{"question": "Which?", "answers": ["text 1"], "passages": passages}]
    posgap.sweep(answer, rows, "rag", n_docs=3, concurrency=1, quiet=True, baselines="as-retrieved,oracle,closed-book")
    one, two, three = ([(f"id-{n}", f"title {n}", f"text {n}") for n in order] for order in ((0,), (1,), (2,)))
    assert seen == [two + one + three, one + two + three, one + three + two, one + two + three, two, []]


@pytest.mark.parametrize(
    ("returned", "ends"),
    [
        ("<think>so</think> a", "answered"),
        (Answer("a", 3, 1, "length"), "cut"),
        (Answer("", finish_reason="length"), "truncated"),
        (Answer("", finish_reason="content_filter"), "refused"),
        ("  ", "empty"),
        ({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}, "answered"),
        ({"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "max_tokens"}, "cut"),
        (SimpleNamespace(model_dump=lambda mode: {"content": "a", "response_metadata": {}}), "answered"),
    ],
)
def test_what_a_function_may_return(returned, ends):
    for row in swept(lambda prompt: returned, EXAMPLES[:2], max_unanswered=100).predictions:
        assert row.get("outcome", "cut" if row.get("cut") else "answered") == ends
        assert row["response"] == ("a" if ends in ("answered", "cut") else "")


@pytest.mark.parametrize(
    "returned",
    [None, {"answer": "a"}, 3, b"a", Answer(None), {"choices": []}, {"choices": [{"finish_reason": "error"}]}],
)
def test_what_is_no_answer_ends_the_sweep(returned):
    with pytest.raises(PosgapError, match="TypeError"):
        swept(lambda prompt: returned)


def test_an_exception_is_a_missing_answer_and_its_class_is_counted():
    def answer(question, passages):
        if passages[1].title == question:
            raise KeyError(f"no {question}")
        return look_up(question, passages)

    with pytest.raises(PosgapError, match=r"failed 8.*KeyError: .*test_application.py.*\(8 "):
        swept(answer)
    figures = swept(answer, max_unanswered=100).figures
    assert [counts.failed for counts in figures.outcomes.by_placement] == [0, 8, 0, 0]


def test_an_exception_that_comes_first_ends_the_sweep_after_one_prompt(monkeypatch):
    called = []

    def answer(prompt):
        called.append(prompt)
        raise ZeroDivisionError

    with pytest.raises(PosgapError, match="ZeroDivisionError"):
        swept(answer)
    assert len(called) == 3 and len(set(called)) == 1
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    with pytest.raises(PosgapError):
        swept(answer)
    assert len(called) == 4


class OwnError(BaseException):
    """One that is no `Exception`."""


async def wait_for_ever(prompt):
    await asyncio.sleep(60)


async def cancel(prompt):
    raise asyncio.CancelledError


def raise_own_error(prompt):
    raise OwnError


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (wait_for_ever, r"TimeoutError: .*0.05 s \(3"),
        (cancel, r"CancelledError \(3"),
        (raise_own_error, r"OwnError \(test_application.py"),
        (lambda prompt: json.loads("["), r"JSONDecodeError: .* \(test_application.py"),
    ],
)
def test_whatever_is_raised_is_said_with_its_place(function, said):
    with pytest.raises(PosgapError, match=said):
        swept(function, timeout=0.05)


def test_failures_in_a_row_end_a_sweep():
    right = threading.Semaphore(40)  # calls, those of the look among them

    def answer(prompt):
        if not right.acquire(blocking=False):
            raise OSError("gone")
        return retrieve(prompt)

    with pytest.raises(PosgapError, match="25 prompts "):
        swept(answer, [kv_example(number) for number in range(16)], max_unanswered=100, concurrency=1)


def test_calls_run_side_by_side_and_one_that_never_ends_fails():
    under_way, most, lock = 0, 0, threading.Lock()
    stuck = threading.Event()

    def answer(question, passages):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        if question == EXAMPLES[5].question and passages[0].title == question:
            stuck.wait(5)
        threading.Event().wait(0.005)
        with lock:
            under_way -= 1
        return look_up(question, passages)

    result = swept(answer, concurrency=5, timeout=0.1, max_unanswered=100)
    stuck.set()
    assert most == 5 and result.figures.outcomes.failed == 1


def test_an_application_that_does_not_look_at_its_passages_gets_no_curve():
    own = {each.question: each.answers[0] for each in EXAMPLES}
    with pytest.raises(PosgapError, match="8 of 8 answers"):
        swept(lambda question, passages: own[question])


def test_markers_tell_which_passages_reach_the_model():
    def answer(question, passages):
        shown = [passages[2], passages[0], passages[1]]
        return Answer(look_up(question, shown), sent=" ".join(each.text for each in shown)[:-3])

    notes = swept(answer).figures.served.notes
    assert (
        notes[0] == "3 of 4 passages reach the model, those at 1, 2, 3, in the order 3, 1, 2; cut short are those at 2"
    )
    with pytest.raises(PosgapError, match=" 4 passages"):
        swept(lambda question, passages: Answer(look_up(question, passages), sent="what it retrieved itself"))


def test_answers_that_differ_when_they_are_asked_again_are_counted():
    asked = set()

    def answer(question, passages):
        first, key = look_up(question, passages), (question, str(passages))
        if question in {each.question for each in EXAMPLES[:3]} and key in asked:
            return f"{first}!"
        asked.add(key)
        return first

    assert "asked twice, 5 of 8 answers are the same" in swept(answer).figures.served.notes


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda question: "", r"\(question\)"),
        (lambda passages: "", r"\(passages\)"),
        (lambda messages, question: "", r"\(messages, question\)"),
        (lambda question, passages, session: "", r"\(question, passages, session\)"),
        (lambda question, passages, /: "", r"\(question, passages, /\)"),
        (lambda one, two: "", r"\(one, two\)"),
        (lambda **values: "", r"\(\*\*values\)"),
        (lambda: "", r"\(\)"),
    ],
)
def test_parameters_that_posgap_cannot_fill(function, said):
    with pytest.raises(BadOption, match=said):
        Application(function)


def test_settings_of_prompts_are_refused():
    for name, value in {
        "system": "Be brief.",
        "body": {"n": 1},
        "header": {"a": "b"},
        "template_args": {"a": 1},
    }.items():
        with pytest.raises(PosgapError, match=name):
            swept(look_up, **{name: value})


def test_a_module_of_the_users_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_here.py").write_text(
        "import os\nos.chdir('/')\nclass App:\n    def answer(self, prompt): return 'a'\napp = App()\nn = 3\n"
    )
    (tmp_path / "broken_here.py").write_text("import nothing_of_that_name\n")
    before = list(sys.path)
    assert load_function("python:mine_here:app.answer")("") == "a"
    for name, said in {
        "mine_here": "python:",
        "mine_here:n": " int",
        "mine_here:other": "AttributeError",
        "broken_here:x": "ModuleNotFoundError",
    }.items():
        with pytest.raises(BadOption, match=f"^--model python:{name}: .*{said}"):
            load_function(f"python:{name}")
    assert sys.path == before and Path.cwd() == tmp_path


def test_an_application_is_typed_and_comes_from_no_file_and_no_cluster(tmp_path, capfd):
    (tmp_path / "options.yaml").write_text("sweep: {model: 'python:os:system'}\n")
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--config", str(tmp_path / "options.yaml"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2 and "--model python:os:system" in capfd.readouterr().err
    with pytest.raises(BadOption, match="^python:os:system: "):
        to_config(SweepConfig, {"model": "python:os:system", "examples": "e", "out": "o"})


def test_the_command_line_sweeps_goes_on_and_what_is_registered_refuses(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    (tmp_path / "app_that_stops.py").write_text(
        "import pathlib\ncalls = pathlib.Path('calls')\n"
        "def answer(question, passages):\n"
        "    number = len(calls.read_text()) if calls.exists() else 0\n"
        "    calls.write_text('x' * (number + 1))\n"
        "    if 30 <= number < 80: raise OSError('gone')\n"
        "    return next((each.text for each in passages if each.title == question), 'none')\n"
    )
    write_examples(tmp_path / "e.jsonl", EXAMPLES)
    words = ["sweep", "python:app_that_stops:answer", "--examples", "e.jsonl", "--n-docs", str(DOCS), "--out", "out"]
    for code in (2, 0):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--concurrency", "1"])
        assert ended.value.code == code
        if code:
            (tmp_path / "calls").write_text("x" * 100)
    asked = len((tmp_path / "calls").read_text()) - 100
    assert asked < 8 * DOCS - 1, "what was answered is not asked again, and nothing is looked at again"
    assert read_sweep(tmp_path / "out").accuracy == [100] * DOCS and len(read_predictions(tmp_path / "out")) == 32
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["gate", "--candidate", "out", "--base", "out", "--out", "gate"])
    assert ended.value.code == 2 and "python:app_that_stops:answer" in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["promote", "python:app_that_stops:answer", "--gate", "out", "--sweep", "out", "--out", "promoted"])
    assert ended.value.code == 2 and "python:app_that_stops:answer" in capfd.readouterr().err
    with pytest.raises(PosgapError, match="python:app_that_stops:answer"):
        posgap.gate("out")
    assert "application" in json.dumps(json.loads((tmp_path / "out" / "sweep.json").read_text())["asked"])
