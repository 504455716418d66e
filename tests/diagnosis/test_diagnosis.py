"""Diagnosis: token shifts and recovery, attention shares, and the stage that writes them."""

import json
import logging
import shutil
from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
import torch
from examples import kv_example, qa_example
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM as Models
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from posgap.data.synthetic import two_hop_examples
from posgap.diagnosis import attention_reading
from posgap.diagnosis.attention import attention_shares
from posgap.diagnosis.attention_reading import attention_rows
from posgap.diagnosis.token_shifts import Readings, generate_corrected, token_shifts
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.generation.generator import Completion, Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.config import DiagnoseConfig, SweepConfig
from posgap.measurement.diagnoses import TokenShift, read_diagnosis, summarize_shifts
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer
from posgap.stages.diagnose import diagnose
from posgap.stages.sweep import sweep
from posgap.storage.inputs import read_manifest
from posgap.tasks.gold_spans import gold_spans, gold_tokens
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, PromptBuilder
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder


def random_readings(n: int, vocabulary: int) -> list[Readings]:
    rng = np.random.default_rng(0)

    def tokens(low: int, high: int) -> list[int]:
        return rng.integers(4, vocabulary, rng.integers(low, high)).tolist()

    return [Readings(tokens(3, 12), tokens(3, 12), tokens(1, 6)) for _ in range(n)]


@torch.no_grad()
@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_shifts_are_those_of_one_reading_at_a_time(model, batch_tokens):
    readings = random_readings(9, 41)
    for reading, shift in zip(readings, token_shifts(model, readings, 0, batch_tokens)):
        kl, greedy = [], []
        for t in range(len(reading.response)):
            so_far = reading.response[:t]
            a, b = (
                torch.log_softmax(model(torch.tensor([prompt + so_far])).logits[0, -1], -1)
                for prompt in (reading.advantageous, reading.trivial)
            )
            kl.append(float((a.exp() * (a - b)).sum()))
            greedy.append(int(b.argmax()))
        # Divergences are taken in float32.
        assert shift.kl == pytest.approx(kl, abs=2e-6) and shift.greedy == greedy
        turnings = [t for t, (own, said) in enumerate(zip(greedy, reading.response)) if own != said]
        assert shift.turning == (turnings[0] if turnings else None)


def test_equal_readings_do_not_differ(model, tokenizer):
    (said,) = complete(TransformersGenerator(model, tokenizer, 512), [Prompt("", [5, 6, 7])], Sampling(4))
    (shift,) = token_shifts(model, [Readings([5, 6, 7], [5, 6, 7], said.token_ids)], 0, 512)
    assert shift.turning is None and max(shift.kl) < 1e-6


class Scripted(torch.nn.Module):
    """A model whose next token depends on the prompt's first token and on the last token alone.

    `logits [V, V, V]` are those after (first, last).
    """

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.vocabulary = logits.shape[0]
        self.output = torch.nn.Linear(self.vocabulary**2, self.vocabulary, bias=False)
        self.output.weight.data = logits.flatten(0, 1).T.contiguous()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(model_type="scripted"))
        self.device = torch.device("cpu")
        self.base_model = self.states

    def states(self, input_ids, use_cache):
        both = input_ids[:, :1] * self.vocabulary + input_ids
        return SimpleNamespace(last_hidden_state=torch.nn.functional.one_hot(both, self.vocabulary**2).float())

    def get_output_embeddings(self):
        return self.output

    def generate(self, groups, sampling):
        for index, (prompt,) in enumerate(groups):
            first, ids = prompt.token_ids[0], []
            while len(ids) < sampling.max_new_tokens and (not ids or ids[-1] != 5):
                last = [*prompt.token_ids, *ids][-1]
                ids.append(int(self.output.weight[:, first * self.vocabulary + last].argmax()))
            yield index, 0, Completion("", ids)


@pytest.fixture
def scripted() -> Scripted:
    """After 0 it says 2 3 4 5 whatever came first; but where the prompt begins with 1 it says 5 after 3."""
    logits = torch.zeros(6, 6, 6)
    for last, following in {0: 2, 1: 2, 2: 3, 3: 4, 4: 5}.items():
        logits[:, last, following] = 3.0
    logits[1, 3, 4], logits[1, 3, 5] = 0.0, 3.0
    return Scripted(logits)


def test_the_turning_token_and_its_divergence_in_closed_form(scripted):
    (shift,) = token_shifts(scripted, [Readings([0, 0], [1, 0], [2, 3, 4, 5])], 0, 512)
    assert shift.turning == 2 and shift.greedy == [2, 3, 5, 5]
    # Both put e^3 / (e^3 + 5) on their own choice and 1 / (e^3 + 5) on the other's.
    wanted = 3 * (np.exp(3) - 1) / (np.exp(3) + 5)
    assert shift.kl == pytest.approx([0, 0, wanted, 0], abs=1e-6)


def test_the_model_goes_on_rightly_from_the_corrected_token(scripted):
    readings = [Readings([0, 0], [1, 0], [2, 3, 4, 5])]
    assert next(complete(scripted, [Prompt("", [1, 0])], Sampling(8))).token_ids == [2, 3, 5]
    assert generate_corrected(scripted, readings, [2], 8, str) == ["[2, 3, 4, 5]"]
    assert generate_corrected(scripted, readings, [2], 3, str) == ["[2, 3, 4]"]
    # Corrected at its last token, a response is complete and nothing is generated.
    assert generate_corrected(None, readings, [3], 8, str) == ["[2, 3, 4, 5]"]


def shift_of(turning: int, kl: list[float], recovered: bool, settled: bool) -> TokenShift:
    texts = {name: "" for name in ("id", "response", "prediction", "instead", "corrected")}
    return TokenShift(
        **texts, placement=[2], tokens=["t"] * len(kl), kl=kl, turning=turning, recovered=recovered, settled=settled
    )


def test_figures_against_values_worked_by_hand():
    figures = summarize_shifts(
        [
            shift_of(0, [4.0, 1.0, 2.0], recovered=True, settled=True),
            shift_of(1, [0.0, 1.0, 3.0], recovered=True, settled=False),
            shift_of(1, [0.5, 2.0], recovered=False, settled=False),
            shift_of(0, [9.0], recovered=True, settled=True),
        ],
        wrong=7,
    )
    assert (figures.wrong, figures.diagnosed, figures.unsettled) == (7, 4, 2)
    assert (figures.recovery_rate, figures.unsettled_recovery_rate, figures.turning_is_peak) == (75, 50, 75)
    assert (figures.kl_turning, figures.kl_elsewhere) == (3.0, 1.0)  # of 4 1 2 9, and of 1 2 0 3 0.5
    none = summarize_shifts([], wrong=0)
    assert none.recovery_rate is none.kl_turning is none.unsettled_recovery_rate is None


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
ARCHITECTURES = {
    "llama, grouped queries": LlamaConfig(**GROUPED),
    "mistral, sliding window": MistralConfig(**GROUPED, sliding_window=7),
    "qwen3": Qwen3Config(**GROUPED),
    "gemma2, soft caps, alternating windows": Gemma2Config(**GROUPED, sliding_window=6),
    "gpt2, learnt positions": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4),
    "bloom, alibi": BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("at_once", [2 * 2 * 4 * 24, 1 << 26], ids=["two rows at once", "all rows at once"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_of_attention_are_those_of_the_eager_maps(name, at_once, monkeypatch):
    monkeypatch.setattr(attention_reading, "WEIGHTS_AT_ONCE", at_once)
    torch.manual_seed(0)
    model = Models.from_config(ARCHITECTURES[name]).double().eval()
    own, ids = model.config._attn_implementation, torch.randint(3, 64, (24,)).tolist()
    prompt, answer = ids[:19], ids[19:]
    rows = list(attention_rows(model, prompt, answer))
    assert model.config._attn_implementation == own
    model.set_attn_implementation("eager")
    maps = model(torch.tensor([ids]), output_attentions=True).attentions
    for i, row in enumerate(rows, start=18):
        wanted = torch.stack([layer[0, :, i, : i + 1].mean(0) for layer in maps])
        torch.testing.assert_close(row, wanted.float(), atol=1e-6, rtol=0)
        torch.testing.assert_close(row.sum(1), torch.ones(2), atol=1e-5, rtol=0)
    shares = attention_shares(model, prompt, [0, 4, 5], answer)
    assert len(rows) == 6 and shares.gold.shape == shares.sink.shape == (6, 2)
    torch.testing.assert_close(shares.sink, torch.stack([row[:, 0] for row in rows]))
    torch.testing.assert_close(shares.gold, torch.stack([row[:, [0, 4, 5]].sum(1) for row in rows]))
    torch.testing.assert_close(attention_shares(model, prompt, [4]).gold[0], rows[0][:, 4])


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.size = max(self.size, value.numel())
        return result


def test_no_attention_map_is_ever_held():
    model, n = Models.from_config(LlamaConfig(**GROUPED)).eval(), 1500
    with Largest() as seen:
        list(attention_rows(model, torch.randint(3, 64, (n,)).tolist(), [5] * 9))
    assert n * 32 <= seen.size < n * n / 10  # hidden states, and nothing that grows with the square


def test_a_model_without_attention_says_so(model):
    model.base_model.forward = lambda **_: SimpleNamespace(past_key_values=None, attentions=None)
    with pytest.raises(
        PosgapError, match="LlamaForCausalLM: returns no attention to measure; diagnose with `attention` 0"
    ):
        list(attention_rows(model, [1, 2, 3]))


@pytest.mark.parametrize("position", range(1, 5))
@pytest.mark.parametrize("order", [PromptOrder(), PromptOrder("both", 3)])
def test_spans_hold_the_gold_document_and_nothing_else(tokenizer, position, order):
    example, placement = qa_example(), Placement((position,), 4)
    builder = PromptBuilder(TASKS["qa"], tokenizer, 512, 4, order)
    ((start, end),) = gold_spans(builder, example, placement)
    assert builder.text(example, placement)[start:end] == f"{example.gold[0].title}) {example.gold[0].text}"


def test_spans_of_two_hops(tokenizer):
    (example,) = two_hop_examples(1, 6, seed=0)
    builder = PromptBuilder(TASKS["multihop-cot"], tokenizer, 512, 4)
    spans = gold_spans(builder, example, Placement((5, 2), 6))
    text = builder.text(example, Placement((5, 2), 6))
    assert [text[start:end] for start, end in spans] == [f"{d.title}) {d.text}" for d in example.gold]


@pytest.mark.parametrize("template", [None, "{% for m in messages %}0{{ m['content'] }}{% endfor %}1"])
def test_gold_tokens_are_the_record_s(tokenizer, template, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    builder, example = PromptBuilder(TASKS["kv"], tokenizer, 512, 4), kv_example(3)
    for position in range(1, 7):
        placement = Placement((position,), 6)
        ids, gold = builder(example, placement), gold_tokens(builder, example, placement)
        assert gold == list(range(gold[0], gold[-1] + 1))
        assert tokenizer.convert_ids_to_tokens([ids[i] for i in gold]) == [*example.key, f" {example.value}"]


def test_a_template_that_rewrites_the_prompt_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0]['content'] | upper }}")
    builder = PromptBuilder(TASKS["kv"], tokenizer, 512, 4)
    with pytest.raises(PosgapError, match="the chat template rewrites the prompt"):
        gold_tokens(builder, kv_example(), Placement((1,), 4))


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory, model_folder):
    """A folder with two sweeps of an untrained model: `sweep`, whose accepted answers are what it says at position 2
    in `plain`."""
    folder = tmp_path_factory.mktemp("swept")
    shared = {"model": str(model_folder), "n_docs": 4, "max_new_tokens": 3}
    examples = [kv_example(i) for i in range(12)]
    write_examples(folder / "plain.jsonl", examples)
    plain = sweep(SweepConfig(examples=folder / "plain.jsonl", out=folder / "plain", **shared))
    rows = [json.loads(line) for line in (plain / "predictions.jsonl").read_text().splitlines()]
    said = {row["id"]: row["response"] for row in rows if row["placement"] == [2]}
    write_examples(folder / "e.jsonl", [e.model_copy(update={"answers": [said[e.id]]}) for e in examples])
    sweep(SweepConfig(examples=folder / "e.jsonl", out=folder / "sweep", metric="em", **shared))
    return folder


@pytest.fixture
def diagnosed(tmp_path, sweeps, model_folder):
    """The diagnosis of a copy of `sweep`."""
    shutil.copytree(sweeps, tmp_path, dirs_exist_ok=True)
    examples, out = tmp_path / "e.jsonl", tmp_path / "diagnosis"
    return DiagnoseConfig(sweep=tmp_path / "sweep", examples=examples, model=str(model_folder), out=out, attention=3)


def test_the_stage_diagnoses_what_was_swept(diagnosed):
    diagnosis = read_diagnosis(diagnose(diagnosed))
    rows = [json.loads(line) for line in (diagnosed.sweep / "predictions.jsonl").read_text().splitlines()]
    wrong = {(row["id"], *row["placement"]): row["response"] for row in rows if not row["correct"]}
    assert diagnosis.advantageous == [2] and diagnosis.tokens.wrong == len(wrong) == diagnosis.tokens.diagnosed > 0
    for shift in diagnosis.tokens.shifts:
        assert shift.prediction == wrong[shift.id, *shift.placement] != shift.response
        # The wrong answer is the right one as far as the turning token.
        before = "".join(shift.tokens[: shift.turning])
        assert shift.prediction.startswith((before + shift.instead).strip().removesuffix("<eos>"))
        assert shift.corrected.startswith((before + shift.tokens[shift.turning]).strip().removesuffix("<eos>"))
        assert shift.recovered == (shift.corrected == shift.response)
    seen = diagnosis.attention
    shapes = [np.shape(s) for s in (seen.gold, seen.sink, seen.answer_gold, seen.answer_sink)]
    assert shapes == [(4, 2)] * 4 and seen.n_examples == 3
    assert seen.even == pytest.approx([100 * 3 / 22] * 4)
    # By hand, of the first three examples with the gold at position 3.
    tokenizer, model = load_tokenizer(diagnosed.model), load_model(diagnosed.model, "float32")
    builder, placement, wanted = PromptBuilder(TASKS["kv"], tokenizer, 512, 3), Placement((3,), 4), []
    for example in [kv_example(i) for i in range(3)]:
        prompt, gold = builder(example, placement), gold_tokens(builder, example, placement)
        (said,) = complete(TransformersGenerator(model, tokenizer, 512), [Prompt("", prompt)], Sampling(3))
        rows = list(attention_rows(model, prompt, said.token_ids[:-1]))
        shares = [float(row[1, gold].sum()) for row in rows]
        wanted.append([shares[0], np.mean(shares[1:]), np.mean([float(row[1, 0]) for row in rows[1:]])])
    mean = 100 * np.mean(wanted, axis=0)
    assert [seen.gold[2][1], seen.answer_gold[2][1], seen.answer_sink[2][1]] == pytest.approx(mean, rel=1e-4)


@pytest.mark.usefixtures("mlflow_store")
def test_the_run_has_the_page_and_attention_by_layer(diagnosed):
    out = diagnose(diagnosed)
    client, run_id = mlflow.MlflowClient(), read_manifest(out)["mlflow_run_id"]
    logged = {point.step: point.value for point in client.get_metric_history(run_id, "attention_to_gold")}
    gold = np.mean(read_diagnosis(out).attention.gold, axis=0)
    assert logged == {1: pytest.approx(gold[0]), 2: pytest.approx(gold[1])}
    files = {file.path for file in client.list_artifacts(run_id)}
    assert files >= {"diagnosis.json", "diagnosis.html", "diagnosis.png", "manifest.json"}


def test_answers_of_one_token_have_no_attention_of_their_own(diagnosed):
    swept = read_json(diagnosed.sweep / "sweep.json")
    swept["settings"]["max_new_tokens"] = 1
    write_json(diagnosed.sweep / "sweep.json", swept)
    out = diagnose(diagnosed.model_copy(update={"tokens": 0}))
    seen = read_diagnosis(out).attention
    assert seen.answer_gold == seen.answer_sink == [[]] * 4 and len(seen.views) == 1
    assert "From the last prompt token" in (out / "diagnosis.html").read_text()


def test_a_page_says_that_the_last_prompt_token_decides_on_a_preamble(diagnosed):
    def seen(out):
        page = diagnose(diagnosed.model_copy(update={"tokens": 0, "out": diagnosed.out.with_name(out)}))
        told = "its last prompt token decides on these words" in (page / "diagnosis.html").read_text()
        return read_diagnosis(page).attention.preamble, told

    assert seen("at-once") == ("", False)
    rows = [json.loads(line) for line in (diagnosed.sweep / "predictions.jsonl").read_text().splitlines()]
    for row in rows:
        row["response"] = f"The value of it is {row['response']}"
    (diagnosed.sweep / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    preamble, told = seen("later")
    assert "The value of it is" in preamble and told


@pytest.mark.parametrize(
    ("swept", "asked", "loaded"),
    [("bfloat16", "auto", "bfloat16"), ("bfloat16", "float32", "float32"), ("", "auto", "auto")],
)
def test_a_model_is_diagnosed_in_the_precision_of_its_sweep(diagnosed, monkeypatch, swept, asked, loaded):
    """In another one it gives other answers than those that are to be explained."""
    file = diagnosed.sweep / "sweep.json"
    record = json.loads(file.read_text())
    assert record["asked"]["dtype"] == "float32"
    file.write_text(json.dumps(record | {"asked": record["asked"] | {"dtype": swept}}))
    seen = []
    monkeypatch.setattr("posgap.stages.diagnose.load_model", lambda path, dtype: seen.append(dtype) or load_model(path))
    diagnose(diagnosed.model_copy(update={"dtype": asked, "tokens": 0, "attention": 1}))
    assert seen == [loaded]


def test_the_line_counts_wrong_answers_that_only_the_position_can_explain(diagnosed, caplog):
    """A question that is answered wrongly at every position is none of them."""
    caplog.set_level(logging.INFO, logger="posgap")
    tokens = read_diagnosis(diagnose(diagnosed.model_copy(update={"attention": 0}))).tokens
    which = "wrong answers to questions that are answered rightly at placement 2"
    assert f"{tokens.wrong} of {tokens.wrong} {which} diagnosed: {tokens.recovery_rate:.0f} %" in caplog.text
    at = {"sweep": diagnosed.sweep.with_name("plain"), "examples": diagnosed.examples.with_name("plain.jsonl")}
    nowhere_right = diagnosed.model_copy(update=at | {"attention": 0, "out": diagnosed.out.with_name("nothing")})
    assert read_diagnosis(diagnose(nowhere_right)).tokens.wrong == 0
    assert "nothing to diagnose token by token: no wrong answers to questions" in caplog.text


def test_parts_can_be_left_out(diagnosed):
    diagnosis = read_diagnosis(diagnose(diagnosed.model_copy(update={"tokens": 0, "attention": 0})))
    assert diagnosis.tokens is diagnosis.attention is None


def test_a_limit_diagnoses_the_first_examples_of_the_sweep(diagnosed):
    rows = [json.loads(line) for line in (diagnosed.sweep / "predictions.jsonl").read_text().splitlines()]
    wrong = [row["id"] for row in rows if not row["correct"]]
    limit = int(wrong[0].removeprefix("kv-")) + 1  # up to the first with a wrong answer
    diagnosis = read_diagnosis(diagnose(diagnosed.model_copy(update={"limit": limit, "attention": 12})))
    assert diagnosis.attention.n_examples == limit < 12 and set(wrong) != {wrong[0]}
    assert diagnosis.tokens.wrong == wrong.count(wrong[0])
    assert {shift.id for shift in diagnosis.tokens.shifts} == {wrong[0]}


def test_what_an_endpoint_answered_is_refused(diagnosed):
    swept = read_json(diagnosed.sweep / "sweep.json")
    swept["settings"]["backend"] = "openai"
    write_json(diagnosed.sweep / "sweep.json", swept)
    with pytest.raises(PosgapError, match="sweep: swept through an endpoint, which gives no token ids"):
        diagnose(diagnosed)


def test_other_examples_than_the_sweep_s_are_refused(diagnosed):
    write_examples(diagnosed.examples, [kv_example(i) for i in range(12)])
    with pytest.raises(
        PosgapError, match="sweep: was swept with other examples than those given here; give the examples of the sweep"
    ):
        diagnose(diagnosed)
    assert not diagnosed.out.exists()
