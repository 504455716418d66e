"""What is seen of a few responses, and what is said of it."""

import logging

import pytest
from answerers import Saying
from examples import kv_example
from hypothesis import given
from hypothesis import strategies as st

from posgap.data.reading import write_examples
from posgap.generation.generator import Completion, Sampling
from posgap.measurement.probe import (
    LOOKED_AT,
    FirstAnswers,
    Probe,
    Response,
    answer_after,
    listen,
)
from posgap.options.sweep import SweepConfig
from posgap.scaling.forcing import SpontaneousAnswers
from posgap.scaling.forcing import answer_freely as asked_by_itself
from posgap.scaling.questions import SearchQuestion
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.sweep import sweep_model

ANSWER = ["1f2e"]


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("1f2e", 0),
        (' "1f2e".', 0),
        ("**1F2E**", 0),
        ("1f2e and more", 0),
        ("1f2e9", None),  # another value that begins alike
        ("the value is 1f2e", 3),
        ('"key": "1f2e"', 4),  # key " : "
        ("none", None),
        ("", None),
    ],
)
def test_where_the_answer_stands(said, after):
    assert answer_after(said, ANSWER) == after


def test_the_wording_of_a_task_is_no_preamble():
    assert answer_after("So the answer is: 1f2e", ANSWER, "So the answer is:") == 0
    assert answer_after("So the answer is: 1f2e", ANSWER) == 5
    assert answer_after("b or 1f2e", ["1f2e", "b"]) == 0


def of(text, right=False, cut=False, echo=False):
    return Response(text, right, cut, echo, answer_after(text, ANSWER))


def test_a_model_that_answers_at_once_has_no_preamble():
    probe = Probe([of("1f2e", True)] * 3 + [of("The value is 1f2e", True)] * 2)
    assert (probe.at_once, probe.later) == (3, 2)
    assert probe.answers_at_once and probe.preamble == ""


def test_a_preamble_is_told_by_right_answers_that_come_later():
    probe = Probe([of("1f2e", True), of("The value is 1f2e", True), of("It seems: 1f2e", True)])
    assert not probe.answers_at_once and "after 3 words" in probe.preamble


def test_a_preamble_is_told_where_no_answer_is_right():
    probe = Probe([of(f'The value corresponding to {i} is "{i}{i}"') for i in range(4)])
    assert not probe.answers_at_once
    assert probe.beginning == "The value corresponding to"
    # A question that is asked at two placements gets one answer twice, which is no part of the preamble.
    twice = Probe([of(f'The value corresponding to {i} is "{i}{i}"') for i in (1, 1, 2, 2)])
    assert twice.beginning == "The value corresponding to"
    assert Probe([of("I cannot say that")] * 4).beginning == "I cannot say that"
    of_one_key = Probe([of('The value corresponding to the key "77" is "5"') for _ in range(4)])
    assert of_one_key.beginning == "The value corresponding to the key"
    # Wrong values that differ, and one word over and over, are none.
    assert Probe([of(f"{i}a0 is it") for i in range(4)]).answers_at_once
    assert Probe([of("no no no no")] * 4).answers_at_once


@pytest.mark.parametrize("cut", [True, False])
def test_who_forces_tokens_is_told_where_the_limit_cuts_what_a_model_says_by_itself(caplog, cut):
    questions = [[SearchQuestion([1, 2], [7], ["1f2e"])] * 3] * 9
    with caplog.at_level(logging.INFO):
        found = asked_by_itself(Saying("well", cut), questions, lambda *_: 0.0, Sampling(40))
    assert len(found.probe.responses) == 24 and found.begin == 24
    told = [("cut at 40 tokens" in line, "--max-new-tokens 80" in line) for line in caplog.messages]
    assert [each for each in told if any(each)] == [(True, True)] * cut


def test_what_a_model_says_to_some_examples_is_heard(build):
    asked = [(kv_example(i), Placement((1 + i,), 6)) for i in range(4)]
    probe = listen(Saying("The value of it is 3"), build, asked)
    assert [each.text for each in probe.responses] == ["The value of it is 3"] * 4
    assert probe.preamble.startswith('after words like "The value of it is')
    assert listen(Saying(""), build, []).responses == []


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_findings_follow_from_counts(seen):
    probe = Probe([of("x", *each) for each in seen])
    n, found = len(seen), probe.findings(20)
    right, lost = sum(r for r, _, _ in seen), sum(c and not r for r, c, _ in seen)
    assert ("echo" in found) == (2 * sum(e for *_, e in seen) >= n)
    assert ("cut" in found) == (2 * lost >= n)
    assert ("floor" in found) == (n >= 8 and right == 0)
    assert ("ceiling" in found) == (n >= 16 and right == n)


def test_a_longer_limit_is_proposed_unless_it_is_an_echo():
    assert "--max-new-tokens 40" in Probe([of("x", cut=True)] * 4).findings(20)["cut"]
    assert "--max-new-tokens" not in Probe([of("x", cut=True, echo=True)] * 4).findings(20)["cut"]


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("Sorry, I do not know.", True),
        ("I cannot answer this.", True),
        ("As an AI language model, I have no opinion.", True),
        ("Unfortunately, I am unable to say.", True),
        ("The value is not given.", False),
        ("He said that I cannot go.", False),
        ("Sorrow", False),
    ],
)
def test_refusals_in_words_are_told(text, refuses):
    assert ("refused" in Probe([of(text)] * 4).findings(20)) == refuses
    assert "refused" not in Probe([of(text, right=True)] * 4).findings(20)
    assert ("refused" in Probe([of(text)] * 2 + [of("x")] * 2).findings(20)) == refuses
    assert "refused" not in Probe([of(text)] + [of("x")] * 2).findings(20)


def test_one_answer_to_every_question_is_told():
    def said(*texts, answers):
        return [of(text)._replace(answers=(answer,)) for text, answer in zip(texts, answers, strict=True)]

    found = Probe(said(*"1" * 8, answers="34563456")).findings(20)
    assert found["same"].startswith('all of 8 responses are "1", to 4 questions: ')
    assert "same" not in Probe(said(*"1" * 8, answers="3" * 8)).findings(20)  # one question at eight positions
    assert "same" not in Probe(said(*"11111112", answers="34563456")).findings(20)
    assert "same" not in Probe(said(*"1" * 16, answers="3455" * 4)).findings(20)  # too few to say so


def test_no_bound_of_the_mean_is_said_of_a_few_questions(build, caplog):
    """Two questions at eight placements each said that the mean was at most 31; it was 67."""
    right = [kv_example(i % 6).value for i in range(16)]
    for texts in (["zz"] * 16, right):
        told(build, 100, texts, caplog)
    assert len(caplog.messages) == 2 and not any("mean" in line or "95" in line for line in caplog.messages)


def test_answers_that_end_within_thoughts_are_not_judged(build, caplog):
    """What to do about them is said by the sweep, which gives thoughts a limit of their own or turns them off."""
    first = FirstAnswers(build, 100)
    with caplog.at_level(logging.INFO):
        for i in range(8):
            first(kv_example(i % 6), Placement((1,), 6), Completion("", [], outcome="truncated"))
    assert caplog.messages == [] and not first.responses


@pytest.fixture
def build():
    return TextPromptBuilder(TASKS["kv"], 20)


def told(build, total, texts, caplog, cut=False):
    first = FirstAnswers(build, total)
    with caplog.at_level(logging.INFO):
        for i, text in enumerate(texts):
            first(kv_example(i % 6), Placement((1,), 6), Completion(text, [], cut=cut))
    return first, caplog.messages


def test_each_finding_is_said_once(build, caplog):
    _, lines = told(build, 100, ["zz zz"] * 70, caplog, cut=True)
    assert len(lines) == 1 and "none of 16 is right" in lines[0] and "16 of 16 responses are cut at 20" in lines[0]


def test_nothing_is_said_of_answers_that_are_as_they_should_be(build, caplog):
    right = [kv_example(i % 6).value if i % 3 else "zz" for i in range(70)]
    assert told(build, 100, right, caplog)[1] == []


def test_few_answers_are_not_judged(build, caplog):
    assert told(build, 7, ["zz"] * 7, caplog)[1] == []


def test_the_ceiling_is_said_of_no_fewer(build, caplog):
    right = [kv_example(i % 6).value for i in range(16)]
    assert told(build, 15, right[:15], caplog)[1] == []
    assert "all of 16 are right" in told(build, 100, right, caplog)[1][0]


def test_only_the_first_answers_are_kept(build, caplog):
    first, _ = told(build, 1000, ["zz"] * 200, caplog)
    assert len(first.responses) == LOOKED_AT == 16
    assert "none of 9 is right" in told(build, 9, ["zz"] * 9, caplog)[1][-1]


def test_a_sweep_says_what_its_own_answers_show_and_asks_nothing_twice(tmp_path, model_folder, caplog, monkeypatch):
    from posgap.generation.transformers import TransformersGenerator

    asked, generate = [], TransformersGenerator.generate

    def counted(self, groups, sampling):
        for answer in generate(self, groups, sampling):
            asked.append(answer)
            yield answer

    monkeypatch.setattr(TransformersGenerator, "generate", counted)
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(4)])
    config = SweepConfig(
        model=str(model_folder), examples=tmp_path / "e.jsonl", out=tmp_path / "out", n_docs=4, metric="em",
        max_new_tokens=3,
    )  # fmt: skip
    with caplog.at_level(logging.INFO):
        sweep_model(config)
    assert sum("the first answers: " in line for line in caplog.messages) == 1
    assert len(asked) == 16


def tried(begin, right, n=24, text="zz yy"):
    return SpontaneousAnswers(begin, Probe([of(text, i < right) for i in range(n)]))


def test_tokens_are_forced_only_where_answers_come_at_once():
    for begin, right in [(10, 12), (6, 12), (1, 2), (0, 0)]:
        at_once = SpontaneousAnswers(begin, Probe([of(f"{i} a", i < right) for i in range(24)]))
        assert at_once.hindrance == ""
    assert tried(5, 12).hindrance.startswith("answers 12 of 24 questions right, but only 5 of its responses begin")
    assert 'after words like "zz yy' in tried(0, 0).hindrance
