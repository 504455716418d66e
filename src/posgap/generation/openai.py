"""The backend for OpenAI-compatible endpoints: chat completions or plain completions over HTTP.

One kind of request is sent, and what comes back is read leniently (`wire`); waits, retries and giving up are this
module's own. That takes an HTTP client and tenacity. The openai package, which asks by the same HTTP client, would
replace ten lines of it: its retries neither show their waits nor know when to stop, and it reads answers of any size.
"""

import asyncio
import logging
import math
import os
import re
import socket
import ssl
import string
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx2

from posgap.foundation.bounds import RECORD
from posgap.foundation.environment import read_number
from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_of
from posgap.foundation.interruption import RESUMES
from posgap.foundation.redaction import HIDDEN, MIN_CHARACTERS, redact
from posgap.foundation.retries import RetryPolicy, TransientError, Waits, retrying_async
from posgap.generation.congestion import Window
from posgap.generation.endings import before_stop
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Completion, Sampling, Usage
from posgap.generation.served import MUST_STAY, EndpointChanged, EndpointIdentity, What
from posgap.generation.whole_prompts import (
    LONG,
    LONGER,
    NO_MARKER,
    NOBODY_KNOWS,
    SHORT,
    ReadingRate,
    count_pieces,
    cut_halves,
    cut_sample,
    mark_text,
    marker_question,
    why_not_whole,
)
from posgap.generation.wire import EndpointAnswer, Fault, read_answer, read_fault
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.prompts import Prompt

log = logging.getLogger(__name__)
KEY_VARIABLE = "OPENAI_API_KEY"
RETRIES_VARIABLE = "POSGAP_RETRIES"  # of a request, before its prompt counts as failed
RETRIES, MAX_RETRIES = 8, 1000
FIRST_WAIT, MAX_WAIT = RetryPolicy.first_wait, 120.0  # seconds between tries
FROM_THE_FIRST, IN_A_ROW = 8, 25  # failed prompts that end a sweep: before any was answered, and later
_MAX_NAMES = 100  # that an endpoint may change between, where it may; more are not recorded
_OURS = ("model", "messages", "prompt")  # fields of a request that are always there
_WRONG_KEY = {401, 403}  # statuses
_WRONG_ADDRESS = {*range(300, 400), 404, 405}  # statuses; 404 may mean the model's name as well
_ENDS = _WRONG_KEY | _WRONG_ADDRESS | {402}  # statuses that no other prompt would change
_BUSY = {429, 503, 529}  # statuses of an endpoint that has no time, whatever the prompt
Question = tuple[int, int, Prompt]


class _Busy(TransientError):
    """The endpoint cannot be reached, or has no time: whatever the prompt is, it is not its fault."""


class OpenAIGenerator:
    """Sends prompts to an endpoint, `concurrency` at a time, as a chat or for plain completion.

    What may go right the next time is tried again up to 8 times, or POSGAP_RETRIES, after exponential waits with jitter
    or the time that Retry-After asks for: timeouts (`timeout` seconds for a whole response), lost connections, statuses
    408, 409, 425, 429 and 5xx, and bodies that are not a completion. A prompt for which that is in vain, or that the
    endpoint does not take, is `failed`; one that a content filter holds back is `refused`.

    `PosgapError` ends the sweep where the endpoint cannot be asked (a wrong address or key), is not there at the first
    request, cannot be reached later or has no time for any prompt, fails for many prompts in a row, asks for a longer
    wait than `MAX_WAIT`, or says that it is no longer what it was. What it says of itself is in `served`, which begins
    with what an interrupted sweep has recorded of it. Parameters that it does not take are left out from then on, and
    listed there.
    """

    def __init__(
        self,
        model: str,
        parameters: EndpointParameters,
        framing: Framing = PLAIN,
        served: EndpointIdentity | None = None,
    ):
        self.model, self.parameters, self.framing = model, parameters, framing
        self.served = served or EndpointIdentity()
        self.chat = parameters.endpoint == "chat"
        self.url = endpoint_url(parameters.base_url, f"{'chat/' * self.chat}completions")
        self.shown = redact(self.url)
        self.headers = headers_of(parameters.header)
        arguments = {"chat_template_kwargs": dict(framing.arguments)} if framing.arguments else {}
        self.asked_for = (
            _with_variables(parameters.body) | arguments
        )  # fields that a person asks for, which are never left out
        self.limit = "max_tokens"
        self.waits = Waits(self.shown)
        self.resume_at = 0.0  # nothing is sent before this time of the monotonic clock
        self.window = Window(parameters.concurrency)
        tries = int(read_number(RETRIES_VARIABLE, RETRIES, 0, MAX_RETRIES)) + 1
        self.retry_policy = RetryPolicy(tries=tries, first_wait=FIRST_WAIT, longest_wait=MAX_WAIT)
        self.answered = self.row = 0  # prompts that were answered, and those that failed since
        self.answered_at = -math.inf
        self.heard = False  # whether anything has come back yet
        self.checking = asyncio.Lock()
        self.whole = LONG  # bytes of the longest prompt that is known to be read whole
        self.rate: ReadingRate | None = None
        self.repeats = RepeatedAnswers()

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        questions = ((index, at, prompt) for index, group in enumerate(groups) for at, prompt in enumerate(group))
        concurrency = self.parameters.concurrency
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency)
        answers: asyncio.Queue[tuple[int, int, Completion] | Exception | None] = asyncio.Queue()
        self.window, self.checking = Window(concurrency, self.window.size), asyncio.Lock()
        with asyncio.Runner() as runner:
            try:
                client = httpx2.AsyncClient(headers=self.headers, timeout=None, limits=limits, verify=tls())
            except (ImportError, ValueError) as fault:  # of a proxy of the environment
                reason = _WITHOUT_SOCKS if isinstance(fault, ImportError) else str(fault)
                raise PosgapError(
                    f"{self.shown}: the proxy that the environment names (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) cannot "
                    f"be used: {redact(reason)}; or name this host in NO_PROXY"
                ) from None
            work = (self._work(client, questions, sampling, answers) for _ in range(concurrency))
            tasks = [runner.get_loop().create_task(each) for each in work]
            try:
                working = len(tasks)
                while working:
                    ready = runner.run(_ready(answers))
                    yield from (answer for answer in ready if isinstance(answer, tuple))
                    if error := next((answer for answer in ready if isinstance(answer, Exception)), None):
                        raise error
                    working -= ready.count(None)
            finally:
                for task in tasks:
                    task.cancel()
                # After a signal the loop may still stop for what was awaited then; the runner ends the rest.
                with suppress(RuntimeError):
                    runner.run(client.aclose())

    async def _work(
        self, client: httpx2.AsyncClient, questions: Iterator[Question], sampling: Sampling, answers: asyncio.Queue
    ) -> None:
        """Answers one question after the other; puts None, or what went wrong, after the last answer."""
        try:
            for index, number, prompt in questions:
                await self._require_whole(client, prompt, sampling)
                answers.put_nowait((index, number, await self._answer_prompt(client, prompt, sampling)))
        except Exception as error:  # whatever it is, it belongs to whoever takes the answers
            answers.put_nowait(error)
        else:
            answers.put_nowait(None)

    async def _answer_prompt(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> Completion:
        tries, began, stop = 0, time.monotonic(), sampling.stop
        while True:
            answered = self.answered
            try:
                completion: Completion = await retrying_async(self.retry_policy, self.waits)(
                    self._try, client, prompt, sampling
                )
            except _Busy as complaint:
                tries += int(self.retry_policy.tries)
                silent = time.monotonic() - max(began, self.answered_at)
                if self.answered > answered or silent < self.retry_policy.patience:
                    continue  # It has time for others, and so will have some for this one; or asks for short waits.
                raise self._endpoint_error(f"gave up after {tries} tries: {complaint}", _WORKS_AGAIN) from None
            except TransientError as complaint:
                return self._count_failure(f"{complaint} ({tries + self.retry_policy.tries} tries)")
            if completion.outcome == "failed":
                return self._count_failure(completion.reason)
            told = completion.usage.prompt if completion.usage else None
            why_cut = self.rate.why_cut(prompt.text, told) if self.rate else ""
            if why_cut:
                return self._count_failure(why_cut)
            self.answered, self.answered_at, self.row = self.answered + 1, time.monotonic(), 0
            if completion.outcome == "empty" and sampling.stop:
                sampling = replace(sampling, stop=())  # Endpoints stop at a stop string before any text too.
                continue
            text = before_stop(completion.text, stop)
            return completion._replace(text=text, cut=completion.cut and text == completion.text)

    async def _require_whole(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> None:
        """Raises `PosgapError` where the endpoint cuts a prompt this long, of which it is asked once."""
        size = len(prompt.text.encode())
        if size <= self.whole:
            return
        async with self.checking:
            if size <= self.whole:
                return
            briefly = replace(sampling, max_new_tokens=16, max_thinking_tokens=0, stop=())
            told: list[int] = []
            for text in (SHORT, cut_sample(prompt.text), prompt.text, *cut_halves(prompt.text)):
                completion = await self._answer_prompt(client, Prompt(text), briefly)
                if completion.outcome == "failed":
                    return  # the prompts themselves will fail alike, and say so
                told.append((completion.usage.prompt if completion.usage else None) or 0)
                if not told[-1] or told[-1] < told[0]:
                    break
            self.whole = round(LONGER * size)
            if not all(told) or told[1:2] == told[:1] or len(told) < 5:  # nothing is told, or always the same
                await self._require_markers(client, prompt, replace(sampling, stop=()))
                return
            added, of_sample, of_whole, *of_halves = told
            rate = ReadingRate(added, (of_sample - added) / max(1, count_pieces(cut_sample(prompt.text))))
            why_cut = rate.why_cut(prompt.text, of_whole) or why_not_whole(added, of_whole, of_halves)
            if why_cut:
                raise PosgapError(f"{self.shown}: {why_cut}")
            self.rate = rate

    async def _require_markers(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> None:
        """Raises `PosgapError` where markers are found in a sample of a prompt, and not in the whole."""
        missing = False
        for text in (prompt.text, cut_sample(prompt.text)):
            marked, codes = mark_text(text)
            answers = []
            for marker, code in codes.items():
                said = await self._answer_prompt(client, Prompt(marker_question(marked, marker)), sampling)
                answers.append(code in said.text)
            if not missing and all(answers):
                return
            if missing and all(answers):
                raise PosgapError(f"{self.shown}: {NO_MARKER}")
            missing = True
        log.warning("%s: %s", self.shown, NOBODY_KNOWS)
        self.whole = sys.maxsize  # nor would a longer prompt tell

    def _count_failure(self, reason: str) -> Completion:
        self.row += 1
        if self.row >= (IN_A_ROW if self.answered else FROM_THE_FIRST):
            raise self._endpoint_error(
                f"no answer to {self.row} prompts in a row, the last time: {reason}", _WORKS_AGAIN
            )
        return Completion("", [], "failed", reason=reason)

    def _endpoint_error(self, why: str, then: str = RESUMES) -> PosgapError:
        kept = f"; what was answered is kept: {then}" if self.answered or then != RESUMES else ""
        return PosgapError(f"{self.shown}: {why}{kept}")

    async def _try(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> Completion:
        """One try, with as many requests as there are parameters that the endpoint does not take."""
        while True:
            window = self.window
            started = await window.acquire()
            try:
                while (wait := self.resume_at - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                request, started = self._request(prompt, sampling), time.monotonic()
                answer = await self._post(client, request, sampling.opened, prompt.text)
            except _Busy as busy:
                window.note_refusal(started)
                busy.most_failures = window.halvings
                raise
            finally:
                window.release()
            window.note_answer(started)
            if isinstance(answer, EndpointAnswer):
                self._require_same(answer)
                if self.repeats.is_first(prompt, answer):
                    log.warning("%s: %s", self.shown, REPEATED)
                usage = answer.completion.usage or Usage()
                return answer.completion._replace(usage=usage._replace(seconds=time.monotonic() - started))
            if not self._leave_out(answer, request):
                return self._completion_of(answer)

    def _request(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        what = {"messages": self.framing.messages(prompt.text)} if self.chat else {"prompt": prompt.text}
        ours = {
            self.limit: sampling.limit,
            "temperature": sampling.temperature,
            "seed": sampling.seed_of(prompt),
            "stop": list(sampling.stop) or None,
        }
        kept = {name: value for name, value in ours.items() if name not in self.served.left_out}
        more = {name: value for name, value in (kept | self.asked_for).items() if value is not None}
        return {"model": self.model, **what, **more}

    async def _post(
        self, client: httpx2.AsyncClient, request: Mapping[str, Any], opened: str | None, asked: str
    ) -> EndpointAnswer | Fault:
        """What came back; raises `TransientError` where that may be another thing the next time."""
        try:
            async with (
                asyncio.timeout(self.parameters.timeout),
                client.stream("POST", self.url, json=request) as response,
            ):
                body = await _read_body(response)
        except TimeoutError:
            raise TransientError(f"no answer within {self.parameters.timeout:g} s") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise PosgapError(f"{self.shown}: is no address of an endpoint: {error}") from None
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            if not self.heard and (nobody := _nobody(error)):
                raise PosgapError(f"{self.shown}: {nobody}: {_what_then(self.url)}") from None
            raise _Busy(self.hidden(f"{type(error).__name__} {error}".strip())) from None
        except httpx2.RequestError as error:
            raise TransientError(self.hidden(f"{type(error).__name__} {error}".strip())) from None
        self.heard = True
        if response.is_success:
            try:
                answer = read_answer(body, opened, asked)
            except ValueError as error:
                beginning = body[:100].decode("utf-8", "replace")
                raise TransientError(self.hidden(f"the answer is not a completion: {error}: {beginning!r}")) from None
            if isinstance(answer, EndpointAnswer) or answer.is_of_a_filter:
                return answer
            raise TransientError(self.hidden(str(answer)))
        fault, status = read_fault(response.status_code, body), response.status_code
        if status in (408, 409, 425, 429) or status >= 500:
            if fault.is_of_a_spent_account:
                raise self._endpoint_error(self.hidden(str(fault)), f"when the account is filled, {RESUMES}")
            wait = self._wait_seconds(response, fault)
            raise (_Busy if status in _BUSY else TransientError)(self.hidden(str(fault)), wait)
        return fault

    def _wait_seconds(self, response: httpx2.Response, fault: Fault) -> float:
        """The seconds that Retry-After asks for, in which no other request is sent either."""
        wait = _retry_after(response)
        if wait > MAX_WAIT:
            until = ""
            if wait < timedelta(days=36500).total_seconds():
                until = f", until {(datetime.now(UTC) + timedelta(seconds=wait)).isoformat(' ', 'seconds')}"
            raise self._endpoint_error(
                f"{self.hidden(str(fault))}: it asks to wait {wait:g} s{until}, longer than a sweep waits "
                f"({MAX_WAIT:g} s)",
                f"after that {RESUMES}",
            )
        self.resume_at = max(self.resume_at, time.monotonic() + wait)
        return wait

    def _leave_out(self, fault: Fault, request: Mapping[str, Any]) -> bool:
        """Whether the endpoint refused a parameter of this request that is renamed or left out from now on."""
        if "max_tokens" in request and "max_completion_tokens" in fault.words:
            # Some models insist on the newer name of the limit, which older servers do not know.
            self.limit = "max_completion_tokens"
            return True
        refused = next((name for name in request if name not in _OURS and fault.refuses(name)), None)
        if refused is None or fault.is_of_a_filter:
            return False
        if refused in self.asked_for:
            option = "--body" if refused in self.parameters.body else "--template-args"
            raise PosgapError(
                f"{self.shown}: does not take {refused}, which {option} asks for: {self.hidden(str(fault))}"
            )
        if refused not in self.served.left_out:  # other requests that were under way were refused too
            log.warning(
                "%s: does not take %s, which is left out from now on%s (%s)",
                self.shown, refused, _WITHOUT.get(refused, ""), self.hidden(str(fault)),
            )  # fmt: skip
            self.served = self.served.with_left_out(refused)
        return True

    def _completion_of(self, fault: Fault) -> Completion:
        """How a prompt ended that this fault is the answer to; raises `PosgapError` where it is of every prompt."""
        words = self.hidden(str(fault))
        if fault.is_of_a_filter:
            return Completion("", [], "refused", reason=words)
        if fault.status in _ENDS:
            hint = f"; {about_key(self.headers)}" if fault.status in _WRONG_KEY else ""
            if fault.status in _WRONG_ADDRESS:
                hint = "; check the address (http or https, with or without /v1) and the model's name"
            raise self._endpoint_error(words + hint)
        return Completion("", [], "failed", reason=words)

    def _require_same(self, answer: EndpointAnswer) -> None:
        """Notes what the endpoint says of itself; raises `EndpointChanged` where that must not change, and does."""
        says: dict[What, str] = {"model": answer.model, "fingerprint": answer.fingerprint}
        for name, now in says.items():
            before = self.served.values_of(name)
            if not now or now in before:
                continue
            if before and name in MUST_STAY[self.parameters.identity]:
                raise EndpointChanged(
                    f"{self.shown}: is no longer what it was: its {name} was {before[-1]}, and is {now} now",
                    "model" if name == "fingerprint" else "any",
                )
            if name == "model" and not before and not _is_related(now, self.model):
                log.warning("%s: was asked for %s, and says that it is %s", self.shown, self.model, now)
            if len(before) < _MAX_NAMES:
                self.served = self.served.with_value(name, now)

    def require_same(self) -> None:
        """Asks a question of a word, at most twice. Raises `EndpointChanged` where the endpoint is not what `served`
        says, and another `PosgapError` where it gives no answer."""
        self.retry_policy = replace(self.retry_policy, tries=min(2, self.retry_policy.tries))
        for _, _, completion in self.generate([[Prompt("Hello")]], Sampling(16)):
            if completion.outcome == "failed":
                raise PosgapError(f"{self.shown}: {completion.reason}")

    def hidden(self, text: str) -> str:
        """The text without secrets: those of the house, and the headers that were sent."""
        for value in sorted(self.headers.values(), key=len, reverse=True):
            for secret in (value, *value.split()):
                if len(secret) >= MIN_CHARACTERS:
                    text = text.replace(secret, HIDDEN)
        return redact(text)


def _nobody(error: BaseException | None) -> str:
    """Why no server is at the address at all; empty where a later try may find one."""
    if isinstance(error, BaseExceptionGroup):  # a host with several addresses
        reasons = [_nobody(each) for each in error.exceptions]
        return reasons[0] if all(reasons) else ""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused)"
    if isinstance(error, socket.gaierror):
        return "there is no such host" if error.errno == socket.EAI_NONAME else ""
    return _nobody(error.__cause__ or error.__context__) if error else ""


def _what_then(url: str) -> str:
    """Says what to do where nobody is at an address, to which the way may lead through a proxy."""
    scheme, _, rest = url.partition("://")
    proxies, host = urllib.request.getproxies(), rest.partition("/")[0]
    by_proxy = (scheme in proxies or "all" in proxies) and not urllib.request.proxy_bypass(host)
    way = ", or the proxy that the environment names, or set NO_PROXY" if by_proxy else ""
    return f"start the server, or correct the address{way}"


class RepeatedAnswers:
    """Tells whether a gateway gives an answer that it has stored in place of another prompt's own."""

    def __init__(self) -> None:
        self.prompts: dict[tuple[str, str], str] = {}  # digests of prompts by the id and text of their answers
        self.is_said = False

    def is_first(self, prompt: Prompt, answer: EndpointAnswer) -> bool:
        """Whether this is the first answer with the id of another prompt's; ids of few characters agree by chance."""
        if self.is_said or len(answer.id) < _LONG_ID or not answer.completion.text:
            return False
        digest = digest_of([prompt.text, prompt.sample])
        self.is_said = self.prompts.setdefault((answer.id, answer.completion.text), digest) != digest
        return self.is_said


_LONG_ID = 20  # characters; those of Ollama have three digits, and so agree by chance
REPEATED = (
    "repeats a stored answer for another prompt (the same completion id): answers to an example's placements are no "
    'separate ones, so no gap is seen; turn its cache off (LiteLLM: --body \'{"cache": {"no-cache": true}}\')'
)
_WORKS_AGAIN = f"when the endpoint works again, {RESUMES}, perhaps with a lower concurrency or a longer timeout"
_WITHOUT_SOCKS = "a SOCKS proxy takes the package socksio (pip install socksio)"
_WITHOUT = {
    "temperature": ": answers are those of the endpoint's own sampling, perhaps not greedy",
    "max_tokens": ": answers are as long as the endpoint lets them be",
    "max_completion_tokens": ": answers are as long as the endpoint lets them be",
}


def endpoint_url(address: str, path: str) -> str:
    """The URL of a path below an endpoint's address, in which `$VARIABLE` stands for a variable of the environment."""
    address, mark, query = _fill_variables(address, "--base-url").strip().partition("?")  # Azure's has a query
    return f"{address.rstrip('/')}/{path}{mark}{query}"


def headers_of(header: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request: the key of the environment, and those given, in which `$VARIABLE` stands for a
    variable of the environment. Raises `PosgapError` that shows no value where one is unset or cannot be sent."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for name, text in header.items():
        value = _fill_variables(text, f"--header {name}").strip()
        headers = {own: each for own, each in headers.items() if own.lower() != name.lower()} | {name: value}
    for name, value in headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or not re.fullmatch(r"[ -~]*", value):
            where = KEY_VARIABLE if name == "Authorization" and name not in header else f"--header {shorten(name)}"
            raise PosgapError(f"{where}: has characters that no header takes")
    return headers


def about_key(headers: Mapping[str, str]) -> str:
    """Says what to do where an endpoint refuses the key in these headers, or that there is none."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    was_sent = bool(key) and headers.get("Authorization") == f"Bearer {key}"
    return f"the key in {KEY_VARIABLE} was refused: set another one" if was_sent else f"set {KEY_VARIABLE}"


def _fill_variables(text: str, option: str) -> str:
    """A text of an option, with the environment's variables in place of `$VARIABLE`."""
    try:
        return string.Template(text).substitute(os.environ)
    except KeyError as unset:
        raise PosgapError(f"{option}: the variable {unset.args[0]} is not set") from None
    except ValueError:
        raise PosgapError(f"{option}: write $VARIABLE for a variable, and $$ for a dollar sign") from None


def _with_variables(value: Any) -> Any:
    """A JSON value of `--body`, in which a text that is all `$VARIABLE` stands for a variable of the environment."""
    if isinstance(value, dict):
        return {name: _with_variables(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_variables(each) for each in value]
    is_variable = isinstance(value, str) and re.fullmatch(r"\$[A-Za-z_]\w*", value)
    return _fill_variables(value, "--body") if is_variable else value


@cache
def tls() -> ssl.SSLContext:
    """The certificates that servers are known by, which take a tenth of a second to read."""
    return httpx2.create_ssl_context()


async def _ready(answers: asyncio.Queue) -> list[Any]:
    """All answers that are there, at least one."""
    first = await answers.get()
    return [first, *(answers.get_nowait() for _ in range(answers.qsize()))]


async def _read_body(response: httpx2.Response) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > RECORD:
            raise TransientError(f"an answer of more than {RECORD >> 20} MB")
    return b"".join(parts)


def _is_related(name: str, asked: str) -> bool:
    """Whether two names of models may be of the same: one has the other in it, folders apart."""
    one, other = (text.rstrip("/").rpartition("/")[2].lower() for text in (name, asked))
    return one in other or other in one


def _retry_after(response: httpx2.Response) -> float:
    """The seconds that the Retry-After header asks for, as a number or as a date; 0 without such a header."""
    value = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0
