"""Mitigations of what is asked: orders of documents, votes, and what a sweep by one records, resumes and refuses."""

import asyncio
import json
import math
import random
import re
import sys
import types
from itertools import permutations

import pytest
from answerers import RECORD, USAGE, lost_in_the_middle
from endpoint import Endpoint, retrieve, served
from examples import kv_example, qa_example
from written_sweeps import write_sweep

import posgap
from posgap.data.made import made_examples
from posgap.data.reading import write_examples
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import parse_as, read_json, write_json
from posgap.generation.application import Answer, text_of
from posgap.generation.generator import Completion, Sampling, Usage
from posgap.measurement.predictions import read_predictions
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
from posgap.measurement.summary import summary_text
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.document_orders import Orders, at_ends, by_relevance, majority
from posgap.mitigations.mitigation import PromptMitigation, ReorderInput, Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search.report import blank_outcome, usage_code
from posgap.options.gate import GateConfig
from posgap.options.merge import MergeConfig
from posgap.options.promote import PromoteConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.examples import Document, Example, KVExample, Passage, RankedExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.gate import judge_and_write
from posgap.verbs.merge import merge
from posgap.verbs.promote import promote
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import advantageous_placements

OF_PROMPTS = [mitigation for mitigation in MITIGATIONS if isinstance(mitigation, PromptMitigation)]


def first_record(text: str) -> str:
    return RECORD.search(text)[2]


def kv_examples(n: int, n_records: int = 3) -> list[KVExample]:
    """Of whose values no two are the same."""
    return [kv_example(i, n_records) for i in range(n)]


def asked_of(endpoint: Endpoint, examples, task="kv", **options):
    """A sweep of an endpoint, which writes nothing."""
    return posgap.sweep(endpoint.url, examples, task, name="served", n_docs=3, concurrency=1, **options)


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("POSGAP_RETRIES", "0")

    def usage(text, times):
        if endpoint.failing and endpoint.failing in text:
            return 500, {}, "broken"
        choice = {"message": {"content": endpoint.answer(text)}, "finish_reason": "stop"}
        return 200, {}, json.dumps({"choices": [choice], "usage": USAGE})

    endpoint = Endpoint(misbehave=usage)
    endpoint.failing = ""
    with served(endpoint):
        yield endpoint


# Orders


def asked(documents, example=None, seed=0) -> ReorderInput:
    return ReorderInput(example or qa_example(), documents, seed)


def documents(n: int) -> list[Document]:
    return [Document(title=f"t{i}", text=f"text {i}") for i in range(n)]


@pytest.mark.parametrize("mitigation", OF_PROMPTS, ids=lambda mitigation: mitigation.name)
def test_every_order_has_the_documents_that_were_given_and_is_the_same_again(mitigation):
    for settings in mitigation.list_settings():
        for n in (1, 2, 5):
            given = asked(documents(n))
            orders = [list(order) for order in mitigation.order_documents(given, settings)]
            kept = math.ceil(n * getattr(settings, "share", 1))
            times = 2 if mitigation.name == "repeated" else 1
            assert orders and all(len(order) == times * kept == times * len(set(map(str, order))) for order in orders)
            assert all(set(map(str, order)) <= set(map(str, given.documents)) for order in orders)
            assert orders == [list(order) for order in mitigation.order_documents(given, settings)]
            assert mitigation.choose_response(["a"] * len(orders)) == 0
        assert parse_as(type(settings), settings.model_dump(), "settings") == settings


def test_permutations_differ_exhaust_all_orders_and_shuffle_placements_alike():
    given = documents(3)
    permutation = MITIGATIONS["permutation"]
    orders = permutation.order_documents(asked(given), Orders(orders=4))
    assert len({tuple(order) for order in orders}) == 4
    every = permutation.order_documents(asked(given), Orders(orders=100))
    assert sorted(map(str, every)) == sorted(str(list(order)) for order in permutations(given))
    assert permutation.order_documents(asked(given, seed=1), Orders(orders=100)) != every
    assert permutation.order_documents(asked(given, qa_example(1)), Orders(orders=100)) != every
    turned = given[1:] + given[:1]
    for one, other in zip(every, permutation.order_documents(asked(turned), Orders(orders=100))):
        assert [turned.index(d) for d in other] == [given.index(d) for d in one]


def test_most_votes_win_and_the_first_of_equals():
    assert majority(["one", "The two!", "TWO", "three"]) == 1, "as SQuAD normalises them"
    assert majority(["one", "two", "two", "one"]) == 0 and majority(["three", "two", "one"]) == 0
    assert majority(["", "!", "x"]) == 2, "what says nothing is no answer"
    assert majority(["", ""]) == 0
    assert majority(["B", "A", "A"]) == 1 and majority(["A", "B", "C"]) == 0, "A is a letter, and no article alone"


def test_the_most_relevant_stand_at_the_ends():
    for n in range(1, 9):
        ranked = documents(n)
        order = at_ends(ranked)
        # By place counted from the nearer end: 0, 0, 1, 1, ...; LangChain's has the same for an odd number.
        assert [min(order.index(d), n - 1 - order.index(d)) for d in ranked] == [rank // 2 for rank in range(n)]
        assert order[0] == ranked[0]


def test_relevance_is_that_of_the_question_and_knows_no_gold():
    texts = ["Nothing here.", "The first prize in physics.", "Who won the first Nobel prize in physics?", "Rain."]
    given = [Document(title="", text=text) for text in texts]
    reordering = MITIGATIONS["reordering"]
    for gold in given:
        others = [d for d in given if d != gold]
        example = Example(
            id="e", question="Who won the first Nobel prize?", answers=["x"], gold=[gold], distractors=others
        )
        assert by_relevance(example, given) == [given[2], given[1], given[0], given[3]]
        (last,) = reordering.order_documents(asked(given, example), reordering.settings(most="last"))
        assert last == [given[3], given[0], given[1], given[2]]
        (ends,) = reordering.order_documents(asked(given, example), reordering.settings())
        assert (ends[0], ends[-1]) == (given[2], given[1])
    mute = Example(id="e", question="?!", answers=["x"], gold=[given[0]], distractors=given[1:])
    assert by_relevance(mute, given) == given, "what ranks nothing changes nothing"


def test_a_gap_is_none_by_construction_only_where_all_placements_are_asked_alike():
    """Of four sentences that share no word with the question Qwen had a gap of 61.5, which was told as 0."""

    def is_order_free(examples, name="reordering", task="kv", n=3):
        builder = TextPromptBuilder(TASKS[task], 9)
        mitigated = PromptMitigator(builder, MITIGATIONS[name], MITIGATIONS[name].settings(), 0)
        return mitigated.is_order_free(examples, [Placement((at,), n) for at in range(1, n + 1)])

    assert is_order_free(kv_examples(4))  # BM25 finds the key, and the others keep their order
    assert not is_order_free(kv_examples(4), "reversed")
    choices = list(made_examples(TASKS["options"], 8, 3, 0))
    assert not is_order_free(choices, task="options")
    assert not is_order_free([qa_example(0, 2)], task="qa")  # no document has a word of "Who got it?"


def test_relevance_is_the_retriever_s_where_there_was_one():
    passages = [Passage(text=f"passage {i}", relevant=i == 3) for i in range(5)]
    example = RankedExample(id="r", question="passage 0", answers=["a"], passages=passages)
    given = [passage.document for passage in passages]
    shown = random.Random(0).sample(given, 4)
    assert by_relevance(example, shown) == [document for document in given if document in shown]


@pytest.mark.parametrize("mitigation", OF_PROMPTS, ids=lambda mitigation: mitigation.name)
def test_the_code_for_an_application_does_what_was_measured(mitigation):
    passages = [Passage(text=f"passage {i}", relevant=i == 3) for i in range(7)]
    example = RankedExample(id="r", question="q", answers=["a"], passages=passages)
    ranked = [passage.document for passage in passages]
    for settings in mitigation.list_settings():
        exec(mitigation.write_code(settings), names := {})
        orders = [list(order) for order in mitigation.order_documents(asked(ranked, example), settings)]
        if "quoted" in names:
            assert names["quoted"]("q") == mitigation.word_question("q") and orders == [ranked]
            said = 'It says "two".\nAnswer: two '
            assert names["behind"](said) == mitigation.read_response(said) == "two"
            for said in ("no quote", "Answer:"):
                assert names["behind"](said) == mitigation.read_response(said) == said
            continue
        if "vote" not in names:
            assert [names["reorder"](ranked)] == orders
            continue
        seen = names["shuffles"](ranked)
        assert len({tuple(order) for order in seen}) == len(orders) and all(set(s) == set(ranked) for s in seen)
        votes = ["", "a", "The two!", "A.", ""][: len(orders)]
        assert names["vote"](votes) == votes[majority(votes)]


def test_fewer_passages_need_somebody_who_ranked_them():
    (example,) = kv_examples(1)
    with pytest.raises(PosgapError, match=f"mitigation fewer: example {example.id} .* task rag "):
        answers(lambda text: "x", MITIGATIONS["fewer"], [at_every_place(example)])


# What is asked, and what becomes the answer


class Rule:
    """A generator that answers by a rule, the last prompt of a group first."""

    def __init__(self, answer):
        self.answer, self.prompts = answer, []

    def generate(self, groups, sampling):
        for index, group in enumerate(groups):
            self.prompts += group
            for at in reversed(range(len(group))):
                said = self.answer(group[at].text)
                yield index, at, said if isinstance(said, Completion) else Completion(said, [1], usage=Usage(10, 2))


def answers(rule, mitigation, questions, settings=None, task="kv", temperature=0.0):
    """The answers to groups of questions by number, and the generator."""
    generator = Rule(rule)
    mitigated = PromptMitigator(TextPromptBuilder(TASKS[task], 9), mitigation, settings or mitigation.settings(), 0)
    given = mitigated.generate(generator, questions, Sampling(9, temperature=temperature))
    return {(group, number): completion for group, number, completion in given}, generator


def at_every_place(example, n_docs=3):
    return [Question(example, Placement((place,), n_docs)) for place in range(1, n_docs + 1)]


def test_the_order_given_asked_once_is_what_is_asked_without_a_mitigation():
    class AsGiven(PromptMitigation):
        name = "as-given"

        def order_documents(self, given, settings):
            return [given.documents]

    questions = [at_every_place(example) for example in kv_examples(2)]
    said, generator = answers(lost_in_the_middle, AsGiven(), questions, Settings())
    builder = TextPromptBuilder(TASKS["kv"], 9)
    assert generator.prompts == [builder.prompt(q.example, q.placement) for group in questions for q in group]
    plain = Rule(lost_in_the_middle).generate([[builder.prompt(*q[:2]) for q in group] for group in questions], None)
    assert said == {(group, number): completion for group, number, completion in plain}
    assert [said[0, i].text == retrieve(generator.prompts[0].text) for i in range(3)] == [True, False, True]


def test_a_vote_over_all_orders_is_right_wherever_most_orders_are():
    (example,) = kv_examples(1)
    said, generator = answers(
        lost_in_the_middle, MITIGATIONS["permutation"], [at_every_place(example)], Orders(orders=6)
    )
    assert len(generator.prompts) == 6 and [said[0, i].text for i in range(3)] == [example.value] * 3
    assert said[0, 0].usage == Usage(60, 12, None, None, 6)


def test_a_prompt_that_placements_share_is_sent_once_unless_answers_are_drawn():
    questions = [at_every_place(example) for example in kv_examples(2)]
    reordering = MITIGATIONS["reordering"]
    said, generator = answers(first_record, reordering, questions)
    drawn, of_drawn = answers(first_record, reordering, questions, temperature=1.0)
    assert [len(generator.prompts), len(of_drawn.prompts)] == [2, 6]
    assert len(said) == 6 and said == drawn, "a question's usage is that of its own prompts"
    samples = [[question._replace(sample=sample) for question in group for sample in (0, 1)] for group in questions]
    assert len(answers(first_record, reordering, samples)[1].prompts) == 4


def test_what_is_no_answer_has_no_vote_and_what_failed_fails_the_whole():
    (example,) = kv_examples(1)
    permutation, question = MITIGATIONS["permutation"], [at_every_place(example)[:1]]

    def but_for_the_middle(outcome):
        def rule(text):
            right = lost_in_the_middle(text) != "nothing"
            return "wrong" if right else Completion("", [], outcome, reason="why", usage=Usage(10, 0))

        return answers(rule, permutation, question, Orders(orders=6))[0][0, 0]

    assert (but_for_the_middle("refused").text, but_for_the_middle("refused").outcome) == ("wrong", "answered")
    failed = but_for_the_middle("failed")
    assert (failed.outcome, failed.reason, failed.usage.prompt) == ("failed", "why", 60)
    none = answers(lambda text: Completion("", [], "empty"), permutation, question, Orders(orders=6))[0][0, 0]
    assert none.outcome == "empty" and none.usage is None


def test_a_letter_is_that_of_the_item_where_it_was_given():
    """A model that knows the item names it by another letter in each order."""
    items = [Document(title="", text=text) for text in ("red", "green", "blue")]
    example = Example(id="o", question="Which?", answers=["green"], gold=[items[1]], distractors=[items[0], items[2]])

    def knows(text):
        return re.search(r"^\W*([A-Z])\W+green", text, re.MULTILINE)[1]

    for name, settings in (("reversed", None), ("permutation", Orders(orders=5))):
        said, generator = answers(knows, MITIGATIONS[name], [at_every_place(example)], settings, "options")
        assert [said[0, i].text for i in range(3)] == ["A", "B", "C"]
        assert name == "permutation" or [knows(prompt.text) for prompt in generator.prompts] == ["C", "B", "A"]
    # One that always names the first letter is asked of each item in turn: every item has as many votes.
    said, _ = answers(lambda text: "A", MITIGATIONS["reversed"], [at_every_place(example)], None, "options")
    assert [said[0, i].text for i in range(3)] == ["C"] * 3
    said, _ = answers(lambda text: "Z?", MITIGATIONS["reversed"], [at_every_place(example)], None, "options")
    assert said[0, 0].text == "Z?"


@pytest.mark.parametrize("name", [task.name for task in TASKS if task.synthetic])
def test_every_task_s_prompt_has_all_documents_and_the_wanted_sample(name):
    task = TASKS[name]
    (example,) = made_examples(task, 1, 12, 0)
    for placement in task.choose_placements(12)[1:3]:
        given = TextPromptBuilder(task, 9).documents(example, placement)
        for mitigation in OF_PROMPTS:
            if mitigation.needs_ranks:
                continue
            mitigated = PromptMitigator(TextPromptBuilder(task, 9), mitigation, mitigation.settings(), 0)
            asked = mitigated.build_variants(Question(example, placement, 3))
            assert asked.given == given and {prompt.sample for prompt in asked.prompts} == {3}
            assert all(document.text in prompt.text for prompt in asked.prompts for document in given)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ["answer", "respond", "app.answer"])
@pytest.mark.parametrize("mitigation", OF_PROMPTS, ids=lambda mitigation: mitigation.name)
def test_the_code_for_a_function_stands_around_it(mitigation, name, is_async, monkeypatch):
    def answer(question, passages):
        return Answer(f"{question[:1]} {len(passages)}")

    async def later(question, passages):
        return answer(question, passages)

    module = types.ModuleType("mine_to_mend")
    module.answer = module.respond = later if is_async else answer
    module.app = types.SimpleNamespace(answer=module.answer)
    monkeypatch.setitem(sys.modules, "mine_to_mend", module)
    for settings in mitigation.list_settings():
        found = blank_outcome(mitigation).model_copy(update={"settings": settings.model_dump()})
        code = usage_code(found, f"python:mine_to_mend:{name}")
        if not usage_code(found):
            assert not code
            continue
        exec(code, names := {})
        mended = names["mended"]("q", ["a", "b"])
        said = text_of(asyncio.run(mended) if is_async else mended)
        assert said == f"q {len(names['reorder'](['a', 'b'])) if 'reorder' in names else 2}"


def test_the_code_for_a_function_of_a_prompt_is_for_its_author_to_place(monkeypatch):
    module = types.ModuleType("mine_to_mend")
    module.answer = lambda prompt: prompt
    monkeypatch.setitem(sys.modules, "mine_to_mend", module)
    found = blank_outcome(MITIGATIONS["reversed"])
    assert usage_code(found, "python:mine_to_mend:answer") == usage_code(found) != ""


# Sweeps


def test_a_sweep_of_a_model_that_reads_the_first_document_alone(endpoint):
    endpoint.answer = first_record
    examples = kv_examples(4)
    plain, turned = asked_of(endpoint, examples), asked_of(endpoint, examples, mitigation="reversed")
    assert plain.figures.accuracy == [100, 0, 0] and turned.figures.accuracy == [0, 0, 100]
    found = asked_of(endpoint, examples, mitigation="reordering", mitigation_settings={"most": "first"})
    assert found.figures.accuracy == [100, 100, 100], "keys match in words"
    assert plain.figures.mitigation is None and "mitigation" not in plain.figures.settings
    said = turned.figures
    assert (said.label, said.mitigation.name, said.settings["mitigation"]) == ("served, reversed", *["reversed"] * 2)
    assert len({each.figures.prompt_digest for each in (plain, turned, found)}) == 3
    assert said.asked == plain.figures.asked and "through the mitigation reversed:" in " ".join(summary_text(said))
    verdict = plain.compare(turned).verdict
    assert "served, reversed was asked by the mitigation reversed, served was asked without any." in verdict
    assert "was asked" not in turned.compare(turned).verdict


def test_a_sweep_pays_for_all_that_is_asked_and_asks_baselines_as_they_are(endpoint, capsys, tmp_path):
    endpoint.answer = lost_in_the_middle
    examples = kv_examples(2)
    three = {"mitigation": "permutation", "mitigation_settings": {"orders": 6}}
    result = asked_of(endpoint, examples, baselines=["oracle"], **three)
    assert result.figures.accuracy == [100, 100, 100] and endpoint.seen.total() == 2 * 6 + 2
    spent = result.figures.spent
    assert (spent.prompts, spent.prompt_tokens, spent.completion_tokens) == (38, 3800, 760)
    write_examples(tmp_path / "e.jsonl", examples)
    common = {"examples": tmp_path / "e.jsonl", "model": "served", "n_docs": 3, "out": tmp_path / "out", **three}
    sweep_model(SweepConfig(**common, backend="openai", base_url=endpoint.url, baselines=["oracle"], estimate=True))
    assert capsys.readouterr().out.startswith("38 prompts of about ")


def test_a_model_on_this_machine_is_asked_and_estimated(tmp_path, model_folder, capsys):
    write_examples(tmp_path / "e.jsonl", [kv_example(i, 4) for i in range(3)])
    common = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 4, "max_new_tokens": 4}
    voting = {**common, "mitigation": "permutation", "mitigation_settings": {"orders": 2}}
    whole = sweep_model(SweepConfig(**voting, out=tmp_path / "whole"))
    parts = [sweep_model(SweepConfig(**voting, out=tmp_path / f"{i}", shard=f"{i}/2")) for i in (1, 2)]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert read_predictions(merged) == read_predictions(whole)
    assert read_sweep(merged).mitigation == read_sweep(whole).mitigation == read_sweep(parts[1]).mitigation
    assert read_sweep(whole).spent.prompts == 3 * 4 * 2 and "asked by" in (whole / "sweep.html").read_text()
    sweep_model(SweepConfig(**voting, out=tmp_path / "none", estimate=True))
    assert "24 prompts of " in capsys.readouterr().out
    of_parts = MergeConfig(
        sweeps=[sweep_model(SweepConfig(**common, out=tmp_path / "p1", shard="1/2")), parts[1]], out="m"
    )
    with pytest.raises(PosgapError, match="; label, prompt_digest"):
        merge(of_parts)
    with pytest.raises(PosgapError, match=f"^{whole}: .* mitigation permutation .*`advantageous`"):
        advantageous_placements(TeacherConfig(**common, sweep=whole, out=tmp_path / "t"), 1)


def test_an_interrupted_sweep_asks_all_orders_of_what_failed_again_and_nothing_else(endpoint, tmp_path):
    examples = kv_examples(3)
    write_examples(tmp_path / "e.jsonl", examples)
    # The prompts in which this record of the second example stands before that.
    endpoint.failing = str(TASKS["kv"].render([Document(title=t, text=v) for t, v in examples[1].records[:2]]))[1:-1]
    config = SweepConfig(
        examples=tmp_path / "e.jsonl", model="served", n_docs=3, out=tmp_path / "out", backend="openai",
        base_url=endpoint.url, mitigation="permutation", mitigation_settings={"orders": 6},
        positions=["1", "2"], max_unanswered=0,
    )  # fmt: skip
    with pytest.raises(PosgapError, match=" of 6 prompts "):
        sweep_model(config)
    endpoint.failing = ""
    endpoint.seen.clear()
    result = read_sweep(sweep_model(config))
    assert endpoint.seen.total() == 6, "all orders of the one example"
    assert result.accuracy == [100, 100] and result.spent.prompts == 3 * 2 * 6


def test_a_sweep_without_a_mitigation_is_what_it_was_before_there_were_any():
    settings = SweepConfig(examples="e", model="m", out="o").parameter_values()
    assert not [name for name in settings if "mitigation" in name]
    with_one = SweepConfig(examples="e", model="m", out="o", mitigation="permutation").parameter_values()
    assert with_one == settings | {"mitigation": "permutation", "mitigation_settings": {}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mitigation": "lpes"}, "`mitigation`: .*'lpes'"),
        ({"mitigation": "permutation", "mitigation_settings": '{"k": 5}'}, " permutation: .*`k`"),
        ({"mitigation": "permutation", "mitigation_settings": {"orders": 0}}, " permutation: .*`orders`"),
        ({"mitigation_settings": {"orders": 2}}, "`mitigation_settings`: .*`mitigation`"),
        ({"mitigation": "reversed", "lengths": "1k"}, "`mitigation`: .*`lengths`"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(given, said):
    with pytest.raises(Malformed, match=said) as refused:
        parse_as(SweepConfig, {"examples": "e", "model": "m", "out": "o"} | given, "sweep")
    assert "\n" not in str(refused.value)


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_mitigated_candidate_is_no_model_that_could_be_registered(tmp_path):
    candidate, base = write_sweep(tmp_path / "candidate", [0.9] * 5), write_sweep(tmp_path / "base", [0.9] * 5)
    file = candidate / "sweep.json"
    write_json(file, read_json(file) | {"mitigation": {"name": "permutation", "settings": {"orders": 5}}})
    config = {"candidate": candidate, "base": base, "out": tmp_path / "gate"}
    with pytest.raises(PosgapError, match=r" permutation \(orders 5\).* acme "):
        judge_and_write(GateConfig(**config, name="acme"))
    assert posgap.gate(candidate, base).rules, "it can be judged all the same"
    judged = judge_and_write(GateConfig(**config))
    with pytest.raises(PosgapError, match=r" permutation \(orders 5\)"):
        promote(PromoteConfig(model="m", sweep=candidate, gate=judged, name="acme", out=tmp_path / "promotion"))
