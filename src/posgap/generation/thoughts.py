"""Cuts the thoughts off a response: what a reasoning model writes before its answer, between tags."""

import re
from collections.abc import Iterable
from typing import NamedTuple

# Beginning and end of thoughts, as models are trained to write them. Everything between them counts as no answer.
TAGS = {
    "<think>": "</think>",  # DeepSeek-R1, Qwen3, GLM-4.5, Hunyuan, SmolLM3, ...
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # EXAONE Deep
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "[THINK]": "[/THINK]",  # Magistral
    "◁think▷": "◁/think▷",  # Kimi-VL
    "<|begin_of_thought|>": "<|end_of_thought|>",  # Sky-T1, OpenThinker
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A Reasoning
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",  # gpt-oss, with any other channels in between
    "Here is my thought process:": "Here is my response:",  # Granite 3.2
}

_ANY_TAG = re.compile("|".join(re.escape(tag) for pair in TAGS.items() for tag in pair), re.IGNORECASE)
_UNSEEN = " \t\r\n\ufeff\u200b\u2060"  # byte order marks and spaces of no width among them
# The remains of gpt-oss's channels without special tokens: their names, run together with the text.
_SKIPPED_FINAL = "assistantfinal"
_ANALYSIS = re.compile(r"\s*analysis(?:[A-Z]|.*?assistantfinal)", re.DOTALL)
_FINAL = re.compile(rf"\s*{_SKIPPED_FINAL}")


class SplitResponse(NamedTuple):
    """A response in its parts: its thoughts, and its answer as it begins after any white space. `ended` is false if it
    stops within a thought and so has no answer.
    """

    thoughts: str
    answer: str
    ended: bool = True


def opened_by(ending: str) -> str:
    """Returns the tag of `TAGS` that the end of a prompt, after the question, opens and does not close; "" for none."""
    return next((tag for tag, close in TAGS.items() if ending.rfind(tag) > ending.rfind(close)), "")


def split_thoughts(response: str, opened: str | None = "", asked: str = "") -> SplitResponse:
    """The thoughts and the answer of a response.

    Thoughts begin a response: between tags, or up to the closing tag if the prompt opened it (`opened`). A nested
    thought belongs to the outer one. If tags do not match, the thought goes on to the last closing tag, so an answer
    within thoughts is never scored. Tags further on in the answer are its own: a model may copy them from the
    documents.

    `opened` is None if the prompt's end is unknown, as with an endpoint. Then a lone closing tag ends a thought too,
    unless `asked`, the prompt's text, has it and the response may be a copy.
    """
    response = _plain_tags(response)
    if opened is None:
        response = _restore_harmony(response)
        opened = _closed_unopened(response, asked)
    thoughts: list[str] = []
    rest = response.lstrip()
    while tag := opened or _first_tag(TAGS, rest) or _first_tag(TAGS.values(), rest):
        if tag not in TAGS:  # a model ends a thought that it did not begin
            rest = rest.removeprefix(tag).lstrip()
            continue
        opened = ""
        rest = rest.removeprefix(tag)
        end = _end_of_tag(rest, tag)
        if end is None:
            return SplitResponse("\n".join([*thoughts, rest.strip()]).strip(), "", ended=False)
        thoughts.append(rest[:end].strip())
        rest = rest[end + len(TAGS[tag]) :].lstrip()
    return SplitResponse("\n".join(filter(None, thoughts)), rest)


def _plain_tags(response: str) -> str:
    """Removes invisible characters before the response's first tag, and writes this tag as in `TAGS`."""
    begins = response.lstrip(_UNSEEN)
    tag = _ANY_TAG.match(begins)
    if not tag:
        return begins
    name = next(each for each in (*TAGS, *TAGS.values()) if each.lower() == tag[0].lower())
    rest = begins[tag.end() :]
    close = TAGS.get(name)
    if close and tag[0] != name:
        rest = re.sub(re.escape(close), close, rest, flags=re.IGNORECASE)
    return name + rest


def _restore_harmony(response: str) -> str:
    """The channels of gpt-oss between their tags again, if a server has skipped these as special tokens."""
    if not (_ANALYSIS.match(response) or _FINAL.match(response)):
        return response
    thoughts, final, answer = response.partition(_SKIPPED_FINAL)
    thoughts = thoughts.lstrip().removeprefix("analysis")
    tag = "<|channel|>analysis<|message|>"
    return f"{tag}{thoughts}{TAGS[tag]}{answer}" if final else f"{tag}{thoughts}"


def _first_tag(tags: Iterable[str], text: str) -> str:
    return next((tag for tag in tags if text.startswith(tag)), "")


def _end_of_tag(text: str, tag: str) -> int | None:
    """Returns the index at which the closing tag of the thought that `text` begins with starts; None if it does not
    close.
    """
    depth, last = 1, None
    for found in re.finditer(f"{re.escape(tag)}|{re.escape(TAGS[tag])}", text):
        if found[0] == tag:
            depth += 1
            continue
        depth = depth - 1
        last = found.start()
        if not depth:
            break
    return last


def _closed_unopened(response: str, asked: str) -> str:
    """Returns the tag that a response closes before it opens it; None if there is none, or if the prompt has it too."""
    for tag, close in TAGS.items():
        before, closes, _ = response.partition(close)
        if closes and tag not in before and close not in asked:
            return tag
    return ""
