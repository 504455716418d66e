"""What posgap does with weights that nobody here trained: SmolLM2, as benchmarks/real_models.py gets it.

`make test-real` runs these. What they find wrong becomes a test on a tiny model, which every run has.
"""

import copy
import json
import random
import re
import sys
from itertools import islice, product

import mlflow
import numpy as np
import pytest
import torch
from builders import prompt_builder
from places import ROOT
from transformers import AutoModelForCausalLM

from posgap.api import library
from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.files import read_json, read_jsonl
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models.loading import eager_attention, load_tokenizer, save_model
from posgap.scaling.fitness import ForcedEvaluator, GenerationEvaluator
from posgap.scaling.questions import SearchQuestion
from posgap.tasks.examples import KVExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt
from posgap.verbs import first_look

sys.path.append(str(ROOT / "benchmarks"))

import transcripts

SWEEP, PRETRAINED = ((ROOT / page).read_text(encoding="utf-8") for page in ("docs/sweep.md", "docs/pretrained.md"))
SMOLLM2 = "~/.cache/posgap/models/smollm2"  # as pages write it
pytestmark = pytest.mark.real
POSITIONS = ["1", "10"]
LIMIT = 30


def records(number: int, n: int = 10) -> KVExample:
    """An example of n records whose keys and values have eight hex digits, which SmolLM2 can answer now and then."""
    rng = random.Random(number)
    pairs = [(f"{rng.getrandbits(32):08x}", f"{rng.getrandbits(32):08x}") for _ in range(n)]
    key, value = pairs[0]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=pairs)


EXAMPLES = [records(number) for number in range(2)]


def plain_responses(model, tokenizer, prompts):
    """What `generate` answers to each prompt by itself, as text; posgap keeps no white space around a response."""
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LIMIT, do_sample=False)
        yield tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_s_responses_are_those_of_plain_generate(smollm2, dtype):
    """In bfloat16 a batch rounds otherwise than one prompt alone, so that there each prompt is a batch."""
    asked = {"n_docs": 10, "positions": POSITIONS, "max_new_tokens": LIMIT, "dtype": dtype, "max_unanswered": 100}
    alone = {"batch_tokens": 1} if dtype == "bfloat16" else {}
    swept = library.sweep(str(smollm2), EXAMPLES, **asked, **alone)
    model, tokenizer = load_model(str(smollm2), dtype), load_tokenizer(str(smollm2))
    builder = prompt_builder("kv", str(smollm2), LIMIT)
    prompts = [builder(*asked_at) for asked_at in product(EXAMPLES, builder.task.choose_placements(10, POSITIONS))]
    assert swept.frame.response.tolist() == list(plain_responses(model, tokenizer, prompts))


@torch.inference_mode()
def test_factors_for_each_layer_outlive_saving(smollm2, tmp_path):
    model, tokenizer = load_model(str(smollm2), "float32"), load_tokenizer(str(smollm2))
    ids = torch.tensor([tokenizer("The value that belongs to the key is in the middle of the list.")["input_ids"]])
    unscaled = model(ids).logits
    scaled = scale_model(copy.deepcopy(model), torch.linspace(1.5, 1.0, model.config.num_hidden_layers).tolist())
    expected = scaled(ids).logits
    save_model(scaled, tokenizer, tmp_path / "scaled")
    again = load_model(str(tmp_path / "scaled"), "float32")(ids).logits
    assert (expected - unscaled).abs().max() > 0.1
    torch.testing.assert_close(again, expected)


def test_shared_prefixes_change_no_answer(smollm2):
    model, tokenizer = load_model(str(smollm2), "float32"), load_tokenizer(str(smollm2))
    builder = prompt_builder("kv", str(smollm2), LIMIT)
    prompts = [builder.prompt(EXAMPLES[0], placement) for placement in builder.task.choose_placements(10, POSITIONS)]
    sharing, whole = (TransformersGenerator(model, tokenizer, 8192, reuse) for reuse in (True, False))
    assert sharing.reuse and not whole.reuse
    by_sharing, by_whole = (
        [each.token_ids for each in complete(generator, prompts, Sampling(LIMIT))] for generator in (sharing, whole)
    )
    assert by_sharing == by_whole and len(set(map(tuple, by_whole))) > 1


def test_forced_tokens_are_judged_as_generated_ones(smollm2):
    """Of each prompt, its own answer, another prompt's, and its own with the last word changed: under two scalings."""
    model, tokenizer = load_model(str(smollm2), "float32"), load_tokenizer(str(smollm2))
    builder = prompt_builder("kv", str(smollm2), LIMIT)
    prompts = [builder(example, Placement((1,), 10)) for example in EXAMPLES]
    asked = [Prompt("", prompt) for prompt in prompts]
    said = [
        list(each.token_ids[:12])
        for each in complete(TransformersGenerator(model, tokenizer, 4096), asked, Sampling(LIMIT))
    ]
    changed = [[*answer[:-1], answer[0]] for answer in said]
    forced = [[answer, other, other_end] for answer, other, other_end in zip(said, reversed(said), changed)]
    questions = [
        [SearchQuestion(prompt, response, [tokenizer.decode(response)]) for response in row]
        for prompt, row in zip(prompts, forced)
    ]
    scalings = [(1.0,) * 30, (1.3,) * 30]
    verdicts = ForcedEvaluator(model, questions, tokenizer.pad_token_id, 4096).correct(scalings)

    def said_so(text, answers):
        return float(text.strip() == answers[0].strip())

    generator = TransformersGenerator(model, tokenizer, 4096)
    generated = GenerationEvaluator(generator, questions, said_so, Sampling(12)).correct(scalings)
    np.testing.assert_array_equal(verdicts, generated)
    assert verdicts[0].tolist() == [[1, 0, 0], [1, 0, 0]] and not np.array_equal(verdicts[0], verdicts[1])


def without_names(text: str) -> list[str]:
    """The lines of a first look without what every run and machine has of its own, and without names of the model."""
    return [transcripts.like(re.sub(r"\S*(/|smollm2|SmolLM2)\S*", "NAME", line)) for line in text.strip().splitlines()]


def test_a_first_look_prints_what_its_page_shows(smollm2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_look, "SIZES", (5,))  # as the machine of the page took
    monkeypatch.setattr(first_look, "SECONDS", 1e4)
    command, printed, _ = transcripts.BLOCK.search(SWEEP).groups()
    assert command.split()[:2] == ["posgap", "sweep"]
    assert posgap("sweep", smollm2) == 0
    lines = without_names(capsys.readouterr().out)
    assert [line for line in lines if "(sign-flip test" not in line] == without_names(printed)  # whose p nobody kept


@pytest.mark.parametrize("verb", ["sweep", "check"])
def test_the_page_of_pretrained_models_shows_what_its_commands_print(verb, smollm2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made, examples = tmp_path / "uuids.jsonl", tmp_path / "runs" / "smollm2" / "kv.jsonl"
    examples.parent.mkdir(parents=True)
    assert posgap("data", "make", "kv", "--n-docs", 10, "--n-examples", 20, "--out", made) == 0
    digits = ("--key-digits", 8, "--value-digits", 8)
    assert posgap("data", "import", "--format", "litm-kv", "--input", made, *digits, "--out", examples) == 0
    begin = f"posgap {verb} --model {SMOLLM2} "
    (block,) = (each for each in transcripts.BLOCK.finditer(PRETRAINED) if each[1].startswith(begin))
    capsys.readouterr()
    said = posgap(*block[1].replace(SMOLLM2, str(smollm2)).split()[1:])
    assert said == {"sweep": 0, "check": 7}[verb]
    printed = capsys.readouterr()
    now = f"{printed.err}{printed.out}".replace(str(smollm2), SMOLLM2)
    before = [transcripts.LEFT_OUT, *block[2].splitlines()]  # each line is looked for, and there may be others
    _, missing = transcripts.shown(before, list(transcripts.lines_of(now)))
    # How often progress is shown is a machine's own.
    assert [line for line in missing if "sweep of" not in line] == []


# What follows are the verbs, each once, on few examples of five records. With the gold document last, SmolLM2 answers
# both that are swept, and two of those that are learnt.
LEARNT = [records(number, 5) for number in (0, 4, 5, 6, 7, 8)]
SWEPT = [records(number, 5) for number in (1, 3)]
HOW = ("--task", "kv", "--n-docs", 5, "--max-new-tokens", LIMIT, "--dtype", "float32")
AT = ("--positions", "1,3,5", "--max-unanswered", 100)


def posgap(*words) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code or 0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder, whose path has a space, with the examples."""
    folder = tmp_path_factory.mktemp("real runs")
    write_examples(folder / "learnt.jsonl", LEARNT)
    write_examples(folder / "swept.jsonl", SWEPT)
    return folder


@pytest.fixture(scope="module")
def base(smollm2, place):
    assert (
        posgap("sweep", "--model", smollm2, "--examples", place / "swept.jsonl", *HOW, *AT, "--out", place / "base")
        == 0
    )
    return place / "base"


@pytest.fixture(scope="module")
def responses(smollm2, place, base):
    words = ("--model", smollm2, "--examples", place / "learnt.jsonl", "--sweep", base)
    assert posgap("teacher", *words, *HOW, "--out", place / "responses") == 0
    return place / "responses"


@pytest.fixture(scope="module")
def candidate(smollm2, place, responses):
    words = ("--model", smollm2, "--examples", place / "learnt.jsonl", "--responses", responses, "--dtype", "float32")
    small = ("--k", 1, "--epochs", 1, "--batch-size", 4, "--limit", 2)
    assert posgap("distill", *words, *small, "--out", place / "candidate") == 0
    return place / "candidate"


@pytest.fixture(scope="module")
def after(candidate, place):
    words = ("--model", candidate, "--examples", place / "swept.jsonl", *HOW, *AT)
    assert posgap("sweep", *words, "--out", place / "after") == 0
    return place / "after"


def test_a_second_sweep_is_the_first(smollm2, place, base):
    written = (base / "sweep.json").stat().st_mtime_ns
    assert posgap("sweep", "--model", smollm2, "--examples", place / "swept.jsonl", *HOW, *AT, "--out", base) == 0
    assert (base / "sweep.json").stat().st_mtime_ns == written


def test_the_teacher_s_responses_are_its_own(responses, smollm2):
    rows = [row for _, row in read_jsonl(responses / "responses.jsonl")]
    assert {row["id"] for row in rows if row["correct"]} >= {"kv-4", "kv-5"}
    tokenizer = load_tokenizer(str(smollm2))
    assert all(tokenizer.decode(row["token_ids"], skip_special_tokens=True).strip() == row["response"] for row in rows)


@torch.inference_mode()
def test_what_is_trained_is_what_is_written(candidate, smollm2):
    """The folder loads as it is, without posgap, and holds what training did to the weights."""
    ids = torch.arange(100, 140)[None]
    trained = load_model(str(candidate), "float32")(ids).logits
    plain = AutoModelForCausalLM.from_pretrained(candidate, dtype=torch.float32)(ids).logits
    assert torch.equal(trained, plain)
    assert 0 < (trained - load_model(str(smollm2), "float32")(ids).logits).abs().max() < 1
    assert read_json(candidate / "export.json")["kept_update"] == pytest.approx(1, abs=0.01)
    text = "<|im_start|>user\nWhich value?<|im_end|>\n"
    assert load_tokenizer(str(candidate))(text) == load_tokenizer(str(smollm2))(text)


def test_a_model_that_is_admitted_answers_through_mlflow_as_it_was_swept(base, after, candidate, place, capsys):
    (policy := place / "policy.yaml").write_text(
        "least_examples: 1\nleast_placements: 2\nmax_gap: 100\nmean_tolerance: 100\nadvantageous_tolerance: 100\n"
        "min_mean: 0\nmax_unanswered: 100\n"
    )
    judged = ("--candidate", after, "--base", base, "--name", "smollm2", "--out", place / "gate")
    assert posgap("gate", "--candidate", after, "--base", base, "--out", place / "strict") == 7
    assert posgap("gate", *judged, "--policy", policy) == 0
    promoted = ("--model", candidate, "--sweep", after, "--gate", place / "gate", "--name", "smollm2")
    assert posgap("promote", *promoted, "--out", place / "promotion") == 0
    capsys.readouterr()
    assert posgap("view", "models:/smollm2") == 0
    assert "champion" in capsys.readouterr().out
    some = [row for _, row in islice(read_jsonl(after / "predictions.jsonl"), 2)]
    by_id = {example.id: example for example in SWEPT}
    builder = prompt_builder("kv", str(candidate), LIMIT)
    texts = [builder.text(by_id[row["id"]], Placement(tuple(row["placement"]), 5)) for row in some]
    version = mlflow.pyfunc.load_model("models:/smollm2@champion")
    assert version.predict(texts) == [row["response"] for row in some]


def test_check_says_that_two_examples_are_few(smollm2, place, capsys):
    words = ("--model", smollm2, "--examples", place / "swept.jsonl", *HOW, *AT)
    assert posgap("check", *words, "--max-gap", 10, "--out", place / "check") == 7
    shown = capsys.readouterr()
    assert "2 examples, and the gate asks for 100" in shown.out


def test_compare_and_validate_and_verify(smollm2, base, after, place, capsys):
    assert posgap("compare", base, after, "--out", place / "comparison") == 0
    given = ("--model", smollm2, "--examples", place / "swept.jsonl", "--task", "kv", "--n-docs", 5)
    assert posgap("validate", *given, "--exclude", place / "learnt.jsonl", "--out", place / "valid") == 0
    assert posgap("verify", base) == 0


def test_factors_are_searched_by_generating_and_applied(smollm2, place, capsys):
    """SmolLM2 has a preamble before its answers, so that forcing them would find none right."""
    small = ("--limit", 2, "--positions", "1,5", "--generations", 1, "--population", 2)
    words = ("--model", smollm2, "--examples", place / "learnt.jsonl", *HOW, *small)
    assert posgap("scale", "search", *words, "--out", place / "scaling") == 0
    assert "its responses are generated" in capsys.readouterr().err
    assert posgap("apply", "--model", smollm2, "--found", place / "scaling", "--out", place / "scaled") == 0
    factors = read_json(place / "scaling" / "scaling.json")["factors"]
    ids = torch.arange(100, 140)[None]
    with torch.inference_mode():
        expected = scale_model(load_model(str(smollm2), "float32"), factors)(ids).logits
        torch.testing.assert_close(load_model(str(place / "scaled"), "float32")(ids).logits, expected)


def test_mitigations_are_compared(smollm2, place):
    small = ("--methods", "linear,reordering", "--positions", "1,5", "--budget", "1s")
    words = ("--model", smollm2, "--examples", place / "learnt.jsonl", *HOW, *small)
    assert posgap("mitigate", *words, "--out", place / "mitigate") == 0
    measured = read_json(place / "mitigate" / "mitigate.json")
    sweeps = sorted(path.name for path in (place / "mitigate" / "sweeps").iterdir())
    assert "base" in sweeps and len(sweeps) > 1 and measured


def test_rollout_is_the_product_of_the_attention_maps(smollm2, place):
    words = ("--model", smollm2, "--texts", place / "swept.jsonl", "--task", "kv", "--n-docs", 5, "--limit", 1)
    assert posgap("rollout", "measure", *words, "--dtype", "float32", "--out", place / "measurement") == 0
    measured = read_json(place / "measurement" / "measurement.json")
    prompt = prompt_builder("kv", str(smollm2), LIMIT)(SWEPT[0], Placement((1,), 5))
    with torch.inference_mode(), eager_attention(model := load_model(str(smollm2), "float32")):
        maps = model(torch.tensor([prompt]), output_attentions=True).attentions
    row = torch.zeros(len(prompt), dtype=torch.float64)
    row[-1] = 1
    for attention in reversed(maps):
        row = row @ attention[0].double().mean(0)
    np.testing.assert_allclose(measured["influence"]["rollout_without_residuals"], row, atol=1e-5)
    assert sum(measured["influence"]["rollout"]) == pytest.approx(1)
    predicted = ("--encoding", "rope", "--layers", 30, "--measurement", place / "measurement")
    assert posgap("rollout", "predict", *predicted, "--out", place / "prediction") == 0


def test_memory_is_planned_and_what_is_applied_is_shown(smollm2, capsys):
    assert posgap("plan", "distill", "--model", smollm2) == 0
    (way, *_) = json.loads(capsys.readouterr().out.splitlines()[-1])["ways"]
    # Weights, gradients and both of AdamW's moments in float32, and little beside them before any prompt.
    n = load_model(str(smollm2), "float32").num_parameters()
    assert 16 * n <= way["standing"] < 17 * n
    assert posgap("doctor", "--model", smollm2) == 0
    assert capsys.readouterr().out.count("applied 1.0000") == 30
