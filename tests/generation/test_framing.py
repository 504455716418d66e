"""What stands around a task's text: system messages, chat templates with arguments and dates, and hostile templates."""

import resource
from datetime import datetime

import pytest
from endpoint import Endpoint, served
from examples import kv_example
from llamas import CHAT, llama, sweep_options
from pydantic import ValidationError
from s3 import put

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import write_json
from posgap.generation.asking import ResponseLimits
from posgap.generation.setup import builder_of
from posgap.measurement.comparability import list_differences
from posgap.measurement.sweeps import PromptSettings, read_sweep
from posgap.models.loading import save_model
from posgap.options.distill import DistillConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks import framing
from posgap.tasks.framing import Framing
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import require_prompts
from posgap.verbs.sweep import sweep_model

# As Llama 3.2's, whose date is today's.
DATED = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string ="
    " strftime_now('%d %b %Y') %}{%- endif %}{%- endif %}Today Date: {{ date_string }}\n{{ messages[-1]['content'] }}"
)
# As Gemma's.
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
)
LEAVES_OUT = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"


def builder(tokenizer, **options) -> PromptBuilder:
    return PromptBuilder(TASKS["kv"], tokenizer, 512, 4, framing=Framing(**options))


@pytest.mark.parametrize("source", [CHAT, NO_SYSTEM, LEAVES_OUT, "{{ messages }}"])
def test_a_template_makes_the_prompt_that_transformers_makes_with_it(tokenizer, source):
    text = "What is <|this|>?\n"
    turn = [{"role": "user", "content": text}]
    theirs = tokenizer.apply_chat_template(turn, chat_template=source, add_generation_prompt=True, tokenize=False)
    build = builder(tokenizer, template=source)
    assert build.chat(text) == theirs
    ids = tokenizer.apply_chat_template(turn, chat_template=source, add_generation_prompt=True, return_dict=False)
    assert build.token_ids(text) == ids


def test_system_message_and_arguments_are_in_prompt_settings_and_digest(tokenizer):
    build = builder(tokenizer, template=CHAT, system="Be brief.", arguments={"enable_thinking": False})
    assert build.chat("Q?") == "<bos><|system|>Be brief.<|end|><|user|>Q?<|end|><|assistant|><think>\n\n</think>\n\n"
    assert build.chat.ending == "<|end|><|assistant|><think>\n\n</think>\n\n"
    assert builder(tokenizer, template="{{ messages[0].content | upper }}<think>").chat.ending == "<think>"
    asked = PromptSettings.from_builder(build)
    assert (asked.system, asked.template_args, asked.date) == ("Be brief.", {"enable_thinking": False}, "")
    options = [{}, {"template": CHAT}, {"template": LEAVES_OUT}, {"template": CHAT, "system": "Be brief."}]
    options += [{"template": CHAT, "arguments": {"enable_thinking": value}} for value in (True, False)]
    assert len({builder(tokenizer, **each).digest() for each in options}) == len(options)


def test_a_model_s_own_template_and_the_same_in_a_file_ask_the_same(tokenizer, monkeypatch):
    given = builder(tokenizer, template=CHAT)
    monkeypatch.setattr(tokenizer, "chat_template", CHAT)
    own = builder(tokenizer)
    assert (own.digest(), PromptSettings.from_builder(own)) == (given.digest(), PromptSettings.from_builder(given))


def test_base_and_candidate_read_the_same_prompt_on_different_days(tokenizer, monkeypatch):
    import transformers.utils.chat_template_utils as theirs

    def on(day: str, **options) -> PromptBuilder:
        monkeypatch.setattr(theirs, "datetime", type("Clock", (), {"now": lambda: datetime.fromisoformat(day)}))
        return builder(tokenizer, template=DATED, **options)

    first, later = on("2026-01-02"), on("2027-03-04")
    assert first.chat("Q?") == later.chat("Q?") == "Today Date: 26 Jul 2024\nQ?"
    assert first.digest() == later.digest() and PromptSettings.from_builder(later).date == "2024-07-26"
    # The template's own argument goes before.
    assert on("2027-03-04", arguments={"date_string": "today"}).chat("Q?") == "Today Date: today\nQ?"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"system": "Be brief."}, "^system: .* --template$"),
        ({"arguments": {"x": 1}}, "^template_args: .* --template$"),
        ({"system": "Be brief.", "template": NO_SYSTEM}, "^system: .*: System role not supported; .* --template$"),
        ({"system": "Be brief.", "template": LEAVES_OUT}, "^system: .* --template$"),
        ({"arguments": {"enable_thinkin": 1}, "template": CHAT}, "^template_args: .* 'enable_thinkin'$"),
        ({"arguments": {"add_generation_prompt": 0}, "template": CHAT}, "^template_args: add_generation_prompt "),
        ({"template": "{{ bos_token }}"}, "^the chat template .* --template$"),
        ({"template": "{% for %}"}, "^the chat template: Expected an expression"),  # Jinja's words
        ({"template": "{{ messages[7].content }}"}, "^the chat template: .* 7$"),
    ],
)
def test_what_a_template_does_not_take_is_refused_in_a_line(tokenizer, options, complaint):
    with pytest.raises(PosgapError, match=complaint) as refused:
        builder(tokenizer, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% import 'os' as os %}{{ os }}",
        "{% include '/etc/passwd' %}",
        "{{ messages[0].content }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        # Its thread is left behind: not for long.
        "{% for i in range(4000) %}{% for j in range(4000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 10 ** 11 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ messages[0].content * 999999999 }}",
    ],
)
def test_a_hostile_template_ends_in_a_line(tokenizer, source, monkeypatch):
    monkeypatch.setattr(framing, "SECONDS", 0.2)
    monkeypatch.setattr(framing, "CHARACTERS", 10_000)
    with pytest.raises(PosgapError, match="^the chat template: .") as refused:
        builder(tokenizer, template=source)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x'.center(10**10) }}",
        "{{ messages[0].content | center(10**10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:>10000000000}'.format(1) }}",
        "{% set n = namespace(x='xy') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
        "{% macro m() %}{% for i in range(99999) %}{{ 'x' * 9999 }}{{ i }}{% endfor %}{% endmacro %}{{ m() }}",
        "{{ 'x'.ljust(9999).replace('x', 'y' * 9999).replace('y', 'z' * 9999).replace('z', 'x' * 9999) }}",
        "{{ [1] | batch(10**11, 0) | list }}",
    ],
)
def test_a_template_that_makes_much_of_little_ends_before_memory_does(tokenizer, source, monkeypatch):
    monkeypatch.setattr(framing, "MEMORY", 256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(PosgapError, match=r"^the chat template: .* (256 MiB|\d+ characters) "):
        builder(tokenizer, template=source)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_template_may_lie_in_s3(bucket):
    put(f"{bucket}/chat.jinja", CHAT.encode())
    paths = {"examples": "e", "model": "m", "out": "o"}
    assert SweepConfig(**paths, template=f"{bucket}/chat.jinja").template == CHAT
    for wrong, complaint in ((f"{bucket}/none", f"{bucket}/none: "), ("s3://", "s3://bucket/key ")):
        with pytest.raises(ValidationError, match=f"\ntemplate\n.* {complaint}"):
            SweepConfig(**paths, template=wrong)


def test_a_config_takes_a_template_as_a_file_or_as_its_text_and_keeps_the_text(tmp_path):
    (tmp_path / "chat.jinja").write_text(CHAT)
    paths = {"examples": "e", "model": "m", "out": "o"}
    config = SweepConfig(**paths, template=str(tmp_path / "chat.jinja"), template_args='{"enable_thinking": false}')
    assert config.template == CHAT and config.template_args == {"enable_thinking": False}
    # Nothing that looks like a secret is hidden in a program that is to run again.
    tokens = SweepConfig(**paths, template="{% set token = 'abcdefgh' %}")
    assert SweepConfig(**paths | tokens.parameter_values()).template == tokens.template
    (tmp_path / "plain").write_text("no template")
    (tmp_path / "bytes").write_bytes(b"\xff{")
    for wrong in (tmp_path / "missing", tmp_path / "plain", tmp_path / "bytes", tmp_path):
        with pytest.raises(ValidationError, match="\ntemplate\n"):
            SweepConfig(**paths, template=str(wrong))


def test_teacher_and_training_ask_as_the_sweep_does(model_folder):
    framed = {"template": CHAT, "system": "Be brief."}
    paths = {"examples": "e", "model": str(model_folder), "out": "o"}
    configs = [SweepConfig(**paths, **framed), TeacherConfig(**paths, **framed)]
    configs.append(DistillConfig(**paths, **framed, responses="r"))
    digests = {builder_of(config.model, config.wording(), ResponseLimits(4)).digest() for config in configs}
    assert len(digests) == 1 and SweepConfig(**paths).builder().digest() not in digests


def test_responses_to_other_prompts_are_not_distilled(tmp_path):
    write_json(tmp_path / "teacher.json", {"prompts": "a"})
    require_prompts(tmp_path, "a")
    require_prompts(tmp_path / "elsewhere", "b")
    with pytest.raises(PosgapError, match=f"^{tmp_path}: .* system, template, template_args "):
        require_prompts(tmp_path, "b")


def test_an_endpoint_gets_the_system_message_and_the_template_s_arguments(tmp_path):
    with served(Endpoint(lambda text: text)) as server:
        options = {"backend": "openai", "base_url": server.url, "system": "Be brief.", "positions": "1"}
        options |= {"template_args": {"enable_thinking": False}, "limit": 1}
        out = sweep_model(SweepConfig(out=tmp_path / "out", **sweep_options(tmp_path, "tiny", **options)))
    (body,) = server.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"] == "Be brief." and body["chat_template_kwargs"] == {"enable_thinking": False}
    swept = read_sweep(out)
    assert (swept.asked.system, swept.asked.template_args) == ("Be brief.", {"enable_thinking": False})
    plain = swept.model_copy(update={"asked": swept.asked.model_copy(update={"system": "", "template_args": {}})})
    assert list_differences(swept, plain) == ["system", "template_args"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"template": CHAT}, "template: .* backend openai "),
        ({"system": "x", "endpoint": "completions"}, "system: .*--endpoint chat"),
    ],
)
def test_what_an_endpoint_does_not_take_is_refused_in_a_line(options, complaint):
    config = SweepConfig(examples="e", model="m", out="o", backend="openai", base_url="http://localhost/v1", **options)
    with pytest.raises(BadOption, match=f"^{complaint}"):
        config.builder()


def test_a_sweep_with_a_framing_is_recorded_as_it_was_asked(tmp_path, tokenizer):
    save_model(llama(), tokenizer, tmp_path / "model")
    changes = {"template": CHAT, "system": "Be brief.", "limit": 2}
    out = sweep_model(SweepConfig(out=tmp_path / "out", **sweep_options(tmp_path, tmp_path / "model", **changes)))
    swept = read_sweep(out)
    again = SweepConfig(**swept.settings | {"model": str(tmp_path / "model"), "examples": "e", "out": "o"})
    build = again.builder()
    assert build.digest() == swept.prompt_digest
    assert "Be brief." in build.chat(build.text(kv_example(0, 8), Placement((1,), 8)))
