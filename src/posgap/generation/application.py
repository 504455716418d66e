"""The backend for applications: a Python function of the user's that is called with a prompt, or with a question and
its passages, in threads of its own."""

import asyncio
import importlib
import inspect
import json
import logging
import os
import queue
import secrets
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

import posgap
from posgap.foundation.environment import read_number
from posgap.foundation.errors import BadOption, PosgapError, shorten
from posgap.foundation.fields import FUNCTION
from posgap.foundation.interruption import RESUMES
from posgap.foundation.redaction import redact
from posgap.foundation.retries import within
from posgap.generation.answer_forms import as_completion
from posgap.generation.endings import before_stop
from posgap.generation.endpoint_parameters import CALLS, ApplicationParameters
from posgap.generation.generator import Completion, Sampling, Usage
from posgap.generation.served import EndpointIdentity
from posgap.generation.wire import Fault, read_answer
from posgap.tasks.examples import AnyExample, Document, RankedExample
from posgap.tasks.prompts import Prompt, TextPromptBuilder

log = logging.getLogger(__name__)
RETRIES = 2  # of a call that raised, unless POSGAP_RETRIES sets it: SDKs retry by themselves
MAX_CONSECUTIVE_FAILURES = 25  # prompts that end a sweep
FIRST_WAIT = 0.5  # seconds between tries, doubled each time
LOOKED_AT, MIN_LOOKED_AT = 8, 4  # questions that are repeated, and with another question's passages
MAX_LOOKED_AT = 2 * LOOKED_AT  # if none of the first answers is another then
_CALLED_WITH = ("question", "passages", "messages")
T = TypeVar("T")
Numbered = tuple[int, int, Prompt]  # a group's index, a prompt's index within it, and the prompt


@dataclass(frozen=True)
class Passage:
    """A passage as an application gets it. `title` and `id` are empty if the example has none."""

    text: str
    title: str = ""
    id: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Answer:
    """An application's return value if it has more than the text of its answer.

    `finish_reason` says why the answer ended, in the words of OpenAI or Anthropic: "stop", "length", "content_filter".
    `sent` is the text that went to the model: by it posgap sees which of the passages reached the prompt.
    """

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str = "stop"
    sent: str = ""


def text_of(returned: Any) -> str:
    """Returns the text that an application returned, without thoughts: from a text, an `Answer` or an SDK's response.

    Raises `TypeError` for any other type.
    """
    read = read_answer(json.dumps(as_completion(_as_mapping(returned))).encode())
    return "" if isinstance(read, Fault) else read.completion.text


def name_of(function: Callable) -> str:
    """Returns the address of a function, "python:module:name", as `--model` takes it."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{FUNCTION}{getattr(named, '__module__', None) or 'builtins'}:{named.__qualname__}"


def load_function(address: str) -> Callable:
    """Imports the function at "python:package.module:name", also from the current folder.

    Raises `PosgapError` if it cannot be imported, or is no function.
    """
    module, colon, name = address.removeprefix(FUNCTION).partition(":")
    if not (colon and module and name):
        raise BadOption(f"--model {address}: write python:package.module:function")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # any error of the user's module
        raise BadOption(f"--model {address}: cannot be imported: {_described(error)}") from None
    finally:
        sys.path.remove(here)
        os.chdir(here)  # the rest of the command names its files from here
    if not callable(found):
        raise BadOption(f"--model {address}: is a {type(found).__name__}, not a function")
    return found


class Application:
    """A function with the arguments that its parameters name: `question` and `passages`, `messages`, or the prompt's
    text.

    Raises `PosgapError` if it has other parameters without a default, or a question and no passages.
    """

    def __init__(self, function: Callable, name: str = ""):
        self.function = function
        self.name = name or name_of(function)
        self.wanted: list[str] = []
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a function that is not written in Python
            return
        self.wanted = [each for each in signature.parameters if each in _CALLED_WITH]
        try:
            signature.bind(**dict.fromkeys(self.wanted)) if self.wanted else signature.bind("")
            can_be_called = ("question" in self.wanted) == ("passages" in self.wanted)
        except TypeError:
            can_be_called = False
        if not can_be_called:
            raise BadOption(
                f"{self.name}: has the parameters {signature}: posgap gives `question` and `passages` together, "
                "`messages`, or one text; give all others a default"
            )

    @property
    def is_async(self) -> bool:
        """Whether the function is written as one that is awaited."""
        return any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__)))

    def call(self, prompt: Prompt) -> Any:
        """Calls the function for a prompt; returns its result, which may be awaitable."""
        if not self.wanted:
            return self.function(prompt.text)
        values: dict[str, Any] = {"messages": [{"role": "user", "content": prompt.text}]}
        if prompt.example is not None:
            values |= {"question": prompt.example.question, "passages": passages_of(prompt.example, prompt.documents)}
        return self.function(**{name: values[name] for name in self.wanted})


def passages_of(example: AnyExample, documents: Sequence[Document]) -> list[Passage]:
    """Returns the documents as passages, with the ids that a retrieval log gave them."""
    ranked = example.passages if isinstance(example, RankedExample) else []
    ids = {(each.title, each.text): each.id for each in reversed(ranked)}
    return [Passage(each.text, each.title, ids.get((each.title, each.text), "")) for each in documents]


@dataclass
class ApplicationGenerator:
    """Calls an application for each prompt, `concurrency` at a time.

    A call that raises, or takes longer than `timeout`, is retried twice, or POSGAP_RETRIES times. After that the prompt
    has failed, and the reason begins with the exception's class. If the first prompt fails that way, or 25 in a row do,
    `PosgapError` ends the sweep.

    Before the first answers it probes the application and keeps the findings in `served.notes`: which passages reach
    the model, whether a repeated prompt gets the same answer, and whether answers depend on the passages at all. If
    they do not, it raises `PosgapError`.
    """

    application: Application
    parameters: ApplicationParameters
    builder: TextPromptBuilder
    served: EndpointIdentity = field(default_factory=EndpointIdentity)
    _failures: int = 0  # in a row
    _has_answered: bool = False
    _notes: tuple[str, ...] = ()

    def require_same(self) -> None:
        """Does nothing: an application's `version` says whether it has changed."""

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        numbered = enumerate(groups)
        version = self.parameters.version
        said = {"models": (self.application.name,), "fingerprints": (version,) if version else ()}
        self._notes = self.served.notes or self._notes
        self.served = self.served.model_copy(update={**said, "notes": self._notes})
        looked_at: list[tuple[int, Sequence[Prompt]]] = []
        own: dict[tuple[int, int], Completion] = {}
        if not self._notes:
            looked_at = list(islice(numbered, MAX_LOOKED_AT))
            firsts = [(index, 0, group[0]) for index, group in looked_at if group and group[0].documents]
            own = self._look_at(firsts, sampling)
        yield from ((index, at, completion) for (index, at), completion in own.items())
        prompts = (
            (index, at, prompt)
            for index, group in chain(looked_at, numbered)
            for at, prompt in enumerate(group)
            if (index, at) not in own
        )
        yield from self._ask(prompts, partial(self._complete, sampling=sampling))

    def _look_at(self, firsts: Sequence[Numbered], sampling: Sampling) -> dict[tuple[int, int], Completion]:
        """Answers some of these prompts, each of another example, and notes what they show about the application.

        Raises `PosgapError` if the first one fails, and if answers do not depend on the passages.
        """
        if not firsts:
            return {}
        index, at, prompt = firsts[0]
        began = time.monotonic()
        answer, failed = self._try(prompt)
        if failed:
            raise PosgapError(f"{self.application.name}: fails for the first prompt: {failed}; correct it")
        own = {(index, at): self._read(answer, prompt, sampling, time.monotonic() - began)}
        self._has_answered = True
        if len(firsts) < MIN_LOOKED_AT:
            return own
        same = 0
        unmoved = 0
        complete = partial(self._complete, sampling=sampling)
        for begin in range(0, len(firsts), LOOKED_AT):
            part = firsts[begin : begin + LOOKED_AT]
            own |= {(i, n): completion for i, n, completion in self._ask(iter(part[not begin :]), complete)}
            again = {(i, n): text for i, n, text in self._ask(iter(part), self._said)}
            moved = {(i, n): text for i, n, text in self._ask(self._exchange(part), self._said)}
            same += sum(again[key] == own[key].text for key in again)
            unmoved += sum(moved[key] in (again[key], own[key].text) for key in moved)
            if unmoved < len(own):
                break
        notes = [
            self._look_at_passages(prompt, answer),
            f"asked twice, {same} of {len(own)} answers are the same",
            f"with the passages of another question, {unmoved} of {len(own)} answers are the same",
        ]
        if unmoved == len(own):
            raise PosgapError(
                f"{self.application.name}: {notes[-1]}: it ignores the passages or knows the answers without "
                "them, so their position cannot matter; make it use `passages` in place of its own retrieval"
            )
        self._notes = tuple(notes)
        self.served = self.served.model_copy(update={"notes": self._notes})
        for note in notes:
            log.info("%s: %s", self.application.name, note)
        return own

    def _said(self, prompt: Prompt) -> str:
        """Returns the answer to a prompt that is not part of the sweep."""
        answer, failed = self._try(prompt, tries=1)
        return failed or self._read(answer, prompt, Sampling(0), 0.0).text

    def _look_at_passages(self, prompt: Prompt, answer: Mapping[str, Any]) -> str:
        """Asks the prompt, which was answered so, with a marker at both ends of each passage; returns which of these
        the application sent on. Raises `PosgapError` if it sent none."""
        if not answer.get("sent"):
            return "unknown which passages reach the model: return a posgap.Answer with the text that you `sent`"
        ends = [(secrets.token_hex(4), secrets.token_hex(4)) for _ in prompt.documents]
        documents = [
            each.model_copy(update={"text": f"{first} {each.text} {last}"})
            for each, (first, last) in zip(prompt.documents, ends)
        ]
        marked, failed = self._try(self._with_documents(prompt, documents), tries=1)
        if failed:
            return f"which passages reach the model is not known: with markers in them it fails: {failed}"
        sent = str(marked.get("sent", ""))
        places = {number: sent.find(first) for number, (first, _) in enumerate(ends, start=1)}
        arrived = sorted((number for number in places if places[number] >= 0), key=lambda number: places[number])
        if not arrived:
            raise PosgapError(
                f"{self.application.name}: none of the {len(ends)} passages is in the prompts that it sends, so "
                "their position cannot matter; make it use `passages` in place of its own retrieval"
            )
        cut = [number for number in arrived if ends[number - 1][1] not in sent]
        note = f"{len(arrived)} of {len(ends)} passages reach the model"
        note += f", those at {_listed(sorted(arrived))}" if len(arrived) < len(ends) else ""
        note += "" if arrived == sorted(arrived) else f", in the order {_listed(arrived)}"
        return note + (f"; cut short are those at {_listed(sorted(cut))}" if cut else "")

    def _exchange(self, seen: Sequence[Numbered]) -> Iterator[Numbered]:
        """Yields these prompts, each with the documents of the next one."""
        for (index, at, prompt), (_, _, other) in zip(seen, [*seen[1:], seen[0]]):
            yield index, at, self._with_documents(prompt, other.documents)

    def _with_documents(self, prompt: Prompt, documents: Sequence[Document]) -> Prompt:
        assert prompt.example
        return prompt._replace(text=self.builder.word_prompt(prompt.example, documents), documents=documents)

    def _ask(self, prompts: Iterator[Numbered], answer: Callable[[Prompt], T]) -> Iterator[tuple[int, int, T]]:
        """Yields what `answer` makes of these prompts, `concurrency` at a time, as it comes."""
        answers: queue.Queue[tuple[int, int, T] | BaseException | None] = queue.Queue()
        taking = threading.Lock()
        is_over = threading.Event()

        def work() -> None:
            try:
                while not is_over.is_set():
                    with taking:
                        following = next(prompts, None)
                    if following is None:
                        break
                    index, at, prompt = following
                    answers.put((index, at, answer(prompt)))
            except BaseException as error:  # whatever it is, it belongs to the receiver of the answers
                answers.put(error)
            else:
                answers.put(None)

        try:
            working = self.parameters.concurrency or CALLS
            for _ in range(working):
                # Nothing waits for these at the end of the process: a call may never return.
                threading.Thread(target=work, name="application", daemon=True).start()
            while working:
                came = answers.get()
                if isinstance(came, BaseException):
                    raise came
                if came is None:
                    working -= 1
                else:
                    yield came
        finally:
            is_over.set()

    def _complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        began = time.monotonic()
        answer, failed = self._try(prompt)
        if failed:
            self._failures += 1
            if self._failures >= MAX_CONSECUTIVE_FAILURES or not self._has_answered:
                raise PosgapError(
                    f"{self.application.name}: {self._failures} prompts in a row failed, the last: {failed}; the "
                    f"answers are kept: {RESUMES}"
                )
            return Completion("", [], "failed", reason=failed)
        self._failures, self._has_answered = 0, True
        return self._read(answer, prompt, sampling, time.monotonic() - began)

    def _read(self, answer: Mapping[str, Any], prompt: Prompt, sampling: Sampling, seconds: float) -> Completion:
        """Returns the completion that an answer is."""
        read = read_answer(json.dumps(as_completion(answer)).encode(), None, prompt.text)
        if isinstance(read, Fault):
            return Completion("", [], "failed", reason=str(read))
        completion = read.completion
        text = before_stop(completion.text, sampling.stop)
        usage = (completion.usage or Usage())._replace(seconds=seconds)
        return completion._replace(text=text, cut=completion.cut and text == completion.text, usage=usage)

    def _try(self, prompt: Prompt, tries: int = 0) -> tuple[dict[str, Any], str]:
        """Returns the application's answer and the reason for having none; one of them is empty."""
        tries = tries or 1 + int(read_number("POSGAP_RETRIES", RETRIES, 0, 1000))
        failed = ""
        for number in range(tries):
            if number:
                time.sleep(min(FIRST_WAIT * 2 ** (number - 1), 30.0))
            try:
                return _as_mapping(self._call(prompt)), ""
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # any error of the user's function, SystemExit included
                failed = _described(error)
        return {}, f"{failed} ({tries} tries)" if tries > 1 else failed

    def _call(self, prompt: Prompt) -> Any:
        seconds = self.parameters.timeout
        returned = within(seconds, partial(self.application.call, prompt))
        if not inspect.isawaitable(returned):
            return returned

        async def wait() -> Any:
            try:
                async with asyncio.timeout(seconds) as deadline:
                    return await returned
            except TimeoutError:
                if deadline.expired():
                    raise TimeoutError(f"no answer within {seconds:.3g} s") from None
                raise

        return asyncio.run_coroutine_threadsafe(wait(), _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop of all async calls of this process: an application's client stays with the loop that it was
    first used in, through every sweep of a comparison."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="application loop", daemon=True).start()
    return loop


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _as_mapping(returned: Any) -> dict[str, Any]:
    """Returns what a function returned by its fields. Raises `TypeError` if it is no kind of answer."""
    if isinstance(returned, str):
        return {"text": returned}
    kind = type(returned).__name__
    if isinstance(returned, Answer):
        fields = asdict(returned)
        tokens = {name: fields.pop(name) for name in ("prompt_tokens", "completion_tokens")}
        returned = fields | {"usage": tokens}
    dumped = returned.model_dump(mode="json") if hasattr(returned, "model_dump") else returned
    if not isinstance(dumped, Mapping):
        raise TypeError(f"returned {kind}: return a text, a posgap.Answer or an SDK's response")
    try:
        read_answer(json.dumps(as_completion(dumped)).encode(), None)
    except ValueError as error:
        raise TypeError(f"returned {kind}, which {error}") from None
    return dict(dumped)


def _described(error: BaseException) -> str:
    """Returns the exception's class, its first line, and the place in the user's file that raised it."""
    line = shorten(redact(next(iter(str(error).splitlines()), "")))
    libraries = (os.path.dirname(posgap.__file__), sysconfig.get_path("stdlib"), "<")
    own = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith(libraries) and "site-packages" not in each.filename
    ]
    place = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {line}".rstrip(": ") + place
