"""Sweeps at several lengths: the map of accuracy, and the commands that take what they wrote."""

import json
import re

import mlflow
import pytest
from filled import tiny, tiny_length

import posgap
from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl, read_model
from posgap.foundation.printing import NoteFormatter
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.length_comparison import COMPARED_LENGTHS_FILE, LengthComparison
from posgap.measurement.lengths import folder_at, read_lengths
from posgap.measurement.predictions import read_predictions, swept_rows
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.options.compare import CompareConfig
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.positions import parse_depths, parse_length, tokens_of
from posgap.tracking.answering import SweptAnswers
from posgap.verbs.compare import compare
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import advantageous_placements

KEPT = ("accuracy", "ci95", "mean", "mean_ci95", "gap", "gap_ci95", "gap_noise")


def test_lengths_and_depths_are_read_in_the_forms_that_people_write():
    assert [parse_length(text) for text in ("4k", "4096", " 32K", "50%", "12.5%")] == [
        *("4096", "4096", "32768", "50%", "12.5%")
    ]
    assert tokens_of("50%", 8193) == 4096 and tokens_of("4096", 100) == 4096
    assert parse_depths("5") == [0, 25, 50, 75, 100] and parse_depths("50%") == [50]
    assert parse_depths("90, 0,33.3") == [0, 33.3, 90]
    for text in ("0", "-1", "4m", "", "101%", "0%", "nan%", "1e3", "٤k", "4 k"):
        with pytest.raises(ValueError, match=f"^{text.strip()!r} .* 4096 "):
            parse_length(text)
    for text in ("1", "0,101", "5,5", "", "nan", "200", "a,b", "-5,5"):
        with pytest.raises(ValueError, match=f"^{text!r} .* 0,25,50"):
            parse_depths(text)
    config = SweepConfig(model="m", examples="e", out="o", lengths=[1024, "50%", 1 << 20], depths=[0, 50])
    assert (config.lengths, config.depths) == (["1024", "50%", "1048576"], "0,50")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"lengths": "600"}, "length 600: .* 512 tokens"),
        ({"lengths": "12"}, "length 12: .*( 12 tokens | 5 depths)"),
        ({"lengths": "8"}, "length 8: .* 12 tokens "),
        ({"lengths": "24"}, "length 24: .* 5 depths"),
        ({"lengths": "400"}, r"length 400: .* \d+ tokens .* distractors "),
        ({"lengths": "256,50%"}, "lengths 256 and 50%: .* 256 tokens"),
        ({"lengths": "88", "task": "multihop-cot"}, "lengths: task multihop-cot "),
        ({"lengths": "88", "backend": "openai", "base_url": "http://localhost:1"}, "lengths: .* endpoint "),
    ],
)
def test_what_cannot_be_filled_is_refused_in_a_line_before_anything_is_asked(tmp_path, model_folder, asked, complaint):
    write_examples(tmp_path / "e.jsonl", tiny(n_records=10))
    given = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "max_new_tokens": 2} | asked
    with pytest.raises(PosgapError, match=complaint) as refusal:
        sweep_model(SweepConfig(out=tmp_path / "out", **given))
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


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.usefixtures("pictures")
def test_the_map_s_columns_are_the_sweeps_at_each_length(tmp_path, asked):
    out = sweep_model(SweepConfig(out=tmp_path / "map", lengths=LENGTHS[::-1], **asked))
    lengths = read_lengths(out)
    assert (lengths.tokens, lengths.depths, lengths.documents) == (LENGTHS, [0, 25, 50, 75, 100], [9, 21])
    assert lengths.prompt_tokens == [tokens - 2 for tokens in LENGTHS] and lengths.context == 512
    for at, tokens in list(enumerate(LENGTHS))[1:]:
        one = sweep_model(SweepConfig(out=tmp_path / f"{tokens}", lengths=tokens, **asked))
        swept = read_sweep(one)
        n = (9, 21)[at]
        by_hand = SweepConfig(
            out=tmp_path / f"{n}-docs", n_docs=n, positions=[str(1 + d * (n - 1) // 4) for d in range(5)], **asked
        )
        plain = read_sweep(sweep_model(by_hand))
        for name in KEPT:
            assert getattr(lengths, name)[at] == getattr(swept, name) == getattr(plain, name), name
        rows = [[row for _, row in read_jsonl(place / "predictions.jsonl")] for place in (one, folder_at(out, tokens))]
        assert rows[0] == rows[1]
        beside = [row["response"] for _, row in read_jsonl(by_hand.out / "predictions.jsonl")]
        assert [row["response"] for row in rows[0]] == beside
        assert swept.filled.tokens == tokens and swept.placement_names == ["0 %", "25 %", "50 %", "75 %", "100 %"]
        assert plain.filled is None
    page = (out / "lengths.html").read_text()
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {f"{tokens}/sweep.html" for tokens in LENGTHS}
    assert "&lt;tiny&gt;" in page and "<tiny>" not in page and (out / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    run = mlflow.get_run(read_manifest(out)["mlflow_run_id"])
    gaps = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gap")
    assert {point.step: point.value for point in gaps} == pytest.approx(dict(zip(LENGTHS, lengths.gap)), abs=0.005)
    with pytest.raises(PosgapError, match=f"^{out}: .* {out}/"):
        read_sweep(out)
    verdict = posgap.gate(folder_at(out, LENGTHS[0]), least_examples=1)
    assert verdict.rules and verdict.outcome in ("refused", "not enough evidence")


def test_a_sweep_that_was_interrupted_goes_on_at_its_length(tmp_path, asked, monkeypatch):
    config = SweepConfig(out=tmp_path / "map", lengths=LENGTHS, batch_tokens=200, **asked)
    answer, tokens = TransformersGenerator.answer_batch, []

    def counted(self, number, groups, sampling):
        for completion in answer(self, number, groups, sampling):
            tokens.append(len(groups[0][0].token_ids) + 2)
            yield completion
            if len(tokens) == 35:
                raise KeyboardInterrupt

    monkeypatch.setattr(TransformersGenerator, "answer_batch", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep_model(config)
    sweep_model(config)
    assert tokens == [LENGTHS[0]] * 30 + [LENGTHS[1]] * 30
    assert read_lengths(config.out).tokens == LENGTHS


def test_in_python_several_lengths_make_the_same_map(tmp_path, asked, model_folder, tokenizer):
    out = sweep_model(SweepConfig(out=tmp_path / "map", lengths=LENGTHS, most_gap=30, **asked))
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
    sweep_model(config)
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "46 tokens: 30 prompts of 1,260 tokens in all, and answers of at most 60 tokens",
        "92 tokens: 30 prompts of 2,700 tokens in all, and answers of at most 60 tokens",
    ]
    assert not (tmp_path / "map").exists()


def test_models_are_compared_at_one_length(tmp_path, asked, caplog):
    first, other = (
        sweep_model(SweepConfig(out=tmp_path / label, lengths=LENGTHS, **asked | {"label": label}))
        for label in ("a", "b")
    )
    at_one = [folder_at(folder, LENGTHS[1]) for folder in (first, other)]
    written = json.loads((compare(CompareConfig(sweeps=at_one, out=tmp_path / "c")) / "comparison.json").read_text())
    assert written["reference"] == "a" and [each["label"] for each in written["differences"]] == ["b"]
    with pytest.raises(PosgapError, match=f"^{first}: .* {first}/"):
        compare(CompareConfig(sweeps=[first, at_one[0]], out=tmp_path / "refused"))
    caplog.set_level("INFO", "posgap")
    compared = compare(CompareConfig(sweeps=[first, other], out=tmp_path / "all"))
    assert any("at each length:\n| length " in NoteFormatter().format(record) for record in caplog.records)
    found = read_model(LengthComparison, compared, COMPARED_LENGTHS_FILE)
    assert [at.length for at in found.lengths] == [f"{tokens} tokens" for tokens in LENGTHS]
    assert found.lengths[1].comparison.model_dump(mode="json") == written
    for at, tokens in zip(found.lengths, LENGTHS):
        swept = read_sweep(folder_at(first, tokens))
        assert [curve.label for curve in at.curves] == ["a", "b"] and at.curves[0].accuracy == swept.accuracy
    assert not found.losses() and "part-lengths" in (tmp_path / "all" / "comparison-lengths.html").read_text()
    with pytest.raises(PosgapError, match="filling"):
        places = [folder_at(first, LENGTHS[0]), folder_at(first, LENGTHS[1])]
        compare(CompareConfig(sweeps=places, out=tmp_path / "refused"))


@pytest.mark.full
def test_a_sweep_at_one_length_goes_through_merge_and_the_tried_answers(tmp_path, asked, model_folder, caplog):
    """As any sweep: its prompts are made again by its settings and examples."""
    caplog.set_level("INFO")
    at = {"lengths": tiny_length(21), **asked}
    whole = sweep_model(SweepConfig(out=tmp_path / "whole", **at))
    parts = [sweep_model(SweepConfig(out=tmp_path / f"part-{i}", shard=f"{i}/2", **at)) for i in (1, 2)]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert read_sweep(merged).model_copy(update={"spent": None}) == read_sweep(whole).model_copy(update={"spent": None})
    rows = swept_rows(read_predictions(whole))[:8]
    again = SweptAnswers(read_sweep(whole), model_folder, swept_examples(whole, asked["examples"]))
    assert [answer.text for answer in again.answer(rows)] == [row["response"] for row in rows]
    with pytest.raises(PosgapError, match=f"^{whole}: .* depths; .*`advantageous`"):
        given = {name: asked[name] for name in ("examples", "model")}
        advantageous_placements(TeacherConfig(sweep=whole, out=tmp_path / "t", **given), 1)
