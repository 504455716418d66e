"""What counts as a response that repeats its prompt."""

import pytest
from examples import kv_example, prompt_text
from hypothesis import given
from hypothesis import strategies as st

from posgap.tasks.echo import MIN_RUN, is_echo, pieces
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS


@given(st.text(alphabet="aB1 \n\"':-_é.", max_size=40))
def test_white_space_and_case_make_no_pieces(text):
    assert pieces(f" {text.upper()}\n") == pieces(text.upper())
    assert not any(piece.isspace() for piece in pieces(text))
    assert "".join(pieces(text)) == "".join(text.lower().split())


def words(count, of="w"):
    return " ".join(f"{of}{i}" for i in range(count))


@pytest.mark.parametrize("length", [MIN_RUN - 1, MIN_RUN, MIN_RUN + 1])
def test_a_run_of_that_length_is_an_echo(length):
    prompt = f"begin {words(60)} end"
    assert is_echo(prompt, f"well: {words(length)} so", ["other"]) == (length >= MIN_RUN)


@pytest.mark.parametrize("length", [5, MIN_RUN, 40])
def test_the_answer_itself_does_not_count(length):
    answer = words(length)
    prompt = f"begin {answer} {words(40, 'x')} end"
    assert not is_echo(prompt, answer, [answer])
    assert not is_echo(prompt, f"{answer} {words(MIN_RUN - 1, 'x')}", [answer])
    assert is_echo(prompt, f"{answer} {words(MIN_RUN, 'x')}", [answer])
    assert is_echo(prompt, words(MIN_RUN, "x"), [answer])  # the answer is not among what is repeated


def test_one_uuid_record_is_no_echo_and_two_are():
    text = prompt_text(TASKS["kv"], kv_example(0, 8), Placement((1,), 8))
    uuid = "2a8d601d-1d69-4e64-9f90-8ad825a74195"
    other = uuid[::-1]
    records = f'"{uuid}": "{other}",\n "{other}": "{uuid}",'
    prompt = f"{text}\n{records}"
    assert not is_echo(prompt, f'"{uuid}": "{other}"', [other])
    assert not is_echo(prompt, f'The value of "{uuid}" is "{other}".', [other])
    assert is_echo(prompt, records, [other])


def test_neither_short_nor_own_words_are_an_echo():
    assert not is_echo(words(60), "", ["w1"])
    assert not is_echo(words(60), words(60, "own"), ["w1"])
    assert not is_echo("", words(60), ["w1"])
