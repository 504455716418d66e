"""Metrics against values worked by hand, and their invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posgap.tasks.metrics import exact_match, f1, normalize, sub_exact_match


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("An apple, a day", "apple day"),
        ("U.S.A.", "usa"),
        ("  théâtre ", "théâtre"),
        ("a", ""),
        ("Athens", "athens"),
    ],
)
def test_squad_normalisation(text, normal):
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("response", "answers", "em", "sub_em"),
    [
        ("The Beatles", ["beatles"], True, True),
        ("It was the Beatles.", ["beatles"], False, True),
        ("May 18, 2018", ["May 18 2018"], True, True),
        ("the Stones", ["beatles", "stones"], True, True),
        ("", ["beatles"], False, False),
        ("beat", ["beatles"], False, False),
    ],
)
def test_known_answers(response, answers, em, sub_em):
    assert exact_match(response, answers) is em
    assert sub_exact_match(response, answers) is sub_em


@pytest.mark.parametrize("answer", ["a", "-", "the", "..."])
def test_an_answer_that_normalises_to_nothing_is_not_in_every_response(answer):
    assert not sub_exact_match("7", [answer])
    assert not exact_match("7", [answer])
    assert exact_match(answer, [answer])
    assert sub_exact_match(f"{answer}", [answer])


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    assert normalize(normalize(text)) == normalize(text)


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_em_implies_sub_em(response, answers):
    if exact_match(response, answers):
        assert sub_exact_match(response, answers)


@given(st.text(alphabet="abcdefxyz019 -", min_size=1).filter(str.strip))
def test_an_answer_matches_itself(answer):
    assert exact_match(answer, [answer])


@pytest.mark.parametrize(
    ("response", "answers", "score"),
    [
        ("The Beatles", ["beatles"], 1),
        ("Paul of the Beatles", ["the Beatles"], 0.5),  # one of three words is one of one: 2 * 1/3 / (1/3 + 1)
        ("red red blue", ["red blue blue"], 2 / 3),
        ("blue", ["green", "dark blue"], 2 / 3),
        ("", ["beatles"], 0),
        ("stones", ["beatles"], 0),
        ("anything", [], 0),
    ],
)
def test_f1_by_hand(response, answers, score):
    assert f1(response, answers) == pytest.approx(score)


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_f1_is_one_where_all_words_match_and_never_beyond(response, answers):
    assert 0 <= f1(response, answers) <= 1
    if exact_match(response, answers):
        assert f1(response, answers) == 1
