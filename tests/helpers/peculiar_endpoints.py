"""Faulty and peculiar endpoints, as they are met with, and what comes out when they are swept.

python tests/helpers/peculiar_endpoints.py writes the table in peculiar_endpoints.md, which a test compares.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from endpoint import RECORD, Endpoint, retrieve, served
from examples import kv_example

from posgap.foundation.errors import PosgapError
from posgap.generation import openai
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Completion, Sampling
from posgap.generation.openai import OpenAIGenerator
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.registry import TASKS

PAGE = Path(__file__).resolve().with_suffix(".md")
HEAD = ["endpoint", "what came out of 20 prompts", "what was said"]
EXAMPLES, DOCS = 5, 4
Reply = tuple[int, dict, str]
Misbehave = Callable[[str, int], Reply | float | None]


class Peculiar(NamedTuple):
    """An endpoint: what it does in words, how it answers, and how it is asked."""

    words: str
    misbehave: Misbehave
    asked: Mapping[str, Any] = MappingProxyType({})


def said(content: Any = "", finish_reason: str = "stop", document: dict[str, Any] | None = None, **message) -> Reply:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish_reason}
    return 200, {}, json.dumps({"choices": [choice], **(document or {})})


def refused(status: int, message: str, headers: dict[str, str] | None = None, **error: Any) -> Reply:
    return status, headers or {}, json.dumps({"error": {"message": message, **error}})


def of(text: str) -> int:
    """The prompt's number, from which an endpoint decides: that of its example and of its gold document's place."""
    keys = [key for key, _ in RECORD.findall(text.rpartition("Key:")[0])]
    asked = re.search(r'"([\w-]+)"', text.rpartition("Key:")[2])
    assert asked
    return keys.index(asked[1])


def every_value(text: str) -> str:
    return " ".join(value for _, value in RECORD.findall(text))


def in_turn(*replies: Callable[[str], Reply | float | None]) -> Misbehave:
    """Request after request, the replies in turn."""
    number = count()
    return lambda text, times: replies[next(number) % len(replies)](text)


def after(prompts: int, then: Callable[[str], Reply], before: Callable[[str], Reply | None] = lambda text: None):
    number = count()
    return lambda text, times: before(text) if next(number) < prompts else then(text)


def without(*parameters: str) -> Misbehave:
    """An endpoint that does not take these parameters, and says so of the first that is there."""

    def misbehave(text: str, times: int) -> Reply | None:
        body = BODIES[-1]
        name = next((name for name in parameters if name in body), None)
        if name == "max_tokens":
            words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            return refused(400, words, param=name, code="unsupported_parameter")
        return refused(400, f"Unsupported value: '{name}'", param=name) if name else None

    return misbehave


BODIES: list[dict] = []
LOG = logging.getLogger("posgap.generation")
LAST = {"concurrency": 1}
HALF = (200, {}, '{"choices": [')
BROKEN = refused(500, "Internal error")
FILTER = refused(400, "The prompt triggered Azure's content management policy.", code="content_filter")

PECULIAR = [
    Peculiar(
        "thinks in `reasoning_content`, every value among the thoughts, and answers wrongly",
        lambda text, times: said("zz", reasoning_content=every_value(text)),
    ),
    Peculiar(
        "thinks between tags in the answer's text, and answers wrongly",
        lambda text, times: said(f"<think> {every_value(text)} </think> zz"),
    ),
    Peculiar(
        "thinks until the limit of tokens: `content` is null",
        lambda text, times: said(None, "length", reasoning_content=every_value(text)),
    ),
    Peculiar("a content filter refuses every fourth prompt (400)", lambda text, times: None if of(text) else FILTER),
    Peculiar(
        "a content filter holds back every fourth answer",
        lambda text, times: None if of(text) else said(None, "content_filter"),
    ),
    Peculiar("`content` is null, and nothing says why", lambda text, times: said(None)),
    Peculiar(
        "`content` is a list of parts, thoughts among them",
        lambda text, times: said(
            [{"type": "thinking", "thinking": every_value(text)}, {"type": "text", "text": retrieve(text)}]
        ),
    ),
    Peculiar("answers end in half a character", lambda text, times: said(f"{retrieve(text)} \ud83d")),
    Peculiar("takes neither `temperature` nor `seed`", without("temperature", "seed"), LAST),
    Peculiar("takes `max_completion_tokens` only", without("max_tokens"), LAST),
    Peculiar(
        "answers three requests of four with 429",
        in_turn(*[lambda text: refused(429, "busy")] * 3, lambda text: None),
    ),
    Peculiar("hangs at every prompt the first time", lambda text, times: None if times else 0.6, {"timeout": 0.3}),
    Peculiar("sends half of the JSON the first time", lambda text, times: None if times else HALF),
    Peculiar("sends half of the JSON every time", lambda text, times: HALF, LAST),
    Peculiar(
        "an error in a 200 the first time",
        lambda text, times: None if times else refused(200, "Upstream is gone", code=502),
    ),
    Peculiar(
        "serves another model than was asked for",
        lambda text, times: said(retrieve(text), document={"model": "tiny-fallback"}),
    ),
    Peculiar(
        "has another fingerprint from the 11th prompt on",
        after(
            10,
            lambda text: said(retrieve(text), document={"system_fingerprint": "fp_b"}),
            lambda text: said(retrieve(text), document={"system_fingerprint": "fp_a"}),
        ),
        LAST,
    ),
    Peculiar(
        "asks to wait for a day at the 11th prompt",
        after(10, lambda text: refused(429, "Rate limit reached", {"Retry-After": "86400"})),
        LAST,
    ),
    Peculiar("half the prompts fail (500)", lambda text, times: BROKEN if of(text) % 2 else None),
    Peculiar("has no time for anybody (503)", lambda text, times: refused(503, "Overloaded"), LAST),
    Peculiar(
        "the account is spent at the 11th prompt",
        after(10, lambda text: refused(429, "You exceeded your current quota", code="insufficient_quota")),
        LAST,
    ),
    Peculiar("refuses the key", lambda text, times: refused(401, "Incorrect API key provided"), LAST),
]


def row(peculiar: Peculiar) -> list[str]:
    """A row of the table: how an endpoint is swept, what comes out, and what is said."""
    task, examples = TASKS["kv"], [kv_example(i) for i in range(EXAMPLES)]
    builder = TextPromptBuilder(task, task.max_new_tokens)
    placements = [Placement((position,), DOCS) for position in range(1, DOCS + 1)]
    groups = [[Prompt(builder.text(example, placement)) for placement in placements] for example in examples]
    completions: list[tuple[int, Completion]] = []
    lines = _Lines()
    with served(Endpoint(misbehave=peculiar.misbehave)) as endpoint:
        endpoint.bodies = BODIES
        parameters = EndpointParameters(base_url=endpoint.url, **{"concurrency": 4} | {**peculiar.asked})
        generator = OpenAIGenerator("served-model", parameters)
        generator.retry_policy = replace(generator.retry_policy, tries=4)
        LOG.addHandler(lines)
        try:
            sampling = Sampling(100, opened=None)
            completions += ((index, answer) for index, _, answer in generator.generate(groups, sampling))
        except PosgapError as error:
            lines.texts.append(f"error: {error}")
        finally:
            LOG.removeHandler(lines)
    text = " / ".join(lines.texts).replace(generator.url, "URL").replace("|", "\\|")
    until = re.sub(r"until [\d: +-]+", "until ...", text)  # which is a day from now
    return [peculiar.words, _counted(completions, task, examples), until]


def _counted(completions, task, examples) -> str:
    outcomes = Counter(completion.outcome for _, completion in completions)
    right = sum(task.score(answer.text, examples[i].answers) == 1 for i, answer in completions if answer.text)
    reasons = dict.fromkeys(answer.reason for _, answer in completions if answer.reason)
    parts = [f"{number} {name}" for name, number in outcomes.items() if name != "answered"]
    parts.sort()
    if answered := outcomes["answered"]:
        parts.insert(0, f"{answered} answered, {'all' if right == answered else right or 'none'} right")
    return ", ".join(parts or ["nothing"]) + (f" ({'; '.join(reasons)})" if reasons else "")


class _Lines(logging.Handler):
    """Keeps the warnings, of which no number depends on the time."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def table() -> str:
    """All rows; not aligned, since some are long."""
    rows = [HEAD, ["---"] * len(HEAD), *map(row, PECULIAR)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main() -> None:
    openai.FIRST_WAIT = 0.002
    page = PAGE.read_text(encoding="utf-8")
    start, end = "<!-- peculiar -->\n", "<!-- /peculiar -->"
    before, _, rest = page.partition(start)
    PAGE.write_text(before + start + table() + end + rest.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
