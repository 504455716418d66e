"""Thoughts are cut off before an answer is scored, whatever tags they stand between, and wherever else tags stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posgap.generation.thoughts import TAGS, opened_by, split_thoughts

PIECES = st.lists(st.sampled_from(["a", "\n", " ", "<think>", "</think>", "[THINK]", "[/THINK]"]), max_size=9)


@pytest.mark.parametrize(
    ("response", "thoughts", "answer", "ended"),
    [
        ("zz", "", "zz", True),
        ("<think> every value </think> zz", "every value", "zz", True),
        ("\n<think>\n\n</think>\n\nzz\n", "", "zz\n", True),
        ("<think>zz", "zz", "", False),
        ("<think>", "", "", False),
        ("<think>zz</think>", "zz", "", True),
        ("<think> a <think> b </think> c </think> zz", "a <think> b </think> c", "zz", True),
        ("<think> a <think> b </think> zz", "a <think> b", "zz", True),
        ("<think>a</think><think>b</think> zz", "a\nb", "zz", True),
        ("<think>a</think> zz <think>b", "a", "zz <think>b", True),
        ("the document says <think>b</think> zz", "", "the document says <think>b</think> zz", True),
        ("b</think> zz", "", "b</think> zz", True),
        ("</think>\n\nzz", "", "zz", True),
        ("<think>a</thinking> zz", "a</thinking> zz", "", False),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>zz",
         "a<|end|><|start|>assistant", "zz", True),
        ("<|channel|>final<|message|>zz", "", "zz", True),
        ("", "", "", True),
    ],
)  # fmt: skip
def test_thoughts_are_what_a_response_begins_with_between_tags(response, thoughts, answer, ended):
    assert split_thoughts(response) == (thoughts, answer, ended)


@pytest.mark.parametrize(("tag", "close"), TAGS.items())
def test_every_tag_is_cut_off_whoever_opens_it(tag, close):
    assert split_thoughts(f"{tag}zz{close}yes") == ("zz", "yes", True)
    assert opened_by(f"<|assistant|>{tag}\n") == tag
    assert opened_by(f"<|assistant|>{tag}\n\n{close}\n\n") == opened_by("<|assistant|>") == ""
    for response in (f"zz{close}yes", f"{tag}zz{close}yes"):
        assert split_thoughts(response, opened=tag) == split_thoughts(response, opened=None) == ("zz", "yes", True)
    assert split_thoughts("zz", opened=tag) == ("zz", "", False)


@pytest.mark.parametrize(
    ("response", "thoughts", "answer"),
    [
        ("analysisWe need the value: a.assistantfinalzz", "We need the value: a.", "zz"),
        ("analysisWe need", "We need", ""),
        ("assistantfinalzz", "", "zz"),
        ("analysis of data", "", "analysis of data"),
        ("analysis: zz", "", "analysis: zz"),
        ("so: analysisWe assistantfinal", "", "so: analysisWe assistantfinal"),
    ],
)
def test_channels_whose_tags_a_server_has_skipped_are_told_apart(response, thoughts, answer):
    assert split_thoughts(response, opened=None)[:2] == (thoughts, answer)


@pytest.mark.parametrize("response", ["<THINK>a</THINK> zz", "\ufeff<think>a</think> zz", "\u200b <Think>a</think>zz"])
def test_tags_are_known_in_capitals_and_behind_marks_that_nobody_sees(response):
    for opened in ("", None):
        assert split_thoughts(response, opened) == ("a", "zz", True)


def test_a_closing_tag_that_may_be_a_copy_of_a_document_cuts_nothing_off():
    response = "it reads b</think> zz"
    assert split_thoughts(response, opened=None).answer == "zz"
    assert split_thoughts(response, opened=None, asked="Document [1] b</think> zz").answer == response


@given(PIECES, st.sampled_from(["", "<think>", None]))
def test_nothing_is_lost_or_made_up_and_no_thought_is_in_the_answer(pieces, opened):
    response = "".join(pieces)
    thoughts, answer, ended = split_thoughts(response, opened)
    assert response.endswith(answer) and (ended or not answer)
    assert not answer.startswith(tuple([*TAGS, *TAGS.values()]))
    assert (thoughts + answer).count("a") == response.count("a")
    if not set(pieces) & {"<think>", "</think>", "[THINK]", "[/THINK]"} and opened != "<think>":
        assert (thoughts, answer) == ("", response.lstrip())
