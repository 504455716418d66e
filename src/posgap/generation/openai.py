"""The backend for OpenAI-compatible endpoints: chat completions or plain completions over HTTP.

One kind of request is sent, and what comes back is read leniently (`wire`). `OpenAIGenerator` takes one prompt after
the other through it. What it needs for that are objects of their own: the client, the window that says how many
requests may be under way, the fields of a request, the served model's identity, the probe for cut prompts, and the
counts of failures and of repeated prompts.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from posgap.foundation.environment import read_number
from posgap.foundation.errors import PosgapError
from posgap.foundation.interruption import RESUMES
from posgap.foundation.retries import RetryPolicy, TransientError, Waits
from posgap.generation.congestion import Window
from posgap.generation.endings import before_stop
from posgap.generation.endpoint_address import about_key
from posgap.generation.endpoint_client import BusyError, EndpointClient, PausingLoop, Response, TimedOut
from posgap.generation.endpoint_failures import FailureCount
from posgap.generation.endpoint_parameters import MAX_REQUESTS, EndpointParameters
from posgap.generation.generator import Completion, Sampling, Usage
from posgap.generation.pace import MIN_SHOWN, EndpointPace, Stopwatch
from posgap.generation.request_fields import RequestFields
from posgap.generation.same_prompts import STORED, SamePrompts
from posgap.generation.served import EndpointIdentity, ServedModel
from posgap.generation.whole_prompts import TruncationProbe
from posgap.generation.wire import EndpointAnswer, Fault, read_answer, read_fault
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.prompts import Prompt

log = logging.getLogger(__name__)
RETRIES_VARIABLE = "POSGAP_RETRIES"  # of a request, before its prompt counts as failed
RETRIES, MAX_RETRIES = 8, 1000
FIRST_WAIT = RetryPolicy.first_wait  # seconds between tries
MAX_WAIT = 120.0  # seconds between tries
WRONG_KEY_STATUSES = {401, 403}
WRONG_ADDRESS_STATUSES = {*range(300, 400), 404, 405}  # 404 may mean the model's name as well
FATAL_STATUSES = WRONG_KEY_STATUSES | WRONG_ADDRESS_STATUSES | {402}  # no other prompt would change them
BUSY_STATUSES = {429, 503, 529}  # the endpoint has no time, whatever the prompt
SECONDS_AWAY = 0.005  # that answers may be looked at before sockets are
_WORKS_AGAIN = f"when the endpoint works again, {RESUMES}"
Question = tuple[int, int, Prompt]


class OpenAIGenerator:
    """Sends prompts to an endpoint with the concurrency at which it is quickest, as a chat or for plain completion.

    What may go right the next time is tried again up to 8 times, or POSGAP_RETRIES, after exponential waits with jitter
    or the time that Retry-After asks for: timeouts, lost connections, statuses 408, 409, 425, 429 and 5xx, and bodies
    that are not a completion. A prompt for which that is in vain, or that the endpoint does not take, is `failed`; one
    that a content filter holds back is `refused`.

    `PosgapError` ends the sweep if the endpoint cannot be asked (a wrong address, key or model's name), is not there at
    the first request, cannot be reached later or has no time for any prompt, fails for many prompts in a row, asks for
    a longer wait than `MAX_WAIT`, or says that it is no longer what it was. What it says of itself is in `served`,
    which begins with what an interrupted sweep has recorded of it.
    """

    def __init__(
        self,
        model: str,
        parameters: EndpointParameters,
        framing: Framing = PLAIN,
        served: EndpointIdentity | None = None,
    ):
        self.parameters = parameters
        is_chat = parameters.endpoint == "chat"
        path = f"{'chat/' * is_chat}completions"
        self.client = EndpointClient(parameters.base_url, path, parameters.header, parameters.timeout)
        self.url = self.client.url
        self.model = ServedModel(self.client.shown, model, parameters.identity, served)
        self.fields = RequestFields(model, is_chat, framing, parameters.body, self.model)
        tries = int(read_number(RETRIES_VARIABLE, RETRIES, 0, MAX_RETRIES)) + 1
        self.retry_policy = RetryPolicy(tries=tries, first_wait=FIRST_WAIT, longest_wait=MAX_WAIT)
        self.waits = Waits(self.client.shown)
        self.window = Window(parameters.concurrency or MAX_REQUESTS, parameters.timeout / 2, _now)
        self.stopwatch = Stopwatch()
        self.failures = FailureCount()
        self.same = SamePrompts()
        self.probe = TruncationProbe(self.client.shown, self._ask_probe)
        self.resume_at = 0.0  # nothing is sent before this time of the loop's clock
        self._unknown_reasons: set[str] = set()
        self._has_tried_a_word = self._has_timed_out = False
        self._told_differing = 0

    @property
    def served(self) -> EndpointIdentity:
        """What the endpoint said of itself."""
        return self.model.identity

    @served.setter
    def served(self, identity: EndpointIdentity) -> None:
        self.model.identity = identity

    @property
    def pace(self) -> EndpointPace:
        """How fast the endpoint has answered so far."""
        window = self.window
        same = self.same
        more = {"refusals": window.refusals, "repeated": same.repeated, "differing": same.differing}
        return self.stopwatch.pace().model_copy(update={"at_once": window.room, **more})

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        questions = ((index, at, prompt) for index, group in enumerate(groups) for at, prompt in enumerate(group))
        answers: deque[tuple[int, int, Completion]] = deque()
        arrived = asyncio.Event()
        self.window.reopen()
        self.probe.reopen()
        with self.stopwatch, asyncio.Runner(loop_factory=PausingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, PausingLoop)
            asking = loop.create_task(self._ask_all(questions, sampling, answers, arrived))
            try:
                while not asking.done() or answers:
                    if not answers:
                        runner.run(_wait_for(arrived))
                    looked_at = time.monotonic()
                    while answers:
                        yield answers.popleft()
                        if time.monotonic() - looked_at > SECONDS_AWAY:
                            loop.turn()
                            looked_at = time.monotonic()
                asking.result()
            finally:
                asking.cancel()
                # After a signal the loop may still stop for what was awaited then; the runner ends the rest.
                with suppress(RuntimeError):
                    runner.run(_end(asking))
        self._tell_pace()

    async def _ask_all(
        self, questions: Iterator[Question], sampling: Sampling, answers: deque, arrived: asyncio.Event
    ) -> None:
        """Answers all questions, each in a task of its own, as many at a time as the window has room for."""

        async def answer(index: int, at: int, prompt: Prompt) -> None:
            try:
                await self.probe.require_whole(prompt.text, sampling.limit)
                answers.append((index, at, await self._answer_prompt(prompt, sampling)))
                arrived.set()
            finally:
                self.window.leave()

        try:
            async with self.client.session(), asyncio.TaskGroup() as tasks:
                while True:
                    await self.window.admit()
                    question = next(questions, None)
                    if question is None:
                        break
                    tasks.create_task(answer(*question))
        except BaseExceptionGroup as raised:
            raise raised.exceptions[0] from None
        finally:
            arrived.set()

    async def _answer_prompt(self, prompt: Prompt, sampling: Sampling, is_probe: bool = False) -> Completion:
        failures = self.failures
        clock = asyncio.get_running_loop().time
        tries = 0
        began = clock()
        stop = sampling.stop
        while True:
            answered = failures.answered
            try:
                completion = await self._retry(prompt, sampling, is_probe)
            except BusyError as complaint:
                tries += int(self.retry_policy.tries)
                silent = clock() - max(began, failures.answered_at)
                if failures.answered > answered or silent < self.retry_policy.patience:
                    continue  # It has time for others, and so will have some for this one; or asks for short waits.
                raise self._error(f"gave up after {tries} tries: {complaint}", _WORKS_AGAIN) from None
            except TransientError as complaint:
                remedy = ", perhaps with a longer --timeout" if isinstance(complaint, TimedOut) else ""
                return self._count_failure(f"{complaint} ({tries + self.retry_policy.tries} tries)", remedy)
            if completion.outcome == "failed":
                return self._count_failure(completion.reason)
            told = completion.usage.prompt if completion.usage else None
            why_cut = self.probe.why_cut(prompt.text, told)
            if why_cut and not is_probe:
                return self._count_failure(why_cut)
            failures.note_answer(clock())
            if completion.outcome == "empty" and sampling.stop:
                sampling = replace(sampling, stop=())  # Endpoints stop at a stop string before any text too.
                continue
            text = before_stop(completion.text, stop)
            return completion._replace(text=text, cut=completion.cut and text == completion.text)

    async def _ask_probe(self, text: str, limit: int) -> Completion:
        """Answers a prompt of the probe for cut prompts."""
        return await self._answer_prompt(Prompt(text), Sampling(limit, opened=None), is_probe=True)

    def _count_failure(self, reason: str, remedy: str = "") -> Completion:
        if self.failures.note_failure():
            raise self._error(
                f"no answer to {self.failures.consecutive} prompts in a row; the last error: {reason}",
                _WORKS_AGAIN + remedy,
            )
        return Completion("", [], "failed", reason=reason)

    def _error(self, why: str, then: str = RESUMES) -> PosgapError:
        kept = f"; what was answered is kept: {then}" if self.failures.answered or then != RESUMES else ""
        return PosgapError(f"{self.client.shown}: {why}{kept}")

    async def _retry(self, prompt: Prompt, sampling: Sampling, is_probe: bool) -> Completion:
        """Tries until a try raises no `TransientError`, or the policy allows no more; then that is raised.

        Not by tenacity, as elsewhere: its 80 microseconds a call would be a tenth of what a request costs here.
        """
        policy = self.retry_policy
        tries = 0
        while True:
            try:
                return await self._try(prompt, sampling, is_probe)
            except TransientError as fault:
                tries += 1
                if tries >= policy.tries:
                    raise
                seconds = policy.seconds_to_wait(min(tries, fault.most_failures), fault.wait)
                self.waits.count(str(fault), seconds, fault.wait)
            await asyncio.sleep(seconds)

    async def _try(self, prompt: Prompt, sampling: Sampling, is_probe: bool) -> Completion:
        """One try, with as many requests as there are parameters that the endpoint does not take."""
        clock = asyncio.get_running_loop().time
        while True:
            await self.window.acquire()
            try:
                while (pause := self.resume_at - clock()) > 0:
                    await asyncio.sleep(pause)
                request = self.fields.fields(prompt, sampling)
                started = clock()
                try:
                    response = await self.client.post(request)
                    answer = self._read(response, sampling.opened, prompt.text)
                except TransientError as fault:
                    self._note_fault(fault, started)
                    raise
            finally:
                self.window.release()
            if isinstance(answer, EndpointAnswer):
                completion = self._take(answer, clock() - response.sent, prompt, sampling, is_probe)
            elif self.fields.learn_from(answer, self.client.hide(str(answer)), request):
                continue
            else:  # others wait until it is known that not all of them will be refused
                completion = await self._completion_of(answer)
            if not is_probe:
                self.window.note_answer(response.sent)
            return completion

    def _note_fault(self, fault: TransientError, started: float) -> None:
        """Lowers the number of requests at a time if the endpoint had no time for this one."""
        if not isinstance(fault, BusyError | TimedOut):
            self.window.note_fault()
            return
        self.window.note_refusal(started)
        fault.most_failures = self.window.halvings
        if isinstance(fault, TimedOut) and not self._has_timed_out:
            self._has_timed_out = True
            log.warning(
                "%s: no answer within %g s: sending fewer requests in parallel from now on; if one answer takes "
                "longer, raise --timeout",
                self.client.shown, self.client.timeout,
            )  # fmt: skip

    def _take(
        self, answer: EndpointAnswer, seconds: float, prompt: Prompt, sampling: Sampling, is_probe: bool
    ) -> Completion:
        """The completion of an answer, after a look at what it says of the endpoint."""
        self.model.note(answer.model, answer.fingerprint)
        if answer.unknown_reason and answer.unknown_reason not in self._unknown_reasons:
            self._unknown_reasons.add(answer.unknown_reason)
            log.warning(
                "%s: unknown finish_reason %s; these answers are scored as usual",
                self.client.shown, answer.unknown_reason,
            )  # fmt: skip
        if not is_probe:
            self.stopwatch.waits.append(seconds)
            if self.same.note(prompt, answer, not sampling.temperature):
                log.warning("%s: %s", self.client.shown, STORED)
        usage = answer.completion.usage or Usage()
        return answer.completion._replace(usage=usage._replace(seconds=seconds))

    def _read(self, response: Response, opened: str | None, asked: str) -> EndpointAnswer | Fault:
        """What came back; raises `TransientError` if that may be another thing the next time."""
        hide = self.client.hide
        body = response.body
        self.window.note_limits(response.headers)
        if response.is_success:
            try:
                answer = read_answer(body, opened, asked)
            except ValueError as error:
                beginning = body[:100].decode("utf-8", "replace")
                raise TransientError(hide(f"the answer is not a completion: {error}: {beginning!r}")) from None
        else:
            answer = read_fault(response.status, body)
        if isinstance(answer, EndpointAnswer) or answer.is_of_a_filter:
            return answer
        status = answer.status
        if status < 300 or status in (408, 409, 425, 429) or status >= 500:
            if answer.is_of_a_spent_account:
                raise self._error(hide(str(answer)), f"when the account is filled, {RESUMES}")
            wait = self._wait_seconds(response, answer)
            raise (BusyError if status in BUSY_STATUSES else TransientError)(hide(str(answer)), wait)
        return answer

    def _wait_seconds(self, response: Response, fault: Fault) -> float:
        """The seconds that Retry-After asks for, in which no other request is sent either."""
        wait = response.retry_after
        if wait > MAX_WAIT:
            until = ""
            if wait < timedelta(days=36500).total_seconds():
                until = f", until {(datetime.now(UTC) + timedelta(seconds=wait)).isoformat(' ', 'seconds')}"
            raise self._error(
                f"{self.client.hide(str(fault))}: it asks to wait {wait:g} s{until}, but a sweep waits at most "
                f"{MAX_WAIT:g} s",
                f"after that {RESUMES}",
            )
        self.resume_at = max(self.resume_at, asyncio.get_running_loop().time() + wait)
        return wait

    async def _completion_of(self, fault: Fault) -> Completion:
        """Turns a fault into a refused or failed completion. Raises `PosgapError` if it would hit every prompt."""
        words = self.client.hide(str(fault))
        if fault.is_of_a_filter:
            return Completion("", [], "refused", reason=words)
        if fault.status in FATAL_STATUSES:
            hint = f"; {about_key(self.client.headers)}" if fault.status in WRONG_KEY_STATUSES else ""
            if fault.status in WRONG_ADDRESS_STATUSES:
                hint = "; check the address (http or https, with or without /v1) and the model's name"
            raise self._error(words + hint)
        if not self.failures.answered and not self._has_tried_a_word:
            self._has_tried_a_word = True
            response = await self.client.post(self.fields.fields(Prompt("Hello"), Sampling(16)))
            again = self._read(response, None, "Hello")
            if isinstance(again, Fault) and again.status == fault.status and not again.is_of_a_filter:
                raise self._error(f"{words}, even for one word: check the model's name and the key")
        return Completion("", [], "failed", reason=words)

    def _tell_pace(self) -> None:
        pace = self.pace
        if pace.answers >= MIN_SHOWN:
            log.info("%s: %s", self.client.shown, pace.text())
        if pace.differing > self._told_differing:
            self._told_differing = pace.differing
            log.warning(
                "%s: of %d prompts that were sent twice at temperature 0, %d got different answers: this is the "
                "server's own noise",
                self.client.shown, pace.repeated, pace.differing,
            )  # fmt: skip

    def require_same(self) -> None:
        """Asks a question of a word, at most twice. Raises `EndpointChanged` if the endpoint is not what `served`
        says, and another `PosgapError` if it gives no answer."""
        self.retry_policy = replace(self.retry_policy, tries=min(2, self.retry_policy.tries))
        for _, _, completion in self.generate([[Prompt("Hello")]], Sampling(16)):
            if completion.outcome == "failed":
                raise PosgapError(f"{self.client.shown}: {completion.reason}")


def _now() -> float:
    """The time of the loop that asks."""
    return asyncio.get_running_loop().time()


async def _wait_for(arrived: asyncio.Event) -> None:
    await arrived.wait()
    arrived.clear()


async def _end(task: asyncio.Task[None]) -> None:
    """Waits for the end of a task that is cancelled or done."""
    await asyncio.wait([task])
