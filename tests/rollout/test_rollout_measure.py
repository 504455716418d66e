"""Measurements on random-weight models of seven families, each against a brute-force twin."""

import itertools
import logging
import math
import re
import sys

import numpy as np
import pytest
import torch
from builders import prompt_builder
from examples import kv_example
from places import ROOT
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from posgap.data.reading import write_examples
from posgap.foundation.errors import BadModel, BadOption, Malformed, PosgapError
from posgap.foundation.files import read_model
from posgap.measurement.probe import Probe, Response
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models.loading import eager_attention, load_tokenizer, save_model
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.options.rollout_measure import RolloutMeasureConfig
from posgap.options.rollout_predict import RolloutPredictConfig
from posgap.options.sweep import SweepConfig
from posgap.rollout.attention import last_row
from posgap.rollout.decoders import Decoder, position_encoding
from posgap.rollout.documents import PARTS, SINK_TIMES, MeasuredPrompt, among_documents, by_part, shape_of
from posgap.rollout.encodings import alibi_slopes
from posgap.rollout.files import PREDICTION_FILE, Prediction, read_document_shares, read_influences, read_measurement
from posgap.rollout.measurement import INFLUENCES, OF_VALUES, Statistics, measure_influence
from posgap.rollout.texts import read_text
from posgap.tasks.placements import Placement
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make
from posgap.verbs.rollout_measure import rollout_measure
from posgap.verbs.rollout_predict import rollout_predict
from posgap.verbs.sweep import sweep_model

sys.path.append(str(ROOT / "benchmarks"))
import families

N, TEXTS, LAYERS, HEADS, VOCABULARY = 17, 5, 3, 6, 50
RANDOM = {"initializer_range": 0.4}


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=HEADS, **RANDOM,
        )
    )  # fmt: skip


def qwen():
    """Grouped-query heads."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=2, **RANDOM,
        )
    )  # fmt: skip


def bloom():
    """ALiBi, and an attention module that returns its output with the residual stream already added."""
    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=48, n_layer=LAYERS, n_head=HEADS, **RANDOM))


def gpt2():
    """Learned positions."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=LAYERS, n_head=HEADS, **RANDOM)
    )


def phi3():
    """The map that makes queries, keys and values is declared after the one that writes to the stream."""
    return Phi3ForCausalLM(
        Phi3Config(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, pad_token_id=0, **RANDOM,
        )
    )  # fmt: skip


def gemma2():
    """What the attention makes is normalised before it is added; a sliding window at every other layer."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8, sliding_window=6, **RANDOM,
            attn_implementation="eager",  # as `load_model` has it
        )
    )  # fmt: skip


def falcon():
    """ALiBi divided with the scores, and attention that gives its matrices only when its layer is asked for them."""
    return FalconForCausalLM(
        FalconConfig(
            vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=LAYERS, num_attention_heads=HEADS, alibi=True,
            new_decoder_architecture=False, parallel_attn=False, multi_query=False, **RANDOM,
        )
    )  # fmt: skip


def scaled():
    """A Llama whose layers see positions divided by factors of their own."""
    return scale_model(llama(), [1.0, 1.5, 2.0])


FAMILIES = {f.__name__: f for f in (llama, qwen, bloom, gpt2, phi3, gemma2, falcon, scaled)}


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.manual_seed(0)
    return FAMILIES[request.param]().eval()


@pytest.fixture
def ids():
    return torch.randint(VOCABULARY, (TEXTS, N), generator=torch.Generator().manual_seed(1))


def slopes_of(model) -> np.ndarray:
    return np.array(position_encoding(model.config).get("slopes", np.zeros(HEADS)))


def test_every_family_against_its_own_matrices(model, ids):
    """The twin asks transformers for all matrices at once and works text by text in numpy."""
    statistics, influence, windows, *_ = measure_influence(model, [ids[:2], ids[2:]], N, slopes_of(model), 0.2)
    with eager_attention(model), torch.no_grad():
        output = model(input_ids=ids, output_attentions=True, output_hidden_states=True)
        lambdas = strengths(model, ids)
    matrices = torch.stack(output.attentions).double().numpy()  # [L, B, H, N, N]
    assert matrices.shape == (LAYERS, TEXTS, HEADS, N, N)
    np.testing.assert_allclose(statistics["first_mass"], matrices[:, :, :, 1:, 0].mean((1, 3)), rtol=1e-5)
    diagonal = np.diagonal(matrices, axis1=3, axis2=4)
    np.testing.assert_allclose(statistics["diagonal_mass"], diagonal[..., 1:].mean((1, 3)), rtol=1e-5)
    for distance in (0, 1, N - 1):
        band = np.diagonal(matrices, -distance, 3, 4)
        np.testing.assert_allclose(statistics["distance"][..., distance], band.mean((1, 3)), rtol=1e-5)
    window = getattr(model.config, "sliding_window", None) or N
    wide = [window if layer_type == "sliding_attention" else N for layer_type in types(model)]
    assert windows == wide
    for key, layer in itertools.product((0, 5), range(LAYERS)):
        seen = matrices[layer, :, :, key : key + wide[layer], key] > 0.2
        np.testing.assert_allclose(statistics["sink"][layer, :, key], seen.mean((0, 2)), rtol=1e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(matrices * np.log(matrices), axis=-1)
    np.testing.assert_allclose(statistics["entropy"], entropy[..., 1:].mean((1, 3)), rtol=1e-4)
    np.testing.assert_allclose(statistics["lambdas"], lambdas.mean((1, 2)), rtol=1e-5)
    for text in range(TEXTS):
        layers = [families.MatrixAttention(matrices[layer, text].mean(0)) for layer in range(LAYERS)]
        expected = last_row(N, layers, lambdas[:, text].mean(-1))
        np.testing.assert_allclose(influence["rollout"][text], expected, rtol=1e-4)
        bare = last_row(N, layers, np.ones(LAYERS))
        np.testing.assert_allclose(influence["rollout_without_residuals"][text], bare, rtol=1e-4)
    for rows in influence.values():
        np.testing.assert_allclose([row.sum() for row in rows], 1)


def test_matrices_are_of_the_attention_that_answers(model, ids):
    """Eager Falcon with ALiBi adds its biases twice, which the swept model does not."""
    with torch.no_grad():
        answered = model(input_ids=ids).logits
        with eager_attention(model):
            torch.testing.assert_close(model(input_ids=ids).logits, answered, rtol=1e-3, atol=1e-4)
        assert torch.equal(model(input_ids=ids).logits, answered)


def types(model) -> list[str]:
    return getattr(model.config, "layer_types", None) or ["full_attention"] * LAYERS


def strengths(model, ids) -> np.ndarray:
    """|a| / (|x| + |a|) [L, B, N] from hidden states, with a found by subtraction: x + a is what the
    second normalisation of a layer reads."""
    streams = []
    norms = {"gpt2": "ln_2", "gemma2": "pre_feedforward_layernorm"}
    name = norms.get(model.config.model_type, "post_attention_layernorm")
    handles = [
        module.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
        for path, module in model.named_modules()
        if path.endswith(name)
    ]
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    out = []
    for before, after in zip(hidden, streams, strict=False):
        x, a = before.norm(dim=-1), (after - before).norm(dim=-1)
        out.append((a / (x + a)).numpy())
    return np.array(out)


@pytest.mark.parametrize(
    "name",
    ["minicpm3", "doge, stream scaled", "minimax, no linear attention", "bloom, post-norm", "gpt_neox", "axk2"],
)
def test_streams_and_branches_that_the_layer_scales_or_normalises(name):
    """The benchmark's twin has the sum that each family's code makes, written out."""
    assert families.rollout_row(name)[1] == "equal"


def test_windows_and_angles_are_read_by_layer():
    _, said, windows, angles, _ = families.rollout_row("cohere2")
    assert (said, windows) == ("equal", "8, 8, 8, all") and angles.endswith("1 to 0.001, nothing")
    _, said, _, angles, _ = families.rollout_row("llama, llama3 RoPE")
    assert (said, angles) == ("equal", "0.576 to 0.000125")


def test_attention_on_sink_logits_is_kept_apart():
    model = families.build_family("gpt_oss")
    ids = torch.randint(3, 60, (2, N), generator=torch.Generator().manual_seed(1))
    measured = measure_influence(model, [ids], N, np.zeros(4), 0.2)
    with eager_attention(model), torch.no_grad():
        matrices = model(input_ids=ids, output_attentions=True).attentions
    lost = torch.stack([1 - layer[:, :, 1:].sum(-1).mean((0, 2)) for layer in matrices])
    np.testing.assert_allclose(measured.statistics["unattended"], lost, rtol=1e-4)
    row = torch.eye(N)[-1].expand(2, 1, N)
    for layer in reversed(matrices):
        row = row @ layer.mean(1)
    assert measured.unattended["rollout_without_residuals"] == pytest.approx(
        1 - float(row.sum((1, 2)).mean()), rel=1e-4
    )
    assert 0.02 < measured.unattended["rollout"] < measured.unattended["rollout_without_residuals"]
    np.testing.assert_allclose(np.sum(measured.influence["rollout_without_residuals"], axis=1), 1)


def test_sinks_whose_part_the_family_takes_off_the_output_are_told():
    """Granite with windows returns weights that sum to one; the twin has the sink's logit among the scores."""
    assert families.rollout_row("granitemoe_swa")[1] == "equal, 9 % to sinks' logits"


def test_hybrids_are_measured_by_their_layers_with_attention_and_say_so():
    """The twin multiplies the matrices of those layers alone."""
    assert families.rollout_row("lfm2")[1] == "equal, by 2, 4 of 4 layers"
    decoder = Decoder(families.build_family("lfm2", layer_types=["conv", "full_attention", "conv", "conv"]))
    assert (decoder.numbers, decoder.n_layers, decoder.n_all) == ([2], 1, 4)
    assert decoder.mixing().startswith("of 4 layers these have attention: 2; what tokens pass on otherwise")
    assert "layers 1, 2, 3, 4 mix tokens beside" in Decoder(families.build_family("falcon_h1")).mixing()
    assert Decoder(families.build_family("minimax")).numbers == [1, 3]
    assert Decoder(llama()).mixing() == ""


def test_what_cannot_be_measured_is_refused_in_a_line(ids, monkeypatch):
    with pytest.raises(BadModel, match="^mamba: "):
        Decoder(families.build_family("mamba"))
    model = llama().eval()
    monkeypatch.setattr(model.model.layers[1].self_attn.o_proj, "forward", lambda x: torch.zeros_like(x))
    with pytest.raises(BadModel, match="^LlamaForCausalLM, layer 2: .* stream"):
        measure_influence(model, [ids], N, np.zeros(HEADS), 0.2)


def test_gradients_are_those_of_the_most_probable_token_s_probability(model, ids):
    """The twin reads token ids, text by text, and differentiates the probability itself."""
    influence = measure_influence(model, [ids], N, slopes_of(model), 0.2)[1]
    for text in range(2):
        kept = []
        handle = model.get_input_embeddings().register_forward_hook(
            lambda module, args, output, kept=kept: kept.append(output.requires_grad_()) or kept[-1]
        )
        probability = model(input_ids=ids[text : text + 1]).logits[0, -1].softmax(-1).max()
        handle.remove()
        (gradient,) = torch.autograd.grad(probability, kept)
        norm = gradient[0].norm(dim=-1)
        product = (gradient[0] * kept[0].detach()[0]).norm(dim=-1)
        np.testing.assert_allclose(influence["gradient"][text], norm / norm.sum(), rtol=1e-3)
        np.testing.assert_allclose(
            influence["gradient_times_input"][text], product / product.sum(), rtol=1e-3, atol=1e-6
        )


def test_content_and_slopes_come_back_from_attention_made_of_them():
    """A_ij = softmax(-slope (i - j) + content [i = j]) has just that content score."""
    slopes, content = torch.tensor(alibi_slopes(3)), torch.tensor([0.5, -2.0, 3.0])
    distance = torch.arange(N)[:, None] - torch.arange(N)
    scores = -slopes[:, None, None] * distance + content[:, None, None] * torch.eye(N)
    a = scores.masked_fill(distance < 0, -math.inf).softmax(-1)
    statistics = Statistics(1, 3, N, slopes, 0.2)
    statistics.add_texts(2, N)
    statistics.add_strengths(0, torch.full((2, N), 0.25))
    statistics.add_attention(0, 0, a.expand(2, 3, N, N), distance >= 0)
    means = statistics.means()
    np.testing.assert_allclose(means["content"][0], content, rtol=1e-6)
    np.testing.assert_allclose(means["lambdas"], 0.25)
    np.testing.assert_allclose(means["distance"][0] @ np.arange(N, 0, -1), N)


def test_batches_do_not_change_a_measurement(ids):
    torch.manual_seed(0)
    model = llama().eval()
    whole, all_at_once, *_ = measure_influence(model, [ids], N, np.zeros(HEADS), 0.2)
    parts, one_by_one, *_ = measure_influence(model, ids.split(1), N, np.zeros(HEADS), 0.2)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-4, atol=1e-6)
    for name in all_at_once:
        np.testing.assert_allclose(one_by_one[name], all_at_once[name], rtol=1e-3, atol=1e-7)
    assert model.config._attn_implementation == "sdpa"


def test_encodings_are_read_off_the_config():
    assert position_encoding(llama().config) == {"kind": "rope", "theta": 10000.0, "head_size": 8}
    assert position_encoding(gpt2().config) == {"kind": "learned"}
    assert position_encoding(bloom().config)["slopes"] == alibi_slopes(HEADS).tolist()


@pytest.mark.parametrize("task", ["kv", ""])
def test_a_measurement_says_that_the_last_token_decides_on_a_preamble(tmp_path, model_folder, monkeypatch, task):
    said = Probe([Response(f"The value of it is {i}", i == 0, False, False, 5 if i == 0 else None) for i in range(6)])
    heard = []
    monkeypatch.setattr(
        "posgap.verbs.rollout_measure.listen", lambda generator, builder, asked: heard.extend(asked) or said
    )
    rows = [kv_example(i) for i in range(10)]
    write_examples(tmp_path / "e.jsonl", rows)
    (tmp_path / "text.txt").write_text("find key" * 4000)
    texts = tmp_path / ("e.jsonl" if task else "text.txt")
    asked = {"texts": texts, "model": str(model_folder), "task": task, "n_docs": 4, "length": 0 if task else 8}
    measured = rollout_measure(RolloutMeasureConfig(**asked, limit=9, out=tmp_path / "measured"))
    told = 'answers after words like "The value of it is ...": what reaches the last token decides on these words'
    assert (told in read_measurement(measured).summary) == bool(task)
    # The first of the prompts that are measured, each at its own position.
    assert heard == [(rows[i], Placement((i % 4 + 1,), 4)) for i in range(8 if task else 0)]


@pytest.mark.usefixtures("pictures")
def test_stage_measures_prompts_and_predict_takes_them_over(tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(6)])
    measured = rollout_measure(
        RolloutMeasureConfig(
            texts=tmp_path / "e.jsonl",
            model=str(model_folder),
            task="kv",
            n_docs=4,
            out=tmp_path / "measured",
        )
    )
    measurement = read_measurement(measured)
    assert (measurement.n_texts, measurement.layers, measurement.heads) == (6, 2, 4)
    assert read_influences(measured, measurement, ["rollout"])["rollout"].shape == (6, measurement.sequence_length)
    np.testing.assert_allclose(sum(measurement.influence["gradient"]), 1)
    documents, shares = measurement.documents, read_document_shares(measured, measurement)
    assert documents["positions"] == [1, 2, 3, 4] and documents["prompts"] == [2, 2, 1, 1]
    assert documents["asked"] == [[kv_example(i).id, i % 4 + 1] for i in range(6)]
    # The twin finds each record's tokens by its text alone; prompts here are of one length.
    builder = prompt_builder("kv", str(model_folder), 0)
    whole = read_influences(measured, measurement, ["rollout"])["rollout"]
    for at, gold in ((0, 1), (5, 2)):
        example, placement = kv_example(at), Placement((gold,), 4)
        text = builder.text(example, placement)
        offsets = builder.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        of_records = []
        for key, value in re.findall(r'"([^"]+)": "([^"]+)"', text):
            start = text.index(f'"{key}": "')
            end = start + len(f'"{key}": "{value}')
            of_records.append(whole[at, [i for i, (a, b) in enumerate(offsets) if a < end and b > start]].sum())
        assert len(of_records) == 4
        np.testing.assert_allclose(shares["rollout"][at], np.array(of_records) / sum(of_records), atol=0.03)
    np.testing.assert_allclose(documents["measures"]["rollout"]["documents"], shares["rollout"].mean(0))
    assert sum(documents["measures"]["rollout"]["parts"].values()) == pytest.approx(1)
    mean = shares["rollout"][[0, 4], 0].mean()
    low, high = documents["measures"]["rollout"]["gold_ci95"][0]
    assert documents["measures"]["rollout"]["gold"][0] == pytest.approx(mean) and low <= mean <= high
    assert documents["measures"]["rollout"]["gold_ci95"][3] is None
    assert np.shape(documents["attention_to_gold"]) == (4, 2) and "of the rollout: sinks" in measurement.summary
    assert set(documents["measures"]) == set(measurement.influence) == {*INFLUENCES, *OF_VALUES}
    assert measurement.agreement["of"] == "documents" and len(measurement.agreement["pairs"]) == 15
    assert "agrees (Spearman) with that by gradient" in measurement.summary
    assert "decides on these words" not in measurement.summary
    assert {p.name for p in measured.iterdir()} == {
        "measurement.json", "arrays.npz", "influence.png", "manifest.json",
    }  # fmt: skip
    predicted = rollout_predict(
        RolloutPredictConfig(
            measurement=measured,
            encoding="measured",
            residual=["measured"],
            content=["heads"],
            out=tmp_path / "predicted",
        )
    )
    prediction = read_model(Prediction, predicted, PREDICTION_FILE)
    assert prediction.lambdas == measurement.lambdas and len(prediction.distribution) == measurement.sequence_length
    assert sum(prediction.distribution) == pytest.approx(1)


def test_prompts_of_different_lengths_are_measured_whole(model, ids):
    """Each text's rollout is that of brute force on it alone, and averages count each text's own queries."""
    lengths = (N, N, 13, 9)
    texts = [row[:length] for row, length in zip(ids, lengths)]
    batches = [torch.stack(texts[:2]), texts[2][None], texts[3][None]]
    measured = measure_influence(model, batches, N, slopes_of(model), 0.2)
    alone = [measure_influence(model, [text[None]], len(text), slopes_of(model), 0.2) for text in texts]
    for name, rows in measured.influence.items():
        assert [len(row) for row in rows] == list(lengths)
        for row, one in zip(rows, alone):
            np.testing.assert_allclose(row, one.influence[name][0], rtol=1e-3, atol=1e-7)
    for name in ("first_mass", "diagonal_mass", "entropy", "content", "lambdas"):
        means = np.mean([one.statistics[name] for one in alone], axis=0)
        np.testing.assert_allclose(measured.statistics[name], means, rtol=1e-3, atol=1e-5)
    with eager_attention(model), torch.no_grad():
        matrices = [torch.stack(model(input_ids=t[None], output_attentions=True).attentions)[:, 0] for t in texts]
    for distance in (0, 5, N - 1):
        band = [np.diagonal(m.double().numpy(), -distance, 2, 3) for m in matrices if m.shape[-1] > distance]
        np.testing.assert_allclose(
            measured.statistics["distance"][..., distance], np.concatenate(band, axis=-1).mean(-1), rtol=1e-4, atol=1e-7
        )
    assert measured.windows == alone[0].windows


# The first token, a template's one, the instruction's two, three documents of two, two and three with a token between
# the last two, the question's two, a template's one, and the last token.
ASKED = MeasuredPrompt("e", 2, ((4, 6), (6, 8), (9, 12)), (2, 14))
OWNERS = ["sinks", "template", *["instruction"] * 2, *["documents"] * 4, "instruction", *["documents"] * 3]
OWNERS += [*["question"] * 2, "template", "last token"]


def test_every_token_belongs_to_one_part_and_sinks_to_none_of_the_others():
    row = np.arange(1.0, 17) / np.arange(1, 17).sum()
    shares = dict(zip(PARTS, by_part(row, ASKED)))
    assert shares == pytest.approx({part: row[[owner == part for owner in OWNERS]].sum() for part in PARTS})
    np.testing.assert_allclose(among_documents(row, ASKED), np.array([11, 15, 33]) / 59)
    # A token of a distractor may be a sink; one of the gold document, or the last one, is none.
    n, strong = 2000, SINK_TIMES * 1.5 / 2000
    long = MeasuredPrompt("e", 2, ((4, 6), (6, 8), (9, 12)), (2, n - 2))
    row = np.full(n, 1 / n)
    row[[5, 7, n - 1]] = strong
    shares = dict(zip(PARTS, by_part(row, long)))
    assert shares["sinks"] == pytest.approx(1 / n + strong) and shares["last token"] == strong
    np.testing.assert_allclose(
        among_documents(row, long), np.array([1, 1 + 1.5 * SINK_TIMES, 3]) / (5 + 1.5 * SINK_TIMES)
    )
    assert np.isnan(among_documents(np.eye(16)[0], ASKED)).all()


@pytest.mark.parametrize(
    ("bias", "shape"),
    [
        ((0.1, 0, 0, 0, 0, 0.1), "U-shaped"),
        ((0.1, 0, 0, 0, 0, 0), "primacy"),
        ((0, 0, 0, 0, 0, 0.1), "recency"),
        ((0, 0, 0.1, 0.1, 0, 0), "greatest in the middle"),
        ((0, 0, 0, 0, 0, 0), "of no certain shape"),
    ],
)
def test_the_documents_shares_have_a_shape_where_a_test_says_so(bias, shape):
    noise = np.random.default_rng(1).dirichlet(np.full(6, 20), size=60)
    shares = noise + bias
    found = shape_of(shares / shares.sum(axis=1, keepdims=True))
    assert found["shape"] == shape and (found["flatness_p"] < 0.05) == any(bias)
    few = shape_of(np.random.default_rng(0).dirichlet(np.full(6, 20), size=4))
    assert few["shape"] == "of no certain shape" and shape_of(np.full((9, 2), 0.5)) == shape_of(np.ones((1, 5))) == {}


def test_a_flat_shape_is_named_in_one_of_twenty_draws():
    named = [
        shape_of(np.random.default_rng(seed).dirichlet(np.full(10, 5), size=20))["flatness_p"] < 0.05
        for seed in range(200)
    ]
    assert 2 <= sum(named) <= 18


def test_predict_takes_over_the_factors_of_a_scaled_model(tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 8)
    model = scale_model(load_model(str(model_folder)), [1.0, 2.0])
    save_model(model, load_tokenizer(str(model_folder)), tmp_path / "scaled")
    measured = {}
    for name, model in {"plain": model_folder, "scaled": tmp_path / "scaled"}.items():
        words = {"texts": tmp_path / "t.txt", "model": str(model), "length": 32, "out": tmp_path / f"measured-{name}"}
        measured[name] = rollout_measure(RolloutMeasureConfig(**words))

    def predicted(name: str, out: str, **more) -> list[float]:
        config = RolloutPredictConfig(measurement=measured[name], encoding="measured", out=tmp_path / out, **more)
        return read_model(Prediction, rollout_predict(config), PREDICTION_FILE).distribution

    taken_over = predicted("scaled", "taken-over")
    # The measured angles are in single precision.
    assert taken_over == pytest.approx(predicted("plain", "spelled", rope_factors=[1.0, 2.0]), rel=1e-5)
    assert taken_over != pytest.approx(predicted("plain", "without"), rel=1e-3)


def test_texts_are_cut_to_one_length(tmp_path, tokenizer):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 4)
    sequences = list(read_text(tmp_path / "t.txt", tokenizer, 11, 0).stream)
    assert len(sequences) == 6 and {len(s) for s in sequences} == {11}
    assert {s[0] for s in sequences} == {tokenizer.bos_token_id}
    (tmp_path / "t.jsonl").write_text('{"text": "0123"}\n{"text": "0123456789"}\n')
    assert len(list(read_text(tmp_path / "t.jsonl", tokenizer, 8, 0).stream)) == 1
    with pytest.raises(PosgapError, match=" 256 tokens; .*`length`"):
        read_text(tmp_path / "t.txt", tokenizer, 0, 0)
    (tmp_path / "t.jsonl").write_text('{"words": 1}\n')
    with pytest.raises(Malformed, match=r"t\.jsonl:1: field `text`"):
        read_text(tmp_path / "t.jsonl", tokenizer, 8, 0)


def test_texts_count_as_measured_once_they_are(tmp_path, tokenizer, caplog):
    """Each batch is read before it is measured, which takes long on a real model."""
    caplog.set_level(logging.INFO, logger="posgap")
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 4)
    batches = read_text(tmp_path / "t.txt", tokenizer, 11, 3).batches(33, "measure")
    assert next(batches).shape == (3, 11) and not caplog.messages
    assert next(batches, None) is None
    (line,) = caplog.messages
    assert line.startswith("measure: 3 of 3 in ")


def test_a_file_that_is_no_text_is_refused(tmp_path, tokenizer):
    path = tmp_path / "t.txt"
    path.write_bytes(b" 0 1234 567 89abcdef" * 50 + b"\xff")
    with pytest.raises(Malformed) as told:
        read_text(path, tokenizer, 11, 0)
    assert told.value.at == str(path)


def test_predict_says_what_it_lacks(tmp_path):
    with pytest.raises(BadOption, match="^layers: .*`measurement`"):
        rollout_predict(RolloutPredictConfig(out=tmp_path / "p", sequence_length=8))
    sizes = {"out": tmp_path / "p", "sequence_length": 8, "layers": 2, "heads": 2}
    with pytest.raises(BadOption, match="^residual: .*`measurement`"):
        rollout_predict(RolloutPredictConfig(**sizes, residual=["measured"]))
    with pytest.raises(BadOption, match="^window: "):
        rollout_predict(RolloutPredictConfig(**sizes, mask="window"))


@pytest.mark.full
def test_a_flat_model_is_flat_on_natural_questions(tmp_path, nq_file):
    """Prompts of real passages, which differ in length: a layer whose attention is even gives each document its part,
    also at the first positions, and says so."""
    imported = data_import(ImportConfig(format="litm-qa", input=nq_file, out=tmp_path / "oracle.jsonl", last=48))
    examples = data_make(MakeConfig(kind="qa", examples=imported, n_docs=6, out=tmp_path / "nq.jsonl"))
    words = Tokenizer(WordLevel(unk_token="?"))
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator(examples.read_text().splitlines(), WordLevelTrainer(special_tokens=["?", "<s>"]))
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=words.get_vocab_size(), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=4096, initializer_range=0.01,
        )
    )  # fmt: skip
    save_model(model, PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<s>"), tmp_path / "flat")
    asked = {"texts": examples, "model": str(tmp_path / "flat"), "task": "qa", "n_docs": 6}
    measured = read_measurement(rollout_measure(RolloutMeasureConfig(**asked, out=tmp_path / "m")))
    assert measured.shortest < measured.sequence_length and measured.bins == 100
    rollout = measured.documents["measures"]["rollout"]
    assert rollout["shape"] == "of no certain shape" and rollout["flatness_p"] > 0.05
    for share, (low, high) in zip(rollout["documents"], rollout["documents_ci95"]):
        assert low - 0.02 < 1 / 6 < high + 0.02 and abs(share - 1 / 6) < 0.03
    assert min(rollout["gold"]) > 0.1
    parts = rollout["parts"]  # the last token keeps most, since such a layer adds little to it
    assert parts["documents"] > 0.6 * (1 - parts["last token"]) and parts["sinks"] < 0.01


def test_a_measurement_beside_a_sweep_asks_its_positions_and_keeps_its_accuracy(tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(4)])
    words = {"model": str(model_folder), "task": "kv", "n_docs": 4}
    of_sweep = {"examples": tmp_path / "e.jsonl", **words}
    swept = sweep_model(SweepConfig(**of_sweep, positions=[1, 3, 4], out=tmp_path / "sweep"))
    measure_it = RolloutMeasureConfig(texts=tmp_path / "e.jsonl", sweep=swept, **words, out=tmp_path / "m")
    measured = read_measurement(rollout_measure(measure_it))
    assert measured.documents["positions"] == [1, 3, 4] == measured.sweep.positions
    assert measured.sweep.accuracy == read_sweep(swept).accuracy
    other = sweep_model(SweepConfig(**of_sweep, limit=2, shuffle=1, out=tmp_path / "shuffled"))
    for change, complaint in (
        ({"n_docs": 3}, " 4 documents of the task kv, .* 3 of kv;"),
        ({"length": 30}, "^length: "),
        ({"task": ""}, "^sweep: .*`task`"),
        ({"sweep": other}, "shuffled: "),
    ):
        with pytest.raises(BadOption, match=complaint):
            rollout_measure(measure_it.model_copy(update={**change, "out": tmp_path / "refused"}))
