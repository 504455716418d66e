"""Where responses end before their end token: at stop strings, which change no score, and at limits on thoughts."""

import pytest
from endpoint import Endpoint, served
from examples import kv_example
from hypothesis import given
from hypothesis import strategies as st
from llamas import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posgap.data.reading import write_examples
from posgap.generation.endings import ResponseStream, before_stop
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling, complete
from posgap.generation.openai import OpenAIGenerator
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.comparability import list_differences
from posgap.measurement.sweeps import read_sweep
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SweepConfig
from posgap.tasks.metrics import METRICS
from posgap.tasks.prompts import Prompt, PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.sweep import sweep_model

PIECES = ["<end>", "<think>", "</think>", "\n", "\n\n", " ", "a", "b\nc", "Question:", "[THINK]", "[/THINK]", "é"]
END = 0
ALPHABET = st.sampled_from(["\n", "\r", " ", "\x0b", "\u2028", "a", "b", ".", "the ", "Röntgen", "-"])


@pytest.fixture(scope="module")
def pieces() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the pieces, and then more letters, up to the tiny model's vocabulary."""
    letters = [chr(ord("f") + i) + "\n" * (i % 3 == 0) for i in range(41 - len(PIECES))]
    core = Tokenizer(models.WordLevel({text: i for i, text in enumerate(PIECES + letters)}, unk_token="a"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    special = {"eos_token": "<end>", "pad_token": "<end>", "extra_special_tokens": ["[THINK]", "[/THINK]"]}
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **special)


def completion(tokenizer, written: list[str], **sampling):
    stream = ResponseStream(tokenizer, {END}, Sampling(**{"max_new_tokens": 8} | sampling))
    stream.take_all(tokenizer.convert_tokens_to_ids(written))
    return stream.completion()


@given(st.lists(ALPHABET).map("".join), st.lists(ALPHABET, min_size=1, max_size=4).map("".join))
def test_what_the_metric_s_stop_strings_cut_off_changes_no_score(response, answer):
    for metric in METRICS:
        stopped = before_stop(response, metric.stop)
        assert metric.name == "regex" or metric.score(stopped, [answer]) == metric.score(response.strip(), [answer])


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([(), ("\n",), ("Question:", "\n\n")]))
def test_a_response_that_is_stopped_is_the_beginning_of_what_would_have_been_written(pieces, written, stop):
    stopped, whole = completion(pieces, written, stop=stop), completion(pieces, written)
    assert stopped.text == before_stop(whole.text, stop)
    assert stopped.thoughts == whole.thoughts and stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    if stopped.text != whole.text:
        assert not stopped.cut and stopped.outcome == "answered"


@pytest.mark.parametrize(
    ("written", "options", "text", "thoughts", "outcome", "tokens"),
    [
        (["\n", "a", "\n", "b\nc"], {"stop": ("\n",)}, "a", "", "answered", 3),
        (["Question:", "a", "Question:"], {"stop": ("Question:",)}, "Question:a", "", "answered", 3),
        (["<think>", "a", "\n", "</think>", "\n", "b\nc"], {"stop": ("\n",)}, "b", "a", "answered", 6),
        (["a", "</think>", "\n", "é", "\n", "a"], {"stop": ("\n",), "opened": "<think>"}, "é", "a", "answered", 5),
        (["[THINK]", "a", "[/THINK]", "é", "<end>"], {}, "é", "a", "answered", 5),
        (["<think>", "a", "a", "a", "</think>", "é"], {"max_thinking_tokens": 3}, "", "aa", "truncated", 3),
        (["a", "a", "a", "</think>", "é"], {"max_thinking_tokens": 2, "opened": "<think>"}, "", "aa", "truncated", 2),
        (
            ["<think>", "a", "</think>", "a", "a", "a"],
            {"max_thinking_tokens": 3, "max_new_tokens": 2},
            "aa",
            "a",
            "answered",
            5,
        ),
        (["a"] * 6, {"max_thinking_tokens": 9, "max_new_tokens": 2}, "aa", "", "answered", 2),
        (["<think>", "a", "<end>"], {}, "", "a", "empty", 3),
        (["<think>", "a"], {}, "", "a", "truncated", 2),
        (["<think>", "</think>", "<end>"], {}, "", "", "empty", 3),
        (["a", "<think>", "a", "</think>"], {}, "a<think>a</think>", "", "answered", 4),
    ],
)
def test_thoughts_and_answer_have_limits_of_their_own(pieces, written, options, text, thoughts, outcome, tokens):
    answer = completion(pieces, written, **options)
    assert (answer.text, answer.thoughts, answer.outcome, len(answer.token_ids)) == (text, thoughts, outcome, tokens)


@pytest.mark.parametrize(
    ("written", "options", "thinking"),
    [
        (["[THINK]", "a", "[/THINK]", "é", "<end>"], {}, 3),
        (["a", "a", "</think>", "\n", "é", "é", "a"], {"opened": "<think>"}, 4),
        (["<think>", "a", "a"], {"max_thinking_tokens": 3}, 3),
        (["<think>", "a", "</think>", "<end>"], {}, 3),
        (["<think>", "a", "</think>", "<think>", "b\nc", "</think>", "a", "a"], {}, 6),
        (["a", "<think>", "a", "</think>"], {}, 0),
    ],
)
def test_the_tokens_of_thoughts_are_counted(pieces, written, options, thinking):
    assert completion(pieces, written, **options).usage[:3] == (None, len(written), thinking)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("stop", [("\n",), ("Question:", "\n\n")])
def test_a_model_that_is_stopped_answers_as_it_would_have(pieces, stop, reuse):
    generator = TransformersGenerator(llama(eos_token_id=END, pad_token_id=END), pieces, 200, reuse)
    prompts = [Prompt("", [5, 7 + i % 30, 9 + i % 11, 30 - i % 5] * (1 + i % 3)) for i in range(24)]
    whole = list(complete(generator, prompts, Sampling(24)))
    stopped = list(complete(generator, prompts, Sampling(24, stop=stop)))
    assert [answer.text for answer in stopped] == [before_stop(answer.text, stop) for answer in whole]
    shorter = [len(a.token_ids) < len(b.token_ids) for a, b in zip(stopped, whole)]
    assert sum(shorter) > 6
    assert not any(answer.cut for answer, ended in zip(stopped, shorter) if ended)


def test_only_a_base_model_stops_where_its_benchmark_scores_no_further(model_folder, tokenizer):
    paths = {"examples": "e", "model": str(model_folder), "out": "o", "task": "qa"}
    template = "{% for m in messages %}{{ m.content }}<think>{% endfor %}"
    assert SweepConfig(**paths).builder().stop == ("\n",)
    assert SweepConfig(**paths, metric="sub_em").builder().stop == ()
    assert SweepConfig(**paths | {"task": "multihop-cot"}, metric="litm").builder().stop == ()
    chat = SweepConfig(**paths, template=template, max_thinking_tokens=64).builder()
    assert (chat.stop, chat.max_new_tokens, Sampling.for_builder(chat).limit, Sampling.for_builder(chat).opened) == (
        (),
        100,
        164,
        "<think>",
    )
    assert SweepConfig(**paths, template=template, stop="Question:").builder().stop == ("Question:",)
    assert SweepConfig(**paths, stop='["\\n\\n", "Q:"]').builder().stop == ("\n\n", "Q:")
    assert Sampling.for_builder(PromptBuilder(TASKS["qa"], tokenizer, 512, 1)).opened == ""
    assert Sampling.for_builder(TextPromptBuilder(TASKS["qa"], 1, template="endpoint's own")).opened is None
    assert Sampling.for_builder(TextPromptBuilder(TASKS["qa"], 1)).opened == ""


def test_a_base_model_ends_a_key_s_value_with_its_line_unless_told_otherwise(model_folder):
    """A base model would write further records until the limit. The public script scores these too: `none` does."""
    paths = {"examples": "e", "model": str(model_folder), "out": "o"}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert SweepConfig(**paths).builder().stop == ("\n",)
    assert SweepConfig(**paths, metric="litm").builder().stop == ("\n",)
    assert SweepConfig(**paths, template=template).builder().stop == ()
    assert SweepConfig(**paths, stop="none").builder().stop == ()
    assert SweepConfig(**paths, stop="none", metric="litm").builder().stop == ()
    assert SweepConfig(**paths, stop=["x"]).builder().stop == ("x",)
    assert ScaleSearchConfig(**paths).builder().stop == ("\n",)
    endpoint = paths | {"backend": "openai", "base_url": "http://localhost"}
    for kind, stop in (("completions", ("\n",)), ("chat", ())):
        assert SweepConfig(**endpoint, endpoint=kind).builder().stop == stop


def test_where_responses_ended_is_recorded_and_compared(tmp_path, model_folder):
    write_examples(tmp_path / "kv.jsonl", [kv_example(i) for i in range(2)])
    asked = {"examples": tmp_path / "kv.jsonl", "model": str(model_folder), "n_docs": 6, "positions": ["1", "6"]}
    usual, never = (
        read_sweep(
            sweep_model(SweepConfig(**asked, stop=stop, max_unanswered=100, out=tmp_path / f"swept-{stop or 0}"))
        )
        for stop in ("", "none")
    )
    assert (usual.asked.stop, never.asked.stop) == (["\n"], [])
    assert list_differences(usual, never) == ["stop"]


def test_an_endpoint_that_stops_before_any_text_is_asked_again_without(tmp_path):
    def says(text: str) -> str:
        return "\n\nthe answer\nand more" if text.endswith(("1", "2")) else "at once\nand more"

    class Stopping(Endpoint):
        """As a real one: it ends before the first stop string, wherever that stands."""

        def reply(self, body, headers):
            self.stop = body.get("stop")
            return super().reply(body, headers)

    server = Stopping()
    server.answer = lambda text: says(text).split("\n")[0] if server.stop else says(text)
    with served(server):
        parameters = EndpointParameters(base_url=server.url, endpoint="completions", concurrency=1)
        generator = OpenAIGenerator("m", parameters)
        prompts = [Prompt(f"prompt {i}") for i in range(4)]
        answers = list(complete(generator, prompts, Sampling(9, stop=("\n",))))
    assert [answer.text for answer in answers] == ["at once", "the answer", "the answer", "at once"]
    assert sorted("stop" in body for body in server.bodies) == [False] * 2 + [True] * 4
