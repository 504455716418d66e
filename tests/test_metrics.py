"""Metrics against values worked by hand, and their invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posgap.foundation.errors import PosgapError
from posgap.tasks.metrics import (
    METRICS,
    contains_any,
    exact_match,
    f1,
    lost_in_the_middle,
    matches_pattern,
    normalize,
    numeric,
    sub_exact_match,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("An apple, a day", "apple day"),
        ("U.S.A.", "usa"),
        ("  théâtre ", "théâtre"),
        ("a", ""),
        ("Athens", "athens"),
        ("a\u0308pfel", "a\u0308pfel"),  # a letter and its accent are no article
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
        ("Athens", ["A", "the", "hens"], False, False),
        ("Vitamin A.", ["a"], False, True),
        ("grade a-", ["A-"], False, True),
        ("beatles2", ["beatles"], False, False),
        ("one and only beatles beatles2", ["beatles"], False, True),
        ("答案是北京市。", ["北京"], False, True),
        ("กรุงเทพมหานคร", ["กรุงเทพ"], False, True),
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


KEY = "2a8d601d-1d69-4e64-9f90-8ad825a74195"


@pytest.mark.parametrize(
    ("response", "answers", "right"),
    [
        (f'"{KEY}"', [KEY], True),
        (KEY.upper(), [KEY], True),
        (KEY.replace("-", ""), [KEY], False),
        (KEY[:-1], [KEY], False),
        ("", [KEY], False),
        (f"first\n{KEY}", ["other", KEY], True),
    ],
)
def test_a_key_is_contained_as_it_is_written(response, answers, right):
    assert contains_any(response, answers) is right


@pytest.mark.parametrize(
    ("response", "answers", "right"),
    [
        ("Wilhelm Conrad Röntgen", ["Wilhelm Conrad Röntgen"], True),
        ("It was the  wilhelm-conrad röntgen!", ["Wilhelmconrad Röntgen"], True),
        ("I do not know.\nWilhelm Conrad Röntgen won it.", ["Wilhelm Conrad Röntgen"], False),
        ("Röntgen\nI do not know.", ["Röntgen"], True),
        ("Röntgenstrahlen", ["Röntgen"], True),  # within a word too, as there
        ("Röntgen\u2028", ["Röntgen"], True),
        ("anything at all", ["A"], False),  # there it is right
        ("Group A", ["A"], True),
        ("anything at all", [], False),
    ],
)
def test_the_first_line_is_scored_as_lost_in_the_middle_does(response, answers, right):
    assert lost_in_the_middle(response, answers) is right


@pytest.mark.parametrize(
    ("response", "answers", "right"),
    [
        ("It cost $1,234.50.", ["1234.5"], True),
        ("3 + 4 = 7", ["7"], True),
        ("3 + 4 = 7", ["3"], False),
        ("-5", ["5"], False),
        ("−5", ["-5"], True),
        ("6.02e23", ["602000000000000000000000"], True),
        (".5", ["0.5"], True),
        ("1,23", ["23"], True),  # no separator of thousands
        ("no number", ["no number"], False),
        ("", ["0"], False),
        ("9" * 5000, ["9" * 5000], True),
    ],
)
def test_numbers_are_compared_as_numbers(response, answers, right):
    assert numeric(response, answers) is right


@pytest.mark.parametrize(
    ("response", "answers", "right"),
    [
        ("colour", ["colou?r"], True),
        ("color", ["^colou?r$"], True),
        ("discolored", [r"\bcolor"], False),
        ("", [], False),
    ],
)
def test_an_answer_can_be_a_pattern(response, answers, right):
    assert matches_pattern(response, answers) is right


def test_a_pattern_that_is_none_or_takes_for_ever_is_refused_in_a_line():
    with pytest.raises(PosgapError, match=r"^answer '\(' is no regular expression: missing \)"):
        matches_pattern("a", ["("])
    with pytest.raises(PosgapError, match=r"takes more than 1 s to look for"):
        matches_pattern("a" * 40 + "!", ["^(a|aa|a+)+$"])


@given(st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_every_metric_scores_any_response_from_0_to_1(response, answers):
    for metric in METRICS:
        if metric.name != "regex":
            assert 0 <= metric.score(response, answers) <= 1


@given(st.text("ab c1", max_size=12), st.text("ab c1", min_size=1, max_size=4).filter(str.strip))
def test_sub_em_finds_whole_words_only(response, answer):
    words, wanted = (f" {' '.join(text.split())} " for text in (response, answer))
    if normalize(response) == words.strip() and normalize(answer) == wanted.strip():
        assert sub_exact_match(response, [answer]) is (wanted in words)
