"""A server that cuts prompts gives no figures, whether it says what it read or not; one that reads them does."""

import json
import re

import pytest
from endpoint import Endpoint, served

from posgap.foundation.errors import PosgapError
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling, complete
from posgap.generation.openai import OpenAIGenerator
from posgap.tasks.prompts import Prompt

PROMPT = "\n".join(f'"key-{n}": "{n * 7919 % 10007}", which is number {n} of all.' for n in range(150))


def keep_all(text: str) -> str:
    return text


def keep_the_end(text: str) -> str:
    return text[-5000:]


def drop_the_middle(text: str) -> str:
    return text if len(text) < 6000 else text[: len(text) // 4] + text[-len(text) // 4 :]


def ask(shown, usage: bool, added: int = 300, ids=lambda text: "short", longer: int = 0):
    """The answers of a server that shows its model a part of each prompt, and adds tokens of its own."""

    def reply(text, times):
        seen = shown(text)
        marker = re.search(r'Key: "([\w-]+)"', text)
        code = marker and re.search(rf'"{marker[1]}": "(\w+)"', seen)
        body = {"id": ids(text), "choices": [{"message": {"content": code[1] if code else "none"}}]}
        if usage:
            body["usage"] = {"prompt_tokens": added + len(re.findall(r"\w{1,4}|[^\w\s]", seen))}
        return 200, {}, json.dumps(body)

    with served(Endpoint(misbehave=reply)) as endpoint:
        generator = OpenAIGenerator("m", EndpointParameters(base_url=endpoint.url, retries=0, concurrency=4))
        prompts = [Prompt(f"{PROMPT * (1 + longer * n)}\n{n}") for n in range(3)]
        answers = [completion.text for completion in complete(generator, prompts, Sampling(7))]
        return answers, endpoint.seen.total()


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("shown", [keep_the_end, drop_the_middle])
def test_cut_prompts_give_no_figures(shown, usage):
    with pytest.raises(PosgapError, match="OLLAMA_CONTEXT_LENGTH"):
        ask(shown, usage)


@pytest.mark.parametrize(("usage", "added", "questions"), [(True, 0, 4), (True, 2000, 4), (False, 0, 3)])
def test_whole_prompts_are_asked_after_a_few_questions(usage, added, questions):
    answers, requests = ask(keep_all, usage, added)
    assert answers == ["none"] * 3 and requests == 3 + questions


def keep_nearly_all(text: str) -> str:
    return text[-6600:]


def test_a_prompt_that_is_cut_by_little_is_told_by_its_halves():
    with pytest.raises(PosgapError, match=" 3,055 tokens .* 3,149: "):
        ask(keep_nearly_all, usage=True)


def test_a_model_that_finds_no_marker_at_all_is_only_warned_of(caplog):
    assert ask(lambda text: "", usage=False, longer=1)[0] == ["none"] * 3
    assert caplog.text.count("unknown whether it truncates prompts") == 1


def test_a_stored_answer_is_told_by_its_id(caplog):
    ask(keep_all, usage=True, ids=lambda text: f"chatcmpl-{'a' * 32}")
    assert "repeats a stored answer for another prompt" in caplog.text
    caplog.clear()
    ask(keep_all, usage=True, ids=lambda text: f"chatcmpl-{hash(text):032}")
    ask(keep_all, usage=True)
    assert "stored answer" not in caplog.text
