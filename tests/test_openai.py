"""The endpoint backend against a real local server that misbehaves."""

import logging
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from endpoint import Endpoint, served

from posgap.errors import PosgapError
from posgap.generation import openai
from posgap.generation.generator import Sampling, complete
from posgap.generation.openai import OpenAIGenerator
from posgap.tasks.prompts import Prompt

SAMPLING = Sampling(7, seed=3)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.01)


def shouted(text):
    return text.upper()


def ask(endpoint, texts, concurrency=4, timeout=5.0, retries=3):
    generator = OpenAIGenerator(endpoint.url, "served-model", concurrency, timeout, retries)
    return [c.text for c in complete(generator, [Prompt(text) for text in texts], SAMPLING)]


def test_prompts_go_out_as_text_and_answers_come_back_in_order(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with served(Endpoint(shouted, seconds=0.01)) as endpoint:
        assert ask(endpoint, [f"p{i}" for i in range(20)]) == [f"P{i}" for i in range(20)]
    # Four requests are under way at once, so any of them may arrive first.
    assert next(body for body in endpoint.bodies if body["messages"][0]["content"] == "p0") == {
        "model": "served-model",
        "messages": [{"role": "user", "content": "p0"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 3,
    }
    assert {headers["Authorization"] for headers in endpoint.headers} == {"Bearer secret"}


def test_no_more_requests_are_under_way_than_allowed_and_groups_are_read_as_needed():
    made = []

    def groups():
        for i in range(12):
            made.append(i)
            yield [Prompt(f"{i}.{j}") for j in range(3)]

    with served(Endpoint(shouted, seconds=0.02)) as endpoint:
        answered = OpenAIGenerator(endpoint.url, "m", 4, 5.0, 0).generate(groups(), SAMPLING)
        index, number, completion = next(answered)
        assert completion.text == f"{index}.{number}"
        assert len(made) <= 2
        rest = [(i, j) for i, j, _ in answered]
        assert sorted([(index, number), *rest]) == [(i, j) for i in range(12) for j in range(3)]
    assert endpoint.most_under_way == 4


@pytest.mark.parametrize(
    "wrong",
    [
        (429, {}, "slow down"),
        (500, {}, "<html>"),
        (503, {}, ""),
        (200, {}, "garbage"),
        (200, {}, '{"choices": []}'),
        (200, {"Content-Length": "9999"}, "cut off"),
        2.5,  # hangs
    ],
    ids=str,
)
def test_what_passes_is_tried_again(wrong):
    with served(Endpoint(shouted, lambda text, times: wrong if times < 2 and text == "b" else None)) as endpoint:
        assert ask(endpoint, ["a", "b", "c"], timeout=1.2) == ["A", "B", "C"]
    assert endpoint.seen == {"a": 1, "b": 3, "c": 1}


def test_a_lost_server_is_tried_again_and_then_named():
    with served(Endpoint()) as endpoint:
        pass
    with pytest.raises(PosgapError, match=r"127.0.0.1:\d+/v1/chat/completions: gave up after 4 tries: ConnectError"):
        ask(endpoint, ["a"])


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_holds_back_every_request(as_date):
    seconds = 1.5 if as_date else 0.4  # a date has whole seconds
    value = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True) if as_date else "0.4"
    refused = []

    def misbehave(text, times):
        if text == "a" and times == 0:
            refused.append(time.monotonic())
            return 429, {"Retry-After": value}, ""
        sent.append((text, time.monotonic()))
        return None

    sent = []
    with served(Endpoint(shouted, misbehave)) as endpoint:
        assert ask(endpoint, ["a", "b", "c"], concurrency=1) == ["A", "B", "C"]
    assert all(at - refused[0] >= min(seconds, 0.39) for _, at in sent)


def test_a_retry_after_of_a_day_is_capped_and_said(monkeypatch, caplog):
    monkeypatch.setattr(openai, "LONGEST_WAIT", 0.3)
    wrong = (429, {"Retry-After": "86400"}, "")
    with served(Endpoint(shouted, lambda text, times: wrong if times == 0 else None)) as endpoint:
        started = time.monotonic()
        with caplog.at_level(logging.INFO, logger="posgap"):
            assert ask(endpoint, ["a", "b"]) == ["A", "B"]
        assert 0.3 <= time.monotonic() - started < 10
    (record,) = caplog.records  # though both waited
    assert "429 Too Many Requests; trying again in 0.3 s, not in the 86400 s that it asks for" in record.getMessage()


def test_waits_grow_and_are_never_all_the_same(monkeypatch):
    waits = []
    sleep = openai.asyncio.sleep

    async def noted(seconds):
        if seconds > 0:
            waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(openai.asyncio, "sleep", noted)
    monkeypatch.setattr(openai, "FIRST_WAIT", 1.0)
    with served(Endpoint(shouted, lambda text, times: (503, {}, "") if times < 8 else None)) as endpoint:
        assert ask(endpoint, ["a"], retries=8) == ["A"]
    longest = [1, 2, 4, 8, 16, 32, 60, 60]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ((500, {}, "out of\nmemory"), "gave up after 4 tries: 500 Internal Server Error: out of memory; when the"),
        ((200, {}, "garbage"), "gave up after 4 tries: the answer is not a completion: 'garbage'"),
        (0.3, "gave up after 4 tries: no answer within 0.05 s"),
        ((401, {}, "bad key"), "401 Unauthorized: bad key; set OPENAI_API_KEY"),
        ((404, {}, "no such model"), "404 Not Found: no such model"),
    ],
    ids=str,
)
def test_giving_up_says_where_and_why_and_does_not_wait_for_the_others(wrong, complaint):
    with served(Endpoint(shouted, lambda text, times: wrong if text == "a" else 5)) as endpoint:
        started = time.monotonic()
        with pytest.raises(PosgapError) as raised:
            timeout = 0.05 if isinstance(wrong, float) else 20.0
            ask(endpoint, ["a"] if isinstance(wrong, float) else ["a", "b"], timeout=timeout)
        assert time.monotonic() - started < 4
    assert f"{endpoint.url}/chat/completions: {complaint}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_newer_name_of_the_token_limit_is_learnt():
    with served(Endpoint(shouted)) as endpoint:
        endpoint.misbehave = lambda text, times: (
            (400, {}, "use max_completion_tokens") if "max_tokens" in endpoint.bodies[-1] else None
        )
        assert ask(endpoint, ["a", "b"], concurrency=1) == ["A", "B"]
    assert endpoint.bodies[-1]["max_completion_tokens"] == 7 and endpoint.seen["b"] == 1


def test_a_null_answer_is_an_empty_one():
    body = '{"choices": [{"message": {"content": null}}]}'
    with served(Endpoint(misbehave=lambda text, times: (200, {}, body))) as endpoint:
        assert ask(endpoint, ["a"]) == [""]
