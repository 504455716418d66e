"""A model whose first answers end within thoughts is asked otherwise, or not at all."""

import contextlib
import copy
import logging

import pytest
from answerers import OFF, Thinker
from endpoint import served
from examples import kv_example
from llamas import CHAT
from transformers import AutoModelForCausalLM, AutoTokenizer

import posgap
from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Completion
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.thinking import BUDGET, LOOK, FirstThoughts, UnfinishedThoughts, thinking_retries
from posgap.options.mitigate import MitigateConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.examples import KVExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.mitigate import mitigate
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher

N, DOCS = 20, 4


@pytest.fixture
def options(tmp_path) -> dict:
    write_examples(tmp_path / "e.jsonl", [kv_example(number, DOCS) for number in range(N)])
    return {"examples": tmp_path / "e.jsonl", "model": "m", "out": tmp_path / "out", "n_docs": DOCS, "concurrency": 1}


def test_thinking_is_turned_off_where_the_template_can(options, caplog):
    with served(Thinker(lambda body: body.get("chat_template_kwargs") == OFF)) as endpoint:
        with caplog.at_level(logging.INFO):
            place = sweep_model(SweepConfig(base_url=endpoint.url, **options))
        swept = read_sweep(place)
        assert (swept.mean, swept.asked.template_args) == (100, OFF)
        assert 0 <= endpoint.seen.total() - (LOOK + N * DOCS) <= 1  # one is under way as the first way ends
        (said,) = [line for line in caplog.messages if "end within thoughts" in line]
        assert said.startswith(f"{LOOK} of the first {LOOK} answers end within thoughts, at the limit of tokens")
        assert said.endswith('thinking is turned off (--template-args {"enable_thinking": false})')
        assert (
            sweep_model(SweepConfig(base_url=endpoint.url, **options)) == place
            and endpoint.seen.total() <= N * DOCS + LOOK + 2
        )


def test_thoughts_get_a_limit_where_nothing_turns_them_off(options, caplog):
    with served(Thinker(lambda body: body["max_tokens"] > BUDGET)) as endpoint:
        swept = read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options)))
    assert (swept.mean, swept.asked.max_thinking_tokens, swept.asked.template_args) == (100, BUDGET, {})
    assert 0 <= endpoint.seen.total() - (2 * LOOK + N * DOCS) <= 2
    assert f"thoughts get {BUDGET:,} tokens beside those of the answer" in caplog.text


def test_an_endpoint_that_refuses_the_switch_gives_thoughts_a_limit(options):
    refusal = 400, {}, '{"error": {"message": "chat_template_kwargs: unknown field", "param": "chat_template_kwargs"}}'
    thinker = Thinker(lambda body: body["max_tokens"] > BUDGET)
    thinker.misbehave = lambda text, times: refusal if "chat_template_kwargs" in thinker.bodies[-1] else None
    with served(thinker) as endpoint:
        swept = read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options)))
    assert (swept.mean, swept.asked.max_thinking_tokens) == (100, BUDGET)


def test_where_nothing_helps_few_prompts_are_sent_and_nothing_is_said_twice(options, caplog):
    with served(Thinker(lambda body: False)) as endpoint:
        with pytest.raises(PosgapError, match="16 of 16 responses .* 64 prompts "):
            sweep_model(SweepConfig(base_url=endpoint.url, **options))
    assert endpoint.seen.total() <= 2 * LOOK + 16 + 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len({*warnings}) == len(warnings)  # how many prompts there are is said anew of each way, if INFO is shown


def test_an_interrupted_sweep_goes_on_in_the_way_that_it_found(options):
    with served(Thinker(lambda body: body.get("chat_template_kwargs") == OFF)) as endpoint:
        endpoint.misbehave = lambda text, times: (401, {}, "no") if endpoint.seen.total() > 40 else None
        with pytest.raises(PosgapError, match="401"):
            sweep_model(SweepConfig(base_url=endpoint.url, **options))
        endpoint.misbehave = lambda text, times: None
        before = endpoint.seen.total()
        assert read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options))).mean == 100
        assert endpoint.seen.total() - before <= N * DOCS - (40 - LOOK) + 2


@pytest.mark.parametrize("own", [{"max_thinking_tokens": 30}, {"template_args": {"enable_thinking": True}}])
def test_what_somebody_decided_stays(options, own):
    builder = SweepConfig(base_url="http://localhost", **options, **own).builder()
    assert not list(thinking_retries(builder, kv_example(0, DOCS), Placement((1,), DOCS)))


@pytest.mark.parametrize(
    ("template", "context", "words"),
    [
        (CHAT, 4096, ["turned off", "2,048 tokens"]),
        ("{{ messages[0]['content'] }}", 1000, ["tokens"]),
        (CHAT, 300, ["off"]),
    ],
)
def test_a_model_here_is_asked_as_its_template_and_context_allow(tokenizer, options, template, context, words):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    builder = PromptBuilder(TASKS["kv"], tokenizer, context, 20)
    ways = list(thinking_retries(builder, kv_example(0, DOCS), Placement((1,), DOCS)))
    assert len(ways) == len(words) and all(word in way.words for word, way in zip(words, ways, strict=True))
    for way in ways:
        prompt = way.builder.prompt(kv_example(0, DOCS), Placement((1,), DOCS))
        limit = way.builder.max_new_tokens + way.builder.max_thinking_tokens
        assert len(prompt.token_ids) + limit <= context
        asked = {
            "template_args": way.builder.framing.arguments,
            "max_thinking_tokens": way.builder.max_thinking_tokens,
        }
        assert way.changed.items() <= asked.items()


def test_a_model_in_memory_is_loaded_once_and_asked_without_thoughts(model_folder, monkeypatch):
    from posgap.generation.transformers import TransformersGenerator

    def generate(self, groups, sampling):
        for index, group in enumerate(groups):
            for at, prompt in enumerate(group):
                ends = self.tokenizer.decode(prompt.token_ids).endswith("0")
                yield index, at, Completion.from_text("zz" if ends else "", [], not ends, thoughts="" if ends else "hm")

    monkeypatch.setattr(TransformersGenerator, "generate", generate)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking is false %}0{% endif %}"
    rows: list[KVExample] = [kv_example(number, DOCS) for number in range(4)]
    swept = posgap.sweep(model, rows, tokenizer=tokenizer, n_docs=DOCS, max_new_tokens=4, quiet=True)
    assert swept.figures.asked.template_args == OFF and set(swept.frame["response"]) == {"zz"}


@pytest.mark.parametrize("verb", ["teacher", "mitigate"])
def test_a_teacher_and_mitigations_end_where_a_sweep_would_ask_otherwise(verb, options, model_folder, monkeypatch):
    from posgap.generation.transformers import TransformersGenerator

    asked = []

    def generate(self, groups, sampling):
        for index, group in enumerate(groups):
            for at, prompt in enumerate(group):
                asked.append(prompt)
                yield index, at, Completion.from_text("", [], True, thoughts="hm")

    monkeypatch.setattr(TransformersGenerator, "generate", generate)
    alike = {name: value for name, value in options.items() if name != "concurrency"} | {"model": str(model_folder)}

    def run(**more):
        if verb == "teacher":
            return teacher(TeacherConfig(advantageous="1", **alike, **more))
        return mitigate(MitigateConfig(methods="reversed", **alike, **more))

    with pytest.raises(UnfinishedThoughts, match=r"^8 .* 8 .*enable_thinking.*--max-thinking-tokens"):
        run()
    assert len(asked) == LOOK
    with contextlib.suppress(PosgapError):  # a teacher has nothing to distil
        run(max_thinking_tokens=30)
    assert len(asked) > 2 * LOOK


def test_mitigations_of_an_endpoint_that_thinks_end_after_the_first_answers(options):
    with served(Thinker(lambda body: False)) as endpoint:
        with pytest.raises(UnfinishedThoughts, match=f"^{LOOK} .* {LOOK} "):
            mitigate(MitigateConfig(base_url=endpoint.url, methods="reversed", **options))
    assert endpoint.seen.total() <= LOOK + 1


def test_fewer_endless_thoughts_than_half_still_count_as_unanswered(options):
    with served(Thinker(lambda body: len(thinker.bodies) > 2)) as thinker:
        with pytest.raises(PosgapError, match=r"base: 1 of 2 .* thinking \(2 .*--max-unanswered"):
            mitigate(MitigateConfig(base_url=thinker.url, methods="reversed", **options))
    assert thinker.seen.total() <= LOOK + 1


def test_half_of_the_first_answers_must_end_in_thoughts():
    thinking, answer = Completion.from_text("", [], True, thoughts="hm"), Completion.from_text("zz", [], False)
    cut = Completion.from_text("", [], True)
    for first in ([thinking] * 3 + [answer] * 5, [cut] * 8, [answer] * 8 + [thinking] * 50):
        look = FirstThoughts(100)
        for completion in first:
            look(completion)
    look = FirstThoughts(2)
    look(answer)
    with pytest.raises(UnfinishedThoughts, match="^1 .* 2 "):
        look(thinking)
