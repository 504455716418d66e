"""`scale search` and `apply`: what they write, what they refuse, and that they belong together."""

import json
import logging
import re
import shutil
import weakref

import numpy as np
import pytest
from command_line import fails, run
from examples import kv_example
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel

from posgap.data.reading import read_examples, write_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, read_json, work_folder, write_json
from posgap.generation.transformers import TransformersGenerator
from posgap.kubeflow.artifacts import show_scaling
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models import CONFIG_KEY, loading
from posgap.models.closing import read_config
from posgap.models.loading import save_model
from posgap.options.apply import ApplyConfig
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.sweep import SweepConfig
from posgap.scaling.fitness import ForcedEvaluator, position_weights
from posgap.scaling.scaling_file import MAX_UNLIKE, ForcingCheck, read_scaling
from posgap.storage.lineage import training_examples
from posgap.tasks.content import content_keys
from posgap.verbs.apply import apply
from posgap.verbs.scale_search import scale_search
from posgap.verbs.sweep import sweep_model


@pytest.fixture(scope="module")
def model_folder(values_folder):
    return values_folder


@pytest.fixture
def config(tmp_path, model_folder):
    write_examples(tmp_path / "search.jsonl", [kv_example(i) for i in range(12)])
    return ScaleSearchConfig(
        examples=tmp_path / "search.jsonl",
        model=str(model_folder),
        out=tmp_path / "scaling",
        n_docs=4,
        max_new_tokens=1,
        metric="contains_any",  # which an untrained model can pass, and without its end token
        population=6,
        generations=3,
    )


def same(path) -> dict:
    """A scaling file without what names the place it was made in."""
    return {k: v for k, v in read_json(path / "scaling.json").items() if k != "settings"}


@pytest.mark.usefixtures("pictures")
def test_a_kfp_step_shows_a_search(config, tmp_path):
    """The step's picture, metrics and the metadata of its artifact."""
    from kfp import dsl

    out = dsl.Artifact(uri=str(scale_search(config)))
    page, metrics = dsl.HTML(uri=str(tmp_path / "page.html")), dsl.Metrics(uri=str(tmp_path / "metrics"))
    show_scaling(out, page, metrics)
    found = read_scaling(config.out)
    assert out.metadata["curve"] == str(found.curve) and out.metadata["factors"] == str(found.factors)
    assert read_json(tmp_path / "metrics")["fitness"] == pytest.approx(found.fitness, abs=1e-3)
    assert 'src="data:image/png;base64,' in (tmp_path / "page.html").read_text()


def test_a_scaling_applied_is_swept_as_it_was_searched(config, tmp_path, model_folder):
    scaling = read_scaling(scale_search(config))
    assert (scaling.model_digest, scaling.positions, scaling.metric) == (
        digest_path(model_folder),
        [1, 2, 3, 4],
        "contains_any",
    )
    assert len(scaling.factors) == 2 and len(scaling.control_points) == 4 and len(scaling.history) == 3
    assert all(1 <= factor <= 2 for factor in scaling.factors)
    assert scaling.fitness == scaling.history[-1]["best"] >= scaling.unscaled_fitness
    assert scaling.forward_passes <= (1 + 3 * 6) * 12 * 4
    assert (config.out / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".posgap-*"))

    scaled = apply(ApplyConfig(model=str(model_folder), found=config.out, out=tmp_path / "scaled"))
    assert read_config(scaled)[CONFIG_KEY] == scaling.factors and read_scaling(scaled) == scaling
    assert (scaled / "model.safetensors").read_bytes() == (model_folder / "model.safetensors").read_bytes()
    assert "refuses the model. Install posgap" in (scaled / "README.md").read_text()

    unrecorded = tmp_path / "sweepable"  # on the examples of the search
    shutil.copytree(scaled, unrecorded)
    (unrecorded / "scaling.json").unlink()
    common = {"n_docs": 4, "max_new_tokens": 1, "metric": "contains_any"}
    for folder, accuracy, applied in (
        (unrecorded, scaling.accuracy, {"factors": scaling.factors}),
        (model_folder, scaling.unscaled_accuracy, None),
    ):
        out = tmp_path / f"sweep-{folder.name}"
        swept = read_sweep(sweep_model(SweepConfig(examples=config.examples, model=str(folder), out=out, **common)))
        assert swept.accuracy == pytest.approx(accuracy)
        assert swept.scaling == applied
    assert training_examples(scaled) == set(content_keys(read_examples(config.examples)))
    renamed = [kv_example(i).model_copy(update={"id": f"other-{i}"}) for i in range(12)]
    write_examples(tmp_path / "renamed.jsonl", renamed)
    refused = SweepConfig(examples=tmp_path / "renamed.jsonl", model=str(scaled), out=tmp_path / "refused", **common)
    with pytest.raises(PosgapError, match=rf"^{scaled}: .* 12 .*\(other-0, ...\)"):
        sweep_model(refused)
    write_examples(
        tmp_path / "others.jsonl", [kv_example(12 + i).model_copy(update={"id": f"kv-{i}"}) for i in range(3)]
    )
    swept = sweep_model(refused.model_copy(update={"examples": tmp_path / "others.jsonl"}))
    assert training_examples(swept) == training_examples(scaled)


def test_a_model_that_says_more_than_its_answer_is_searched_by_what_it_generates(config, caplog):
    caplog.set_level(logging.INFO, "posgap")
    wordy = config.model_copy(update={"max_new_tokens": 8, "generations": 1})
    scaling = read_scaling(scale_search(wordy))
    assert re.search(
        r"answers \d+ of 24 questions right, but (none|only \d) of its responses begin with the answer( \(.+\))?; ",
        caplog.text,
    )
    asked = {"model": config.model, "n_docs": 4, "max_new_tokens": 8, "metric": "contains_any"}
    swept = read_sweep(sweep_model(SweepConfig(examples=config.examples, out=config.out.with_name("swept"), **asked)))
    assert scaling.unscaled_accuracy == pytest.approx(swept.accuracy) and scaling.generated is None
    assert swept.mean > 25


def test_candidates_that_forcing_misjudges_are_searched_by_what_they_generate(config, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "posgap")
    config = config.model_copy(update={"generations": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posgap.scaling.search.one_right_response", lambda *_: False)
        generated = same(scale_search(config))
    told = (
        r"of 72 prompts to the best candidates (\d+) are right by teacher forcing and (\d+) as generated; .* at (\d+)"
    )
    correct = ForcedEvaluator.correct

    def misses_scaled(self, candidates):
        """The model without factors is judged rightly, and every candidate as if it answered nothing at once."""
        right = correct(self, candidates)
        right[[max(candidate) > 1 for candidate in candidates]] = False
        return right

    monkeypatch.setattr(ForcedEvaluator, "correct", misses_scaled)
    fell_back = same(scale_search(config.model_copy(update={"force": True})))
    forced, passes = fell_back.pop("forced"), fell_back.pop("forward_passes")
    said = [int(number) for number in re.search(told, caplog.text).groups()]
    assert [forced["right"], forced["generated_right"], forced["differ"]] == said and forced["prompts"] == 72
    assert forced["right"] < forced["generated_right"] and forced["differ"] > MAX_UNLIKE * 72
    assert "more than 5 %: the search starts again, by generation" in caplog.text
    assert passes > generated.pop("forward_passes") and generated.pop("forced") is None and fell_back == generated


@pytest.mark.parametrize(("metric", "loads"), [("f1", 0), ("contains_any", 1)])
def test_a_model_is_loaded_beside_its_backend_only_to_force_answers(config, monkeypatch, metric, loads):
    """In place of vLLM, which has an environment of its own, stands transformers. The second search begins by forcing,
    and gives that up, and the model with it."""
    config = config.model_copy(update={"max_new_tokens": 8, "generations": 1, "metric": metric})
    expected = same(scale_search(config))
    alive, opened = [], []

    def load(path, dtype):
        alive.append(weakref.ref(model := load_model(path, dtype)))
        return model

    def serve(config, builder):
        assert not any(model() for model in alive)
        opened.append(config.backend)
        return TransformersGenerator(load_model(config.model, config.dtype), builder.tokenizer, 0, pack=True)

    monkeypatch.setattr("posgap.verbs.scale_search.load_model", load)
    monkeypatch.setattr("posgap.verbs.scale_search.open_generator", serve)
    out = scale_search(config.model_copy(update={"backend": "vllm", "force": True}))
    assert len(alive) == loads and opened == ["vllm"] and same(out) == expected
    assert read_scaling(out).settings["backend"] == "vllm"


def test_what_forcing_and_generation_say_is_counted_prompt_by_prompt():
    forced, generated = np.zeros((2, 8, 3)), np.zeros((2, 8, 3))
    forced[0, :2, 0], generated[0, 1:4, 0] = 1, 1  # as many less one, but of other prompts
    counted = ForcingCheck.from_scores(forced, generated)
    assert tuple(counted.model_dump().values()) == (48, 2, 3, 3) and counted.unlike
    generated[0, 0, 0] = 1
    assert (
        ForcingCheck.from_scores(forced, generated).differ == 2
        and not ForcingCheck.from_scores(forced, generated).unlike
    )


def test_factors_of_one_are_said_to_be_no_gain(config, tmp_path, caplog):
    caplog.set_level(logging.INFO, "posgap")
    scale_search(config.model_copy(update={"high": 1.0, "generations": 1}))
    assert "the factors gain nothing: all factors are 1, since no candidate was better" in caplog.text
    for name, factors in (("ones", [1.0, 1.0]), ("others", [1.0, 1.5])):
        caplog.clear()
        more = {"mitigation": "lpes", "mitigation_settings": {"factors": factors}, "out": tmp_path / name}
        apply(ApplyConfig(model=config.model, **more))
        assert ("nothing is scaled, since all factors are 1" in caplog.text) == (name == "ones")


def test_in_16_bits_the_finalists_are_judged_by_what_they_generate(config):
    scaling = read_scaling(scale_search(config.model_copy(update={"dtype": "bfloat16", "generations": 2})))
    spoken = scaling.generated
    weights = position_weights(scaling.positions, config.n_docs)
    for fitness, accuracy in (
        (spoken.fitness, spoken.accuracy),
        (spoken.unscaled_fitness, spoken.unscaled_accuracy),
        (scaling.fitness, scaling.accuracy),
    ):
        assert fitness == pytest.approx(weights @ accuracy)
    # Ties go to one token when they are generated, and teacher forcing knows no other.
    assert np.all(np.array(spoken.unscaled_accuracy) >= np.array(scaling.unscaled_accuracy) - 100 / 12)


def test_an_interrupted_search_ends_as_if_it_had_not_been(config, tmp_path, monkeypatch):
    whole = same(scale_search(config.model_copy(update={"out": tmp_path / "whole"})))
    calls, correct = [], ForcedEvaluator.correct

    def interrupted(self, candidates):
        calls.append(len(candidates))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return correct(self, candidates)

    monkeypatch.setattr(ForcedEvaluator, "correct", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scale_search(config)
    assert (work_folder(config.out) / "search.json").exists() and not config.out.exists()
    assert same(scale_search(config)) == whole


def test_both_evaluations_find_the_same(config, tmp_path, monkeypatch):
    forced = same(scale_search(config))
    assert forced.pop("forced")["differ"] == 0
    monkeypatch.setattr("posgap.scaling.search.one_right_response", lambda *_: False)
    generated = same(scale_search(config.model_copy(update={"out": tmp_path / "g"})))
    assert generated.pop("forced") is None and generated == forced


def test_a_model_card_keeps_its_head_and_its_text(config, tmp_path, model_folder):
    (model_folder / "README.md").write_bytes(b"---\nlicense: mit\n---\n# Caf\xe9, not in UTF-8\n")
    try:
        scale_search(config)
        scaled = apply(ApplyConfig(model=str(model_folder), found=config.out, out=tmp_path / "scaled"))
    finally:
        (model_folder / "README.md").unlink()
    assert re.fullmatch(
        rb"---\nlicense: mit\n---\n> \*\*This model has a mitigation: lpes.*\n\n# Caf\xe9, not in UTF-8\n",
        (scaled / "README.md").read_bytes(),
        re.S,
    )


def search_words(config, *more):
    return ["scale", "search", "--examples", config.examples, "--model", config.model, "--out", config.out, *more]


def test_examples_of_the_evaluation_are_refused(capsys, config, tmp_path):
    found_elsewhere = [kv_example(i).model_copy(update={"id": f"other-{i}"}) for i in range(10, 12)]
    of_equal_ids = [kv_example(20 + i).model_copy(update={"id": f"kv-{i}"}) for i in range(8)]
    write_examples(tmp_path / "eval.jsonl", found_elsewhere + of_equal_ids)
    complaint = fails(capsys, *search_words(config, "--exclude", tmp_path / "eval.jsonl", "--n-docs", 4))
    assert re.search(r"search.jsonl: .* 2 examples .*\(kv-10, ...\)", complaint)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--low", "2", "--high", "1"], "--high: "),
        (["--curve", "spline"], "'--curve': 'spline' "),
    ],
)
def test_bad_search_options(capsys, config, more, complaint):
    assert complaint in fails(capsys, *search_words(config, "--n-docs", 4, "--max-new-tokens", 1, *more))


def test_a_model_without_rope_cannot_be_searched(capsys, config, tmp_path, tokenizer):
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=41))
    save_model(model, tokenizer, tmp_path / "gpt2")
    words = search_words(config.model_copy(update={"model": str(tmp_path / "gpt2")}), "--n-docs", 4)
    assert f"{tmp_path / 'gpt2'}: no rotary " in fails(capsys, *words, "--max-new-tokens", 1)


@pytest.fixture
def refused(capsys, config, tmp_path):
    """Applies a changed scaling of `config` to a model through the command line; returns the complaint."""
    scale_search(config)
    capsys.readouterr()  # logging may have met the closed stderr of an earlier test

    def run(model=config.model, **changes) -> str:
        file = config.out / "scaling.json"
        write_json(file, json.loads(file.read_text()) | changes)
        return fails(capsys, "apply", "--model", model, "--found", config.out, "--out", tmp_path / "out")

    return run


def test_scalings_that_do_not_fit_are_refused(refused, tmp_path, tokenizer):
    assert "the factor of layer 1, 0.5, is below the bound 1" in refused(factors=[1.0, 0.5])
    assert "the factor of layer 0, 3, is above the bound 2" in refused(factors=[3.0, 1.0])
    assert "3 RoPE factors for a model of 2 layers; give one per layer" in refused(factors=[1.0, 1.1, 1.2])
    assert "field `factors.0`: Input should be a valid number" in refused(factors=["a", 1.0])
    other = tmp_path / "other"
    save_model(tiny_model.untrained(1), tokenizer, other)
    assert "found for another model, " in refused(model=other, factors=[1.0, 1.1])
    save_model(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=41)), tokenizer, tmp_path / "gpt2")
    assert "gpt2: no rotary position embedding to scale" in refused(model=tmp_path / "gpt2")


COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def hub(tmp_path, model_folder, monkeypatch):
    """The hub's cache holds a model named someone/tiny, and no network is asked."""
    cached = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(model_folder, cached / "snapshots" / COMMIT)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    loading._snapshot.cache_clear()
    yield
    loading._snapshot.cache_clear()


@pytest.mark.usefixtures("hub")
def test_a_model_on_the_hub_is_searched_and_scaled(capsys, config, tmp_path):
    words = search_words(config.model_copy(update={"model": "someone/tiny"}), "--n-docs", 4, "--max-new-tokens", 1)
    assert run(capsys, *words, "--generations", 1, "--population", 4)[0] == 0
    assert read_scaling(config.out).model_digest == COMMIT
    words = ["apply", "--found", config.out, "--model"]
    assert run(capsys, *words, "someone/tiny", "--out", tmp_path / "scaled")[0] == 0
    assert read_config(tmp_path / "scaled")[CONFIG_KEY] == read_scaling(config.out).factors
    assert not (tmp_path / "scaled" / "model.safetensors").is_symlink()
    complaint = fails(capsys, *words, "someone/other", "--out", tmp_path / "other")
    assert "someone/other: no such folder, nor a model on the hub" in complaint
