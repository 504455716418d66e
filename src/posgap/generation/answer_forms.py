"""Turns an answer into OpenAI's completion, whichever provider, SDK or framework hands it over."""

from collections.abc import Mapping
from typing import Any


def as_completion(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an answer as the body of an OpenAI completion, which `wire.read_answer` reads.

    It may be that already; a message of Anthropic's (`content`, `stop_reason`), of LangChain's (`content`,
    `usage_metadata`, `response_metadata`), or a plain object with `text` and, if known, `finish_reason` and `usage`.
    Raises `ValueError` if there is no text in any of these places.
    """
    if "choices" in answer:
        return dict(answer)
    content = answer.get("text", answer.get("content"))
    if content is None:
        raise ValueError("has neither `text` nor `content`")
    about = _mapping(answer.get("response_metadata"))
    ends = [each.get(name) for each in (answer, about) for name in ("finish_reason", "stop_reason", "done_reason")]
    return {
        "choices": [{"message": {"content": content}, "finish_reason": next(filter(None, ends), "stop")}],
        "usage": _mapping(answer.get("usage") or answer.get("usage_metadata")),
        "model": answer.get("model") or about.get("model_name") or "",
        "id": answer.get("id") or "",
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
