"""Reads what OpenAI-compatible endpoints really send back: completions, and faults instead of them.

Nothing here waits or sends. An invalid completion raises `ValueError`, and nothing that a server sends raises anything
else.
"""

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from posgap.foundation.errors import shorten
from posgap.generation.generator import Completion, Usage
from posgap.generation.thoughts import split_thoughts

_FILTER_CODES = re.compile(
    r"content_?(?:filter|policy|management)|responsible_?ai|moderation|data_?inspection_?failed|prohibited_content|"
    r"invalid_prompt|safety$",
    re.IGNORECASE,
)
# What filters say if their code is unclear, in the words of OpenAI, Azure, OpenRouter, DeepSeek, DashScope.
_FILTER_WORDS = re.compile(
    r"content (?:filter|polic|management polic|exists risk)|was flagged|moderation|usage polic|safety system|"
    r"inappropriate content",
    re.IGNORECASE,
)
_REFUSAL_OF_A_PARAMETER = re.compile(
    r"unsupported|not support|unknown|unrecognized|unexpected|extra|invalid|deprecated|not permitted|not allowed|"
    r"only the default|must be|cannot be|can only",
    re.IGNORECASE,
)
# The meaning of an error in a 200, by the words of its code and type, or else by its message. Temporary faults come
# first.
_MEANINGS = [
    (status, re.compile(words, re.IGNORECASE))
    for status, words in (
        (429, r"rate.?limit|too.?many.?requests|throttl|resource.?exhausted"),
        (503, r"overload|unavailable|(?:is|too) busy|server.?busy|at capacity|try again|temporar"),
        (504, r"time.?out|timed.out|deadline"),
        (402, r"insufficient.?(?:quota|balance|credit|fund)|payment.required|arrear"),
        (401, r"unauthori[sz]ed|unauthenticated|key not valid|auth(?:entication)?.?(?:error|fail)|login fail|"
              r"(?:invalid|incorrect|wrong|missing|no).{0,9}(?:key\b|access.?token|credential)"),
        (403, r"permission|forbidden|access.?denied"),
        (404, r"not.?found|(?:model|deployment)\b.{0,80} not exist|(?:unknown|no such|invalid).?model"),
        (400, r"invalid.?(?:request|param|argument|value)|bad.?request|validation|unsupported|too long|"
              r"context.?(?:length|window)"),
    )
]  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and what turns the direction of writing
# Finish reasons, by the words in them: gateways pass on those of every provider.
_FILTERED = re.compile(
    r"filter|safety|guardrail|block|prohibit|recitation|refus|moderation|sensitive|spii|unsafe|violat|intervened|"
    r"censor|risk|inspection",
    re.IGNORECASE,
)
_LENGTH = re.compile(r"length|max|limit|context|truncat|incomplete", re.IGNORECASE)
_BROKEN = {"error", "abort", "aborted", "cancelled", "canceled", "failed"}
_USUAL = {
    "", "stop", "stop_sequence", "stop_token", "end", "end_turn", "end_of_turn", "end_of_text", "eos", "eos_token",
    "done", "complete", "completed", "finish", "finished", "success", "normal", "tool_calls", "tool_use",
    "function_call",
}  # fmt: skip


class EndpointAnswer(NamedTuple):
    """A completion with the endpoint's name and fingerprint of its model; empty if it gives none."""

    completion: Completion
    model: str
    fingerprint: str
    id: str = ""
    unknown_reason: str = ""  # why it ended, if the reason is unknown


class Fault(NamedTuple):
    """An error that an endpoint sent: its HTTP status, its message, its codes, and the parameters that it names. One in
    the body of a 200 has the status that it means (`is_in_success`), or 200 if it says too little.
    """

    status: int
    words: str
    codes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    is_in_success: bool = False

    def __str__(self) -> str:
        phrase = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else ""
        status = f"{self.status} {phrase}".strip() if self.status else ""
        if self.is_in_success:
            status += " (in the body of a 200)"
        return f"{status}: {_line(self.words)}".strip(": ")

    @property
    def is_of_a_filter(self) -> bool:
        """Whether a content filter refused the prompt."""
        said_so = any(map(_FILTER_CODES.search, self.codes)) or _FILTER_WORDS.search(self.words[:500])
        return self.status in (200, 400, 403, 422, 451) and bool(said_so)

    @property
    def is_of_a_spent_account(self) -> bool:
        """Whether there is no money left, which a 429 can mean too."""
        return self.status == HTTPStatus.PAYMENT_REQUIRED or "insufficient_quota" in self.codes

    def refuses(self, parameter: str) -> bool:
        """Returns whether the endpoint refuses this parameter of the request, or its value."""
        if self.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            return False
        if self.parameters:
            return parameter in self.parameters
        words = self.words[:300]  # text further back may be the prompt
        return bool(re.search(rf"\b{parameter}\b", words) and _REFUSAL_OF_A_PARAMETER.search(words))


def read_answer(body: bytes, opened: str | None = None, asked: str = "") -> EndpointAnswer | Fault:
    """The first completion in a body, whichever form its text has there, or the error that stands in its place.

    A text can be null, or a list of parts; lone surrogates, which are halves of characters, become U+FFFD. Thoughts are
    in their own fields, among the parts, or between tags (for `opened` and `asked` see `split_thoughts`).
    """
    document = _document(body)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for each in (document, choice):
        if isinstance(each, dict) and (each.get("error") or each.get("object") == "error"):
            return _as_meant(read_fault(HTTPStatus.OK, body, each))
    if not isinstance(choice, dict):
        within = document.get("base_resp")  # of MiniMax; other gateways have a code and a message beside no choices
        fault = _as_meant(read_fault(HTTPStatus.OK, b"", within if isinstance(within, dict) else document))
        if fault.is_in_success or fault.is_of_a_filter:
            return fault
        raise ValueError(f"has no choices{fault.words and f': {_line(fault.words)}'}")
    message = choice.get("message", choice)
    finish = _finish_reason(choice)
    has_message = isinstance(message, dict) and bool(
        {"content", "text", *_THOUGHTS, "refusal", "tool_calls"} & message.keys()
    )
    if not isinstance(message, dict) or not (has_message or (message and finish not in _USUAL)):
        raise ValueError("its first choice has no message")
    text = ""
    thoughts = ""
    refusal = _text_or_empty(message.get("refusal"))
    for kind, part in _content_parts(message.get("content", message.get("text"))):
        if kind == "thinking":
            thoughts += part
        elif kind == "refusal":
            refusal += part
        else:
            text += part
    parted = split_thoughts(text, opened, asked)
    own = filter(None, map(_text_or_empty, map(message.get, _THOUGHTS)))
    thoughts = "\n".join(filter(None, (next(own, thoughts).strip(), parted.thoughts)))
    usage = _usage(document.get("usage"))
    unknown = ""
    if finish in _BROKEN and not text:
        raise ValueError(f"finish_reason {finish}")
    is_usual = finish in _USUAL or finish in _BROKEN
    if refusal or (not is_usual and _FILTERED.search(finish)):
        reason = _line(refusal) or f"finish_reason {finish}"
        completion = Completion("", [], "refused", thoughts, reason, usage=usage)
    else:
        is_cut = not is_usual and bool(_LENGTH.search(finish))
        completion = Completion.from_text(parted.answer, [], is_cut, thoughts, usage)
        unknown = "" if is_usual or is_cut else finish
    model, fingerprint, id_ = (
        _line(_text_or_empty(document.get(name))) for name in ("model", "system_fingerprint", "id")
    )
    return EndpointAnswer(completion, model, fingerprint, id_, unknown)


_THOUGHTS = ("reasoning_content", "reasoning")
_CODES = ("code", "type", "status", "status_code", "statusCode", "error_code")
_MESSAGES = ("message", "msg", "status_msg", "error_msg", "detail")


def _finish_reason(choice: dict[str, Any]) -> str:
    """Why an answer ended: a word, also if it stands in an object, or under another name."""
    reason = choice.get("finish_reason") or choice.get("stop_reason")
    if isinstance(reason, dict):
        named = [reason.get(name) for name in ("type", "reason", "finish_reason", "code", "name")]
        reason = next((each for each in named if isinstance(each, str)), "object")
    return _line(str(reason or "")).lower()


def _as_meant(fault: Fault) -> Fault:
    """An error in the body of a 200 with the status that it would have had: by its number, its codes, or its words."""
    if fault.is_of_a_filter:
        return fault
    statuses = [int(code) for code in fault.codes if re.fullmatch("[45][0-9][0-9]", code)]
    for text in (" ".join(fault.codes), fault.words[:200]):  # text further back may be the prompt
        statuses += [status for status, words in _MEANINGS if words.search(text)]
    return fault._replace(status=statuses[0], is_in_success=True) if statuses else fault


def read_fault(status: int, body: bytes, document: dict[str, Any] | None = None) -> Fault:
    """Returns the error in the body of an answer with this status, or in the part that was read already."""
    try:
        whole = _document(body) if document is None else document
    except ValueError:
        return Fault(status, body[:1000].decode("utf-8", "replace"))
    error = whole.get("error", whole)
    if isinstance(error, str):
        return Fault(status, _mend_surrogates(error))
    error = _object_or_empty(error)
    details = error.get("detail")
    if isinstance(details, list):  # of FastAPI: a list of faults, each with its place
        said = []
        named_parameters = []
        for detail in details:
            if isinstance(detail, dict):
                place = list(map(str, detail["loc"])) if isinstance(detail.get("loc"), list) else []
                said.append(f"{'.'.join(place)}: {detail.get('msg')}")
                named_parameters += place[-1:]
        return Fault(status, _mend_surrogates("; ".join(said)), (), tuple(named_parameters))
    inner = _object_or_empty(error.get("innererror"))
    codes = [*map(error.get, _CODES), inner.get("code")]
    told = next(filter(None, (_text_or_empty(error.get(name)) for name in _MESSAGES)), "")
    words = told or body[:1000].decode("utf-8", "replace")
    named = _text_or_empty(error.get("param"))
    return Fault(status, words, tuple(map(str, filter(None, codes))), (named,) if named else ())


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")
    return document


def _content_parts(content: Any) -> Iterator[tuple[str, str]]:
    """Yields (kind, text) of each part of a content: "thinking", "refusal", or "text"."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict):
            kind = str(part.get("type", "text"))
            if kind in ("thinking", "reasoning"):
                within = part.get("thinking", part.get("reasoning", part.get("text")))
                yield "thinking", "".join(text for _, text in _content_parts(within))
            elif kind == "refusal":
                yield "refusal", _text_or_empty(part.get("refusal"))
            else:
                yield "text", _text_or_empty(part.get("text"))
        else:
            yield "text", _text_or_empty(part)


def _object_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_or_empty(value: Any) -> str:
    return _mend_surrogates(value) if isinstance(value, str) else ""


def _line(text: str) -> str:
    """The text as a short line that does nothing to a terminal."""
    return shorten(" ".join(_CONTROL.sub(" ", text).split()))


def _mend_surrogates(text: str) -> str:
    """The text, with the halves of pairs of surrogates put together, and lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _usage(value: Any) -> Usage | None:
    usage = _object_or_empty(value)
    details = _object_or_empty(usage.get("completion_tokens_details"))
    of_prompt = _object_or_empty(usage.get("prompt_tokens_details"))
    tokens = (
        *(
            usage.get("prompt_tokens", usage.get("input_tokens")),
            usage.get("completion_tokens", usage.get("output_tokens")),
        ),
        *(details.get("reasoning_tokens"), of_prompt.get("cached_tokens")),
    )
    counted = [n if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**53 else None for n in tokens]
    prompt, completion, thinking, cached = counted
    if prompt is not None:
        if not of_prompt:  # Anthropic's count leaves out its cache's reads and writes; LiteLLM's has them
            added = [usage.get(name) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
            prompt += sum(n for n in added if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**53)
        elif (cached or 0) > prompt:
            prompt += cached or 0  # a server that does not count its cached tokens
    return Usage(prompt, completion, thinking) if any(n is not None for n in counted[:3]) else None
