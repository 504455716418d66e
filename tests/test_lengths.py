"""Sweeps at several lengths: prompts filled to the token, the map of accuracy, and the effective length."""

import json
import random
import re

import hypothesis
import mlflow
import numpy as np
import pytest
from conftest import kv_example
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import posgap
from posgap.demo import tiny_model
from posgap.distillation.config import TeacherConfig
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.config import CompareConfig, DiagnoseConfig, MergeConfig, SweepConfig
from posgap.measurement.diagnoses import read_diagnosis
from posgap.measurement.filling import at_lengths
from posgap.measurement.lengths import effective_length, estimated_lengths, folder_at, read_lengths
from posgap.measurement.statistics import tango_bound
from posgap.measurement.sweeps import read_sweep
from posgap.stages.compare import compare
from posgap.stages.diagnose import diagnose
from posgap.stages.merge import merge
from posgap.stages.sweep import sweep
from posgap.stages.teacher import advantageous_placements
from posgap.storage.inputs import read_manifest
from posgap.tasks.examples import Document, Example
from posgap.tasks.metrics import sub_exact_match
from posgap.tasks.placements import Placement
from posgap.tasks.positions import parse_depths, parse_length, tokens_of
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.task import Order
from posgap.tracking.answering import require_answers

CHAT = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<eos>\n{% endfor %}<|assistant|>\n"
WORDS = ("the", "of", "gap", "naïve", "Köln", "東京", "😀", "don't", "3,141", "x²", "retrieval-augmented", "run\tup")
KEPT = ("accuracy", "ci95", "mean", "mean_ci95", "gap", "gap_ci95", "gap_noise")


def passage(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def passages(n: int = 4, distractors: int = 14) -> list[Example]:
    rng = random.Random(0)
    return [
        Example(
            id=f"e{i}",
            question=passage(rng, 5),
            answers=[f"answer{i}"],
            gold=[Document(title=f"gold {i}", text=f"{passage(rng, 6)} answer{i} {passage(rng, 6)}")],
            distractors=[
                Document(title=passage(rng, 2), text=passage(rng, rng.randint(3, 40))) for _ in range(distractors)
            ],
        )
        for i in range(n)
    ]


def trained_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the passages: of bytes as GPT's, or of pieces as sentencepiece's; some with a template."""
    texts = [document.text for example in passages() for document in example.distractors]
    special = ["<pad>", "<eos>", "<unk>"]
    if kind == "pieces":
        core = Tokenizer(models.Unigram())
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.train_from_iterator(
            texts, trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
        )
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters)
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = CHAT if kind == "chat" else None
    return tokenizer


@pytest.fixture(scope="module", params=["bytes", "pieces", "chat"])
def build(request) -> PromptBuilder:
    return PromptBuilder(TASKS["qa"], trained_tokenizer(request.param), 5000, 7)


def filled(build: PromptBuilder, lengths, examples, depths="5", seed=0) -> list[PromptBuilder]:
    asked = SweepConfig(model="m", examples="e", out="o", lengths=lengths, depths=depths, seed=seed)
    return at_lengths(asked.lengths, asked.depths, asked.seed, build, examples)


EXAMPLES = passages()


@settings(max_examples=8, deadline=None)
# Of the last document's end one token less is two less in the prompt here, so that the one before it is cut.
@hypothesis.example(length=1344, depths="5", order=Order("after", 2))
@given(
    length=st.integers(1000, 1700),
    depths=st.sampled_from(["5", "2", "50%", "0,33.3,90"]),
    order=st.builds(Order, st.sampled_from(["after", "before", "both"]), st.integers(0, 2)),
)
def test_prompts_have_exactly_the_tokens_asked_for(build, length, depths, order):
    build.order = order
    (at_length,) = filled(build, [length], EXAMPLES, depths)
    for placement in at_length.fill.placements:
        assert len(at_length(EXAMPLES[1], placement)) == length - build.max_new_tokens


def test_thoughts_and_answer_have_room_within_the_length(build, model_folder):
    """Of both the longest, in the prompts and in what is said of them before they are asked."""
    thinking = PromptBuilder(TASKS["qa"], build.tokenizer, 5000, 7, max_thinking_tokens=40)
    asked = SweepConfig(model=str(model_folder), examples="e", out="o", lengths=[1300], depths="2")
    (at_length,) = at_lengths(asked.lengths, asked.depths, asked.seed, thinking, EXAMPLES)
    for placement in at_length.fill.placements:
        assert len(at_length(EXAMPLES[1], placement)) == 1300 - 7 - 40
    said = estimated_lengths([at_length], EXAMPLES, 1, lambda tokens: 0)
    assert f"1,300 tokens: {2 * len(EXAMPLES)} prompts of {1300 - 7 - 40:,} tokens" in said
    assert f"{2 * len(EXAMPLES) * 47:,}" in said  # tokens of thoughts and answers


def test_the_gold_document_stands_after_its_share_of_the_filler_whose_order_stays(build):
    build.order = Order()
    (at_length,) = filled(build, [1500], EXAMPLES, "0,30,100")
    for example in EXAMPLES:
        before = []
        fillers = []
        for placement in at_length.fill.placements:
            documents = at_length.documents(example, placement)
            at = documents.index(example.gold[0])
            others = documents[:at] + documents[at + 1 :]
            sizes = [len(build.tokenizer(f"{d.title} {d.text}", add_special_tokens=False)["input_ids"]) for d in others]
            before.append(sum(sizes[:at]) / sum(sizes))
            fillers.append(others)
            nearest = max(sizes) / sum(sizes) / 2 + 0.02
        assert before[0] == 0 and before[2] == 1 and abs(before[1] - 0.3) <= nearest < 0.15
        # But for the last, which is cut, all placements have the same documents, the example's own first.
        assert fillers[0][:-2] == fillers[1][:-2] == fillers[2][:-2]
        whole = min(len(fillers[0]) - 2, len(example.distractors))
        assert whole > 5 and fillers[0][:whole] == example.distractors[:whole]


def test_filler_of_other_examples_never_answers_nor_stands_there_twice(build):
    build.order = Order()
    poison = Document(title="elsewhere", text="It was answer0, they say.")
    rival = Document(title="Gold 0", text="Another of that title.")
    own = [example.model_copy(update={"distractors": example.distractors[:4]}) for example in EXAMPLES]
    own[1].distractors.extend([poison, rival, *own[0].distractors])
    (at_length,) = filled(build, [1300], own)
    documents = at_length.documents(own[0], at_length.fill.placements[0])
    others = [document for document in documents if document not in own[0].gold]
    assert len(others) > 4 and len(set(others)) == len(others)
    assert not any(sub_exact_match(f"{d.title} {d.text}", own[0].answers) or d.title == "Gold 0" for d in others)
    (again,) = filled(build, [1300], own)
    assert again.documents(own[0], again.fill.placements[0]) == documents and again.digest() == at_length.digest()
    (drawn,) = filled(build, [1300], own, seed=1)
    assert drawn.documents(own[0], drawn.fill.placements[0]) != documents and drawn.digest() != at_length.digest()


def tiny(n_records: int = 60, n: int = 4):
    """Records that the tiny tokenizer reads as four tokens each, so that none can be cut."""
    return [kv_example(i, n_records) for i in range(n)]


def tiny_length(n_docs: int, new: int = 2) -> int:
    return 4 * n_docs + 6 + new


def test_a_length_that_whole_documents_make_is_the_prompt_of_so_many_documents(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21)], tiny())
    for example in tiny():
        for placement, position in zip(at_length.fill.placements, (1, 6, 11, 16, 21)):
            assert at_length(example, placement) == build(example, Placement((position,), 21))


def test_where_no_cut_fits_as_many_whole_documents_are_taken_as_do(tokenizer, caplog):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21) + 3], tiny())
    assert at_length(tiny()[0], at_length.fill.placements[2]) == build(tiny()[0], Placement((11,), 21))
    assert "fall short of it, that of kv-0 by 3 tokens" in caplog.text


def test_lengths_and_depths_are_read_in_the_forms_that_people_write():
    assert [parse_length(text) for text in ("4k", "4096", " 32K", "50%", "12.5%")] == [
        *("4096", "4096", "32768", "50%", "12.5%")
    ]
    assert tokens_of("50%", 8193) == 4096 and tokens_of("4096", 100) == 4096
    assert parse_depths("5") == [0, 25, 50, 75, 100] and parse_depths("50%") == [50]
    assert parse_depths("90, 0,33.3") == [0, 33.3, 90]
    for text in ("0", "-1", "4m", "", "101%", "0%", "nan%", "1e3", "٤k", "4 k"):
        with pytest.raises(ValueError, match="is not a length"):
            parse_length(text)
    for text in ("1", "0,101", "5,5", "", "nan", "200", "a,b", "-5,5"):
        with pytest.raises(ValueError, match="are no depths"):
            parse_depths(text)
    config = SweepConfig(model="m", examples="e", out="o", lengths=[1024, "50%", 1 << 20], depths=[0, 50])
    assert (config.lengths, config.depths) == (["1024", "50%", "1048576"], "0,50")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"lengths": "600"}, "the model reads no more than 512 tokens"),
        ({"lengths": "12"}, "takes 12 tokens without any filler|few for 5 depths"),
        ({"lengths": "8"}, "takes 12 tokens without any filler"),
        ({"lengths": "24"}, "documents, too few for 5 depths"),
        ({"lengths": "400"}, r"is filled to \d+ tokens with its own distractors"),
        ({"lengths": "256,50%"}, "are both 256 tokens"),
        ({"lengths": "88", "task": "multihop-cot"}, "not one gold document among others"),
        ({"lengths": "88", "backend": "openai", "base_url": "http://localhost:1"}, "an endpoint keeps to itself"),
    ],
)
def test_what_cannot_be_filled_is_refused_in_a_line_before_anything_is_asked(tmp_path, model_folder, asked, complaint):
    write_examples(tmp_path / "e.jsonl", tiny(n_records=10))
    given = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "max_new_tokens": 2} | asked
    with pytest.raises(PosgapError, match=complaint) as refusal:
        sweep(SweepConfig(out=tmp_path / "out", **given))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("more", [{"positions": "1,2"}, {"shard": "1/2"}])
def test_options_that_lengths_exclude_are_refused(more):
    with pytest.raises(ValueError, match="lengths"):
        SweepConfig(model="m", examples="e", out="o", lengths="1k,2k", **more)


@pytest.fixture
def asked(tmp_path, model_folder) -> dict:
    write_examples(tmp_path / "e.jsonl", tiny(n=6))
    return {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "max_new_tokens": 2, "label": "<tiny>"}


LENGTHS = [tiny_length(9), tiny_length(21)]


def test_the_map_s_columns_are_the_sweeps_at_each_length(tmp_path, asked):
    out = sweep(SweepConfig(out=tmp_path / "map", lengths=LENGTHS[::-1], **asked))
    lengths = read_lengths(out)
    assert (lengths.tokens, lengths.depths, lengths.documents) == (LENGTHS, [0, 25, 50, 75, 100], [9, 21])
    assert lengths.prompt_tokens == [tokens - 2 for tokens in LENGTHS] and lengths.context == 512
    for at, tokens in list(enumerate(LENGTHS))[1:]:
        one = sweep(SweepConfig(out=tmp_path / f"{tokens}", lengths=tokens, **asked))
        swept = read_sweep(one)
        n = (9, 21)[at]
        by_hand = SweepConfig(
            out=tmp_path / f"{n}-docs", n_docs=n, positions=[str(1 + d * (n - 1) // 4) for d in range(5)], **asked
        )
        plain = read_sweep(sweep(by_hand))
        for name in KEPT:
            assert getattr(lengths, name)[at] == getattr(swept, name) == getattr(plain, name), name
        rows = [[row for _, row in read_jsonl(place / "predictions.jsonl")] for place in (one, folder_at(out, tokens))]
        assert rows[0] == rows[1]
        beside = [row["response"] for _, row in read_jsonl(by_hand.out / "predictions.jsonl")]
        assert [row["response"] for row in rows[0]] == beside
        assert swept.filled.tokens == tokens and swept.names == ["0 %", "25 %", "50 %", "75 %", "100 %"]
        assert plain.filled is None
    page = (out / "lengths.html").read_text()
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {f"{tokens}/sweep.html" for tokens in LENGTHS}
    assert "&lt;tiny&gt;" in page and "<tiny>" not in page and (out / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    run = mlflow.get_run(read_manifest(out)["mlflow_run_id"])
    gaps = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gap")
    assert {point.step: point.value for point in gaps} == pytest.approx(dict(zip(LENGTHS, lengths.gap)), abs=0.005)
    with pytest.raises(PosgapError, match="holds sweeps at several lengths; name the folder of one, like .*/map/"):
        read_sweep(out)
    verdict = posgap.gate(folder_at(out, LENGTHS[0]), least_examples=1)
    assert verdict.rules and verdict.outcome in ("refused", "not enough evidence")


def test_a_sweep_that_was_interrupted_goes_on_at_its_length(tmp_path, asked, monkeypatch):
    config = SweepConfig(out=tmp_path / "map", lengths=LENGTHS, batch_tokens=200, **asked)
    answer, tokens = TransformersGenerator.answer, []

    def counted(self, number, groups, sampling):
        for completion in answer(self, number, groups, sampling):
            tokens.append(len(groups[0][0].token_ids) + 2)
            yield completion
            if len(tokens) == 35:
                raise KeyboardInterrupt

    monkeypatch.setattr(TransformersGenerator, "answer", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep(config)
    sweep(config)
    assert tokens == [LENGTHS[0]] * 30 + [LENGTHS[1]] * 30
    assert read_lengths(config.out).tokens == LENGTHS


def test_in_python_several_lengths_make_the_same_map(tmp_path, asked, model_folder, tokenizer):
    out = sweep(SweepConfig(out=tmp_path / "map", lengths=LENGTHS, most_gap=30, **asked))
    options = {"lengths": LENGTHS, "max_new_tokens": 2, "label": "<tiny>", "most_gap": 30}
    swept = posgap.sweep(tiny_model.untrained(0), tiny(n=6), tokenizer=tokenizer, **options)
    assert swept.figures.model_copy(update={"model": ""}) == read_lengths(out).model_copy(update={"model": ""})
    saved = swept.save(tmp_path / "saved")
    assert posgap.load(saved).figures == swept.figures and str(posgap.load(out)) == str(swept)
    assert list(swept.frame.columns) == ["tokens", "depth", "accuracy", "low", "high"] and len(swept.frame) == 10
    assert swept.sweeps[LENGTHS[1]].figures.filled.documents == 21
    assert swept.effective(100).tokens == LENGTHS[1] and swept.effective(30) == swept.figures.effective
    assert swept.plot().axes and 'href="' not in swept.report(tmp_path / "page.html").read_text()


def test_relative_lengths_are_of_the_model_s_context(tmp_path, asked, capsys):
    config = SweepConfig(out=tmp_path / "map", lengths="9%,18%", estimate=True, **asked)
    sweep(config)
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith("46 tokens: 30 prompts of 44 tokens, of which about ")
    assert "92 tokens: 30 prompts of 90 tokens" in said and "Together 60 prompts of 4,020 tokens" in said
    assert not (tmp_path / "map").exists()


def test_models_are_compared_at_one_length(tmp_path, asked):
    first, other = (
        sweep(SweepConfig(out=tmp_path / label, lengths=LENGTHS, **asked | {"label": label})) for label in ("a", "b")
    )
    at_one = [folder_at(folder, LENGTHS[1]) for folder in (first, other)]
    written = json.loads((compare(CompareConfig(sweeps=at_one, out=tmp_path / "c")) / "comparison.json").read_text())
    assert written["reference"] == "a" and [each["label"] for each in written["differences"]] == ["b"]
    with pytest.raises(PosgapError, match="holds sweeps at several lengths; name the folder of one"):
        compare(CompareConfig(sweeps=[first, other], out=tmp_path / "refused"))
    with pytest.raises(PosgapError, match="filling"):
        places = [folder_at(first, LENGTHS[0]), folder_at(first, LENGTHS[1])]
        compare(CompareConfig(sweeps=places, out=tmp_path / "refused"))


def scores(rng, n: int, accuracies) -> np.ndarray:
    return (rng.random((n, len(accuracies))) < accuracies).astype(float)


def test_the_effective_length_ends_before_the_first_gap_that_is_too_large():
    flat, steep = np.ones((100, 3)), np.tile([1.0, 0.0, 1.0], (100, 1))
    at = [100, 200, 300]
    found = [effective_length(at, of, 10) for of in ([flat] * 3, [flat, flat, steep], [steep, flat, flat])]
    assert [(each.tokens, each.low, each.high) for each in found] == [(300, 300, 300), (200, 200, 200), (0, 0, 0)]
    few = effective_length(at, [flat[:10]] * 3, 10)  # of which nobody can say that the gap is so small
    assert (few.tokens, few.low, few.high) == (300, 0, 300)
    assert few.sentence(at).endswith(
        "300 or more tokens (95 % bounds of the effective length: under 100 to 300 or more)."
    )
    assert "more than 10 points at 100 tokens already" in found[2].sentence(at)


def test_a_gap_of_exactly_what_is_allowed_is_allowed():
    at, ten = [100, 200], np.ones((100, 2))
    ten[:10, 1] = 0
    assert effective_length(at, [ten, ten], 10).tokens == 200
    assert effective_length(at, [ten, ten], 10 - 1e-9).tokens == 0


@pytest.mark.parametrize(("placements", "number"), [(2, 1), (3, 3)])
def test_the_upper_end_goes_by_lower_bounds_that_hold_together(placements, number):
    """Each at the level by the number of all ordered pairs of placements of all lengths (Bonferroni): so many examples
    must be wrong at one placement alone before the shortest length is said to be too long."""
    at = list(range(100, 100 * (number + 1), 100))

    def fewest(is_too_much) -> int:
        return next(wrong for wrong in range(100) if is_too_much(wrong))

    def says(wrong: int) -> bool:
        scores = np.ones((100, placements))
        scores[:wrong, 1] = 0
        found = effective_length(at, [scores, *[np.ones((100, placements))] * (number - 1)], 10)
        assert found.high in (0, at[-1])
        return not found.high

    def exceeds(wrong: int, pairs: int) -> bool:
        return -100 * float(tango_bound(np.array(0), np.array(wrong), 100, 0.05 / pairs)) > 10

    pairs = placements * (placements - 1) * number
    assert fewest(says) == fewest(lambda wrong: exceeds(wrong, pairs)) > fewest(lambda wrong: exceeds(wrong, 1))


def test_the_bounds_of_the_effective_length_are_wrong_in_at_most_five_percent():
    """Gaps of exactly 10, 10 and 20 points: 200 is the effective length, with both bounds at their limit."""
    rng, at, runs = np.random.default_rng(0), [100, 200, 300], 80
    accuracies = ([0.9, 0.8, 0.9], [0.8, 0.8, 0.7], [0.9, 0.7, 0.9])
    found = [effective_length(at, [scores(rng, 150, a) for a in accuracies], 10) for _ in range(runs)]
    assert all(each.low <= each.tokens <= each.high for each in found)
    assert sum(each.low > 200 for each in found) <= 0.08 * runs
    assert sum(each.high < 200 for each in found) <= 0.08 * runs


def test_a_sweep_at_one_length_goes_through_merge_diagnosis_and_the_tried_answers(
    tmp_path, asked, model_folder, caplog
):
    """As any sweep: its prompts are made again by its settings and examples."""
    caplog.set_level("INFO")
    at = {"lengths": tiny_length(21), **asked}
    whole = sweep(SweepConfig(out=tmp_path / "whole", **at))
    parts = [sweep(SweepConfig(out=tmp_path / f"part-{i}", shard=f"{i}/2", **at)) for i in (1, 2)]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert read_sweep(merged).model_copy(update={"spent": None}) == read_sweep(whole).model_copy(update={"spent": None})
    config = DiagnoseConfig(
        sweep=whole, examples=asked["examples"], model=str(model_folder), out=tmp_path / "why", tokens=4, attention=2
    )
    attention = read_diagnosis(diagnose(config)).attention
    plain = SweepConfig(out=tmp_path / "plain", n_docs=21, positions="1,6,11,16,21", **asked)
    by_hand = config.model_copy(update={"sweep": sweep(plain), "out": tmp_path / "plain-why"})
    assert attention == read_diagnosis(diagnose(by_hand)).attention
    require_answers(model_folder, whole, asked["examples"], 8)
    assert "8 of 8 responses are as the sweep recorded" in caplog.text
    with pytest.raises(PosgapError, match="whose placements are depths; give `advantageous`"):
        given = {name: asked[name] for name in ("examples", "model")}
        advantageous_placements(TeacherConfig(sweep=whole, out=tmp_path / "t", **given), 1)
