"""The backend for OpenAI-compatible endpoints: chat completions or plain completions over HTTP."""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice

import httpx2

from posgap.errors import PosgapError
from posgap.generation.generator import Completion, Sampling
from posgap.patience import Passing, Patience, Waits, retrying_async
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.prompts import Prompt

log = logging.getLogger(__name__)
KEY_VARIABLE = "OPENAI_API_KEY"
FIRST_WAIT, LONGEST_WAIT = Patience.first_wait, 60.0  # seconds between tries


class OpenAIGenerator:
    """Sends prompts to an endpoint, `concurrency` at a time, as a chat or for plain completion.

    Timeouts (`timeout` seconds for a whole response), lost connections, statuses 408, 429 and 5xx, and bodies that are
    not a completion are retried up to `retries` times, after exponential waits with jitter, or after the time that
    Retry-After asks for, up to a minute. Raises `PosgapError` after the last retry, and at once for any other refusal.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        concurrency: int,
        timeout: float,
        retries: int,
        chat: bool = True,
        framing: Framing = PLAIN,
    ):
        self.chat, self.model, self.framing = chat, model, framing
        self.url = f"{base_url.rstrip('/')}/{'chat/' * chat}completions"
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self.limit = "max_tokens"
        self.waits = Waits(self.url)
        self.resume_at = 0.0  # nothing is sent before this time of the monotonic clock

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        running: dict[asyncio.Task[Completion], tuple[int, int]] = {}

        def questions() -> Iterator[tuple[int, int, Prompt]]:
            for index, group in enumerate(groups):
                yield from ((index, number, prompt) for number, prompt in enumerate(group))

        with asyncio.Runner() as runner:
            client = httpx2.AsyncClient(headers=headers, timeout=None)
            try:
                waiting = questions()
                loop = runner.get_loop()
                while True:
                    for index, number, prompt in islice(waiting, self.concurrency - len(running)):
                        running[loop.create_task(self._answer(client, prompt, sampling))] = index, number
                    if not running:
                        break
                    done, _ = runner.run(_first(running))
                    for task in done:
                        yield *running.pop(task), task.result()
            finally:
                for task in running:
                    task.cancel()
                runner.run(client.aclose())

    async def _answer(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> Completion:
        patience = Patience(tries=self.retries + 1, first_wait=FIRST_WAIT, longest_wait=LONGEST_WAIT)

        async def ask() -> Completion:
            await asyncio.sleep(self.resume_at - time.monotonic())
            try:
                return await self._ask(client, prompt, sampling)
            except Passing as complaint:
                if complaint.wait:
                    self.resume_at = max(self.resume_at, time.monotonic() + min(complaint.wait, LONGEST_WAIT))
                raise

        try:
            return await retrying_async(patience, self.waits)(ask)
        except Passing as complaint:
            raise PosgapError(
                f"{self.url}: gave up after {self.retries + 1} tries: {complaint}; when the endpoint works again, "
                "run the same command to go on, perhaps with a lower concurrency or a longer timeout"
            ) from None

    async def _ask(self, client: httpx2.AsyncClient, prompt: Prompt, sampling: Sampling) -> Completion:
        body = {
            "model": self.model,
            **({"messages": self.framing.messages(prompt.text)} if self.chat else {"prompt": prompt.text}),
            **({"chat_template_kwargs": self.framing.arguments} if self.framing.arguments else {}),
            self.limit: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
        }
        try:
            async with asyncio.timeout(self.timeout):
                response = await client.post(self.url, json=body)
        except TimeoutError:
            raise Passing(f"no answer within {self.timeout:g} s") from None
        except httpx2.TransportError as error:
            raise Passing(f"{type(error).__name__} {error}".strip()) from None
        except httpx2.InvalidURL as error:
            raise PosgapError(f"base_url: {self.url}: {error}") from None
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise Passing(_complaint(response), _retry_after(response))
        if not response.is_success:
            if self.limit == "max_tokens" and "max_completion_tokens" in response.text:
                # Some models insist on the newer name of the option, which older servers do not know.
                self.limit = "max_completion_tokens"
                raise Passing(_complaint(response))
            hint = f"; set {KEY_VARIABLE}" if response.status_code in (401, 403) else ""
            raise PosgapError(f"{self.url}: {_complaint(response)}{hint}")
        try:
            choice = response.json()["choices"][0]
            text = choice["message"]["content"] if self.chat else choice["text"]
            cut = choice.get("finish_reason") == "length"
        except (ValueError, LookupError, TypeError):
            raise Passing(f"the answer is not a completion: {response.text[:100]!r}") from None
        return Completion.ended(text or "", [], cut)


async def _first(running: Iterable[asyncio.Task]) -> tuple[set, set]:
    return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


def _complaint(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}: {' '.join(response.text.split())[:200]}".rstrip(": ")


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
