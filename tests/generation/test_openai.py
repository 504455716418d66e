"""The endpoint backend against a real local server that misbehaves."""

import json
import logging
import os
import random
import socket
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from endpoint import Endpoint, served
from fault_proxy import FAULTS, FINE, faulty

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.interruption import RESUMES
from posgap.generation import openai
from posgap.generation.endpoint_client import why_nobody
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling, complete
from posgap.generation.openai import OpenAIGenerator
from posgap.generation.served import EndpointChanged, EndpointIdentity
from posgap.tasks.prompts import Prompt

SAMPLING = Sampling(7, seed=3)
SEED = int(os.environ.get("CHAOS_SEED", "0"))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.002)


def shouted(text):
    return text.upper()


def generator(endpoint, concurrency=4, timeout=5.0, retries=3, **parameters):
    own = {"base_url": endpoint.url, "concurrency": concurrency, "timeout": timeout}
    made = OpenAIGenerator("served-model", EndpointParameters(**own | parameters))
    made.retry_policy = replace(made.retry_policy, tries=retries + 1)
    return made


def completions(endpoint, texts, **parameters):
    return list(complete(generator(endpoint, **parameters), [Prompt(text) for text in texts], SAMPLING))


def ask(endpoint, texts, **parameters):
    return [completion.text for completion in completions(endpoint, texts, **parameters)]


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
        answers = generator(endpoint).generate(groups(), SAMPLING)
        index, number, completion = next(answers)
        assert completion.text == f"{index}.{number}" and len(made) <= 3
        texts = {(i, j): c.text for i, j, c in [(index, number, completion), *answers]}
        assert texts == {(i, j): f"{i}.{j}" for i in range(12) for j in range(3)}
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
        0.8,  # hangs
    ],
    ids=str,
)
def test_what_passes_is_tried_again(wrong):
    with served(Endpoint(shouted, lambda text, times: wrong if times < 2 and text == "b" else None)) as endpoint:
        assert ask(endpoint, ["a", "b", "c"], timeout=0.5) == ["A", "B", "C"]
    assert endpoint.seen == {"a": 1, "b": 3, "c": 1}


def test_a_lost_server_is_tried_again_and_then_named():
    with served(Endpoint(shouted)) as endpoint:
        asked = generator(endpoint)
        assert [c.text for c in complete(asked, [Prompt("a")], SAMPLING)] == ["A"]
    with pytest.raises(PosgapError, match=r"127.0.0.1:\d+/v1/.* 4 tries: ClientConnectorError"):
        list(complete(asked, [Prompt("a")], SAMPLING))


def test_a_server_that_was_never_there_is_not_waited_for(monkeypatch):
    with served(Endpoint()) as endpoint:
        pass
    waited = []
    monkeypatch.setattr("posgap.foundation.retries.Waits.count", lambda *_: waited.append(_))
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(PosgapError, match="/v1/chat/completions: (?!.*NO_PROXY)"):
        ask(endpoint, ["a", "b"], retries=8)
    monkeypatch.setenv("HTTP_PROXY", endpoint.url.removesuffix("/v1"))
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(PosgapError, match="/v1/chat/completions: .*NO_PROXY$"):
        ask(endpoint, ["a"], retries=8)
    assert waited == []


def test_an_unknown_host_fails_at_once_and_a_slow_name_server_is_retried():
    def at(*reasons):
        error = OSError("All connection attempts failed")
        error.__cause__ = ExceptionGroup("several", list(reasons)) if len(reasons) > 1 else reasons[0]
        return why_nobody(error)

    refused, unknown = ConnectionRefusedError(), socket.gaierror(socket.EAI_NONAME, "no name")
    assert at(refused) == at(refused, refused) == "nothing listens there (connection refused)"
    assert at(unknown) == "the host name is unknown"
    assert at(socket.gaierror(socket.EAI_AGAIN, "later")) == at(refused, TimeoutError()) == at(OSError()) == ""


@pytest.mark.full
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


@pytest.mark.parametrize("value", ["86400", "inf", "1e300", format_datetime(datetime(2099, 1, 1, tzinfo=UTC))])
def test_who_is_to_wait_for_a_day_is_told_so_instead(value):
    wrong = (429, {"Retry-After": value}, "enough for today")
    with served(Endpoint(shouted, lambda text, times: wrong if text == "b" else None)) as endpoint:
        answers = generator(endpoint, concurrency=1).generate([[Prompt("a"), Prompt("b")]], SAMPLING)
        assert next(answers)[2].text == "A"
        started = time.monotonic()
        with pytest.raises(PosgapError) as raised:
            next(answers)
        assert time.monotonic() - started < 1
    line = str(raised.value)
    assert "429 Too Many Requests: enough for today: " in line and line.endswith(RESUMES)
    assert ("until 20" in line) == (value not in ("inf", "1e300"))


def test_waits_grow_and_are_never_all_the_same(monkeypatch):
    waits = []
    sleep = openai.asyncio.sleep

    async def noted(seconds):
        if seconds > 0:
            waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(openai.asyncio, "sleep", noted)
    monkeypatch.setattr(openai, "FIRST_WAIT", 1.0)
    with served(Endpoint(shouted, lambda text, times: (500, {}, "") if times < 8 else None)) as endpoint:
        assert ask(endpoint, ["a"], retries=8) == ["A"]
    longest = [1, 2, 4, 8, 16, 32, 64, 120]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ((500, {}, "out of\nmemory"), "500 Internal Server Error: out of memory (4 tries)"),
        ((200, {}, "garbage"), "the answer is not a completion: "),
        (0.3, "no answer within 0.05 s (4 tries)"),
        ((400, {}, '{"error": {"message": "no such language"}}'), "400 Bad Request: no such language"),
        ((200, {}, '{"error": {"code": 502, "message": "upstream"}}'), "502 Bad Gateway (in the body of a 200): up"),
    ],
    ids=str,
)
def test_a_prompt_without_any_usable_answer_has_failed_and_the_others_are_answered(wrong, reason):
    with served(Endpoint(shouted, lambda text, times: wrong if text == "b" else None)) as endpoint:
        a, b, c = completions(endpoint, ["a", "b", "c"], timeout=0.05 if isinstance(wrong, float) else 20.0)
    assert (a.text, c.text) == ("A", "C") and (b.text, b.outcome) == ("", "failed")
    assert b.reason.startswith(reason) and "\n" not in b.reason


@pytest.mark.parametrize("status", [400, 422, 200])
def test_one_prompt_tells_that_the_model_s_name_or_the_key_is_wrong(status):
    def refuse_slowly(text, times):
        time.sleep(0.05 if text == "Hello" else 0)
        return status, {}, json.dumps({"error": {"message": "Invalid model name", "type": "BadRequestError"}})

    with served(Endpoint(shouted, refuse_slowly)) as endpoint:
        with pytest.raises(PosgapError, match=f"{status}.*: Invalid model name, "):
            ask(endpoint, [str(i) for i in range(100)])
        assert endpoint.seen == {"0": 1, "Hello": 1}


@pytest.mark.parametrize("status", [500, 400])
def test_an_endpoint_that_fails_for_every_prompt_ends_the_sweep(status):
    texts = [str(i) for i in range(100)]
    broken = (status, {}, "broken")
    with served(Endpoint(shouted, lambda text, times: broken if text != "Hello" else None)) as endpoint:
        with pytest.raises(PosgapError, match=f" 8 prompts .* {status} "):
            ask(endpoint, texts, retries=1)
        assert len(endpoint.seen) < 20
    with served(Endpoint(shouted, lambda text, times: broken if int(text) > 40 else None)) as endpoint:
        with pytest.raises(PosgapError, match=" 25 prompts "):
            ask(endpoint, texts, retries=0)
        assert len(endpoint.seen) < 75


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ((401, {}, "bad key"), "401 Unauthorized: bad key; set OPENAI_API_KEY"),
        ((404, {}, "no such model"), "404 Not Found: no such model; "),
        ((307, {"Location": "/elsewhere"}, ""), "307 Temporary Redirect; "),
        ((200, {}, '{"error": {"code": 401, "message": "bad key"}}'), "401 Unauthorized (in the body of a 200)"),
        ((200, {}, '{"error": {"code": "insufficient_quota", "message": "pay"}}'), "402 Payment Required "),
        ((200, {}, '{"error": {"type": "overloaded_error", "message": "wait"}}'), "4 tries: 503"),
        ((402, {}, '{"error": "no money"}'), "402 Payment Required: no money"),
        ((429, {}, '{"error": {"code": "insufficient_quota", "message": "pay"}}'), "429 Too Many Requests: pay"),
        ((503, {}, "try later"), "4 tries: 503 Service Unavailable: try later; "),
    ],
    ids=str,
)
def test_what_no_other_prompt_would_change_ends_the_sweep_at_once(wrong, complaint):
    seconds = 1 if "tries" in complaint else 5  # while an endpoint is busy with one request it is not asked another
    with served(Endpoint(shouted, lambda text, times: wrong if text == "a" else seconds)) as endpoint:
        started = time.monotonic()
        with pytest.raises(PosgapError) as raised:
            ask(endpoint, ["a", "b"], timeout=20.0)
        assert time.monotonic() - started < 4
    line = str(raised.value)
    assert line.startswith(f"{endpoint.url}/chat/completions: ") and complaint in line and "\n" not in line


def test_in_a_storm_of_429_every_prompt_is_answered():
    # One request of four gets through, so that some prompts are turned away more often than they are tried.
    turn = iter(range(10**6))
    busy = (429, {}, "busy")
    with served(Endpoint(shouted, lambda text, times: None if next(turn) % 4 == 0 else busy)) as endpoint:
        texts = [f"p{i}" for i in range(60)]
        assert ask(endpoint, texts, concurrency=16, retries=4) == [text.upper() for text in texts]
    assert max(endpoint.seen.values()) > 5


def test_a_word_of_the_server_goes_before_our_own_waits(monkeypatch):
    # Three requests of four are turned away for 0.05 s. Waits of our own would take a second and more.
    monkeypatch.setattr(openai, "FIRST_WAIT", 1.0)
    turn, busy = iter(range(10**6)), (429, {"Retry-After": "0.05"}, "busy")
    with served(Endpoint(shouted, lambda text, times: None if next(turn) % 4 == 3 else busy)) as endpoint:
        texts, started = [f"p{i}" for i in range(20)], time.monotonic()
        assert ask(endpoint, texts, retries=1) == [text.upper() for text in texts]
    assert time.monotonic() - started < 20 * 3 * 0.05 * 2


class Bucket:
    """Turns requests away when its tokens are gone, of which `rate` come a second, up to `size`."""

    def __init__(self, rate, size, says=lambda seconds: {}):
        self.rate, self.size, self.says = rate, size, says
        self.tokens, self.at, self.began = float(size), None, None
        self.turned_away, self.lock = 0, threading.Lock()

    def __call__(self, text, times):
        with self.lock:
            now = time.monotonic()
            self.began = self.began or now
            self.tokens = min(self.size, self.tokens + (now - (self.at or now)) * self.rate)
            self.at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return None
            self.turned_away += 1
            return 429, self.says((1 - self.tokens) / self.rate), "busy"


@pytest.mark.full
@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.01, lambda seconds: {"Retry-After": f"{seconds:.3f}"}),
        (0.3, lambda seconds: {"Retry-After": f"{seconds:.3f}"}),
        (0.3, lambda seconds: {"Retry-After": "1"}),
        (0.3, lambda seconds: {}),
    ],
    ids=["answers soon", "answers late", "in whole seconds", "without a word"],
)
def test_most_of_a_rate_is_used(seconds, says, monkeypatch):
    """A quiet machine uses nine tenths; a busy one, on which tests run, may be late by itself."""
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.5)
    bucket, number = Bucket(40, 40, says), 160
    with served(Endpoint(shouted, bucket, seconds)) as endpoint:
        texts = [f"p{i}" for i in range(number)]
        assert ask(endpoint, texts, concurrency=64) == [text.upper() for text in texts]
        took = time.monotonic() - bucket.began - seconds
    assert (number - bucket.size) / took >= 0.6 * bucket.rate
    # Where an answer comes sooner than a token, even one request at a time is too many.
    assert bucket.turned_away < number * (2 if seconds < 1 / bucket.rate else 0.5)


def test_the_newer_name_of_the_token_limit_is_learnt():
    with served(Endpoint(shouted)) as endpoint:
        endpoint.misbehave = lambda text, times: (
            (400, {}, "use max_completion_tokens") if "max_tokens" in endpoint.bodies[-1] else None
        )
        assert ask(endpoint, ["a", "b"], concurrency=1) == ["A", "B"]
    assert endpoint.bodies[-1]["max_completion_tokens"] == 7 and endpoint.seen["b"] == 1


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        *((status, {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model.",
                   "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value"}})
          for status in (400, 200)),
        (400, {"error": {"message": "`temperature` is deprecated for this model.", "type": "invalid_request_error"}}),
        (400, {"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "input": 0.0,
                           "msg": "Extra inputs are not permitted"}]}),
    ],
    ids=["param", "in a 200", "message", "detail"],
)  # fmt: skip
def test_parameters_that_the_endpoint_does_not_take_are_left_out_after_one_line(status, refusal, caplog):
    def misbehave(text, times):
        with endpoint.lock:
            body = next(body for body in reversed(endpoint.bodies) if body["messages"][0]["content"] == text)
        return (status, {}, json.dumps(refusal)) if "temperature" in body else None

    with served(Endpoint(shouted, misbehave)) as endpoint:
        asking = generator(endpoint)
        texts = [f"temperature {i}" for i in range(12)]
        with caplog.at_level(logging.INFO, logger="posgap"):
            assert [c.text for c in complete(asking, [Prompt(text) for text in texts], SAMPLING)] == [
                text.upper() for text in texts
            ]
    assert asking.served.left_out == ("temperature",)
    (record,) = caplog.records
    assert (
        "does not accept temperature, which is left out from now on: the endpoint's own sampling" in record.getMessage()
    )
    assert endpoint.seen.total() <= 16 and endpoint.bodies[-1].keys() == {"model", "messages", "max_tokens", "seed"}


def test_an_address_may_have_a_query():
    parameters = EndpointParameters(base_url=" https://x.example/openai/deployments/d/?api-version=1 ")
    url = "https://x.example/openai/deployments/d/chat/completions?api-version=1"
    assert OpenAIGenerator("m", parameters).url == url


def test_what_the_body_says_is_sent_and_not_left_out():
    body = {"reasoning_effort": "low", "thinking": {"type": "disabled"}, "seed": None}
    with served(Endpoint(shouted)) as endpoint:
        assert ask(endpoint, ["a"], body=body) == ["A"]
    assert {name: endpoint.bodies[-1].get(name) for name in body} == body and "seed" not in endpoint.bodies[-1]
    refusal = json.dumps({"error": {"message": "Unrecognized request argument supplied: reasoning_effort"}})
    with served(Endpoint(shouted, lambda text, times: (400, {}, refusal))) as endpoint:
        with pytest.raises(PosgapError, match=" reasoning_effort, .*--body .* 400 "):
            ask(endpoint, ["a"], body=body)


@pytest.mark.parametrize("name", ["model", "messages", "stream", "max_tokens", "chat_template_kwargs"])
def test_the_body_does_not_replace_what_posgap_sends(name):
    with pytest.raises(ValueError, match=f"\nbody\n.* '{name}' "):
        EndpointParameters(body={name: 1})


def test_headers_are_sent_with_variables_in_them_and_shown_nowhere(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment\n")
    monkeypatch.setenv("GATEWAY", "a-long-password")
    header = {"X-Gateway": "Basic $GATEWAY", "X-Price": "$$5"}
    echo = (400, {}, "refused: a-long-password and from-the-environment")
    with served(Endpoint(shouted, lambda text, times: echo if text == "b" else None)) as endpoint:
        a, b = completions(endpoint, ["a", "b"], header=header)
    assert a.text == "A" and b.reason == "400 Bad Request: refused: *** and ***"
    sent = endpoint.headers[0]
    assert (sent["X-Gateway"], sent["X-Price"]) == ("Basic a-long-password", "$5")
    assert sent["Authorization"] == "Bearer from-the-environment"
    with served(Endpoint(shouted)) as endpoint:
        ask(endpoint, ["a"], header={"authorization": "Token other"})
    assert endpoint.headers[0].get("Authorization", endpoint.headers[0].get("authorization")) == "Token other"


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"X-A": "$NOT_SET"}, "X-A: .* NOT_SET "),
        ({"X-A": "hunter22 $"}, r"X-A: .* \$VARIABLE "),
        ({"X-A": "hunter22\r\nX-B: 1"}, "X-A: .* ASCII"),
        ({"X A": "hunter22"}, "X A: .* ASCII"),
        ({"X-A": "hünter22"}, "X-A: .* ASCII"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(header, complaint):
    with pytest.raises(BadOption, match=f"^--header {complaint}") as raised:
        OpenAIGenerator("m", EndpointParameters(base_url="http://127.0.0.1:9/v1", header=header))
    assert "nter22" not in str(raised.value)


def saying(**fields):
    """An answer that has these fields too."""
    choice = {"message": {"content": "A"}, "finish_reason": "stop"}
    return 200, {}, json.dumps({"choices": [choice], **fields})


def test_what_the_endpoint_says_of_itself_must_stay_the_same(caplog):
    says = {"a": saying(model="served-model-0613", system_fingerprint="fp1"), "b": saying(), "c": saying(model="other")}
    says["d"] = saying(model="served-model-0613", system_fingerprint="fp2")
    with served(Endpoint(misbehave=lambda text, times: says[text])) as endpoint:
        for last, identity, line in [
            ("d", "fingerprint", " fp1 to fp2.*--identity model "),
            ("c", "model", " served-model-0613 to other.*--identity any "),
        ]:
            asking = generator(endpoint, concurrency=1, identity=identity)
            answers = asking.generate([[Prompt(text) for text in ("a", "b", last)]], SAMPLING)
            assert [next(answers)[1], next(answers)[1]] == [0, 1]
            with pytest.raises(EndpointChanged, match=line):
                next(answers)
            again = OpenAIGenerator("served-model", asking.parameters, served=asking.served)
            with pytest.raises(EndpointChanged, match=line):
                next(again.generate([[Prompt(last)]], SAMPLING))
        asking = generator(endpoint, concurrency=1, identity="any")
        assert len(list(asking.generate([[Prompt(text) for text in "abcd"]], SAMPLING))) == 4
    assert asking.served == EndpointIdentity(models=("served-model-0613", "other"), fingerprints=("fp1", "fp2"))
    assert not caplog.records


def test_another_model_than_the_one_that_was_asked_is_said(caplog):
    with served(Endpoint(misbehave=lambda text, times: saying(model="tiny-fallback"))) as endpoint:
        assert ask(endpoint, ["a", "b"]) == ["A", "A"]
    (record,) = caplog.records
    assert record.getMessage().endswith(": requested model served-model, but the endpoint says it is tiny-fallback")


@pytest.fixture
def through(monkeypatch):
    """An HTTP proxy that the environment names, in front of an endpoint."""
    with served(Endpoint(shouted)) as endpoint, faulty(endpoint.url) as proxy:
        for variable in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, proxy.url)
        for variable in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(variable, "")
        yield endpoint, proxy


def test_an_http_proxy_that_errs_now_and_then_is_borne(through):
    endpoint, proxy = through
    draw = random.Random(SEED)
    now_and_then = [FAULTS[name] for name in ("drop before", "drop after", "truncate", "500", "500 page", "login page")]
    proxy.fault = lambda *_: draw.choice(now_and_then) if draw.random() < 0.3 else FINE
    assert ask(endpoint, [f"p{i}" for i in range(20)], retries=20) == [f"P{i}" for i in range(20)]
    assert len(proxy.seen) > 20 and proxy.seen[0].startswith("POST http://127.0.0.1:")


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ("delay", "drip")])
def test_what_an_http_proxy_does_for_ever_is_one_line(name, through):
    endpoint, proxy = through
    proxy.always(replace(FAULTS[name], headers=()) if name == "429" else FAULTS[name])  # else it asks for a day
    with pytest.raises(PosgapError) as told:  # from the eighth prompt on without an answer
        completed = completions(endpoint, [f"p{i}" for i in range(8)], retries=1, timeout=0.5)
        raise AssertionError([each.reason for each in completed])
    assert "\n" not in str(told.value) and "/v1/chat/completions" in str(told.value)
    proxy.heal()
    assert ask(endpoint, ["a"]) == ["A"]


def test_a_socks_proxy_is_refused_in_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp_socks", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://user:hunter2@127.0.0.1:9")
    with served(Endpoint(shouted)) as endpoint, pytest.raises(PosgapError, match="pip install aiohttp-socks.*NO_PROXY"):
        ask(endpoint, ["p"])
    monkeypatch.setenv("ALL_PROXY", "gopher://user:hunter2@127.0.0.1:9")
    with served(Endpoint(shouted)) as endpoint, pytest.raises(PosgapError, match=" gopher;") as refused:
        ask(endpoint, ["p"])
    assert "hunter2" not in str(refused.value)
