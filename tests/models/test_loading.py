"""A model that is not whole is refused wherever it is loaded, in one line."""

import math
import resource
import shutil
from pathlib import Path

import pytest
import torch
from llamas import random_model
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, LlamaConfig

from posgap.cli.main import main
from posgap.demo import tiny_model
from posgap.foundation.errors import BadModel, BadOutput, PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.mitigations.in_force import load_model
from posgap.models.loading import _require_packed, load_config, load_tokenizer, require_finite_files, save_model
from posgap.models.memory import give_back_freed

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def copy(model_folder, tmp_path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def change(folder: Path, weights: dict[str, torch.Tensor | None]) -> None:
    """Replaces weights of the file, adds some, or, where they are None, takes them out."""
    file = folder / "model.safetensors"
    changed = {name: weight for name, weight in (load_file(file) | weights).items() if weight is not None}
    save_file(changed, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({NORM: None}, f"missing: {NORM}; "),
        ({NORM: None, "model.norm.weight": None}, f"missing: {NORM} and 1 "),
        ({"model.layers.7.x": torch.ones(2)}, ": model.layers.7.x; "),
        ({NORM: torch.ones(3)}, f"shape: {NORM}; "),
        ({NORM: torch.full((64,), math.nan)}, f"NaN .*: {NORM}; "),
        ({NORM: torch.full((64,), -math.inf)}, f"NaN .*: {NORM}; "),
    ],
)
def test_weights_that_are_not_whole_are_refused(copy, capfd, weights, complaint):
    change(copy, weights)
    with pytest.raises(BadModel, match=f"^{copy}: .*{complaint}"):
        load_model(str(copy))
    assert "MISSING" not in capfd.readouterr().err


def test_one_weight_that_is_no_number_is_seen(copy):
    embeddings = load_file(copy / "model.safetensors")["model.embed_tokens.weight"]
    embeddings[3, 5] = math.nan
    change(copy, {"model.embed_tokens.weight": embeddings})
    for check in (lambda: load_model(str(copy)), lambda: require_finite_files(copy)):
        with pytest.raises(BadModel, match=r"NaN .*: model.embed_tokens.weight"):
            check()


def test_weights_that_bitsandbytes_would_first_pack_are_refused_on_a_processor():
    """Which it does not, and ends in an AssertionError at the first prompt; packed ones run there."""
    model, packed = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    packed.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), requires_grad=False)
    for each in (model, packed):
        each.quantization_method = "bitsandbytes"
    _require_packed("m", packed)
    with pytest.raises(BadModel, match=r"^m: config.json .* bitsandbytes"):
        _require_packed("m", model)


def test_what_a_family_leaves_out_or_adds_is_no_fault(copy):
    tied = load_file(copy / "model.safetensors")["model.embed_tokens.weight"]
    plain = load_model(str(copy)).state_dict()
    change(copy, {"lm_head.weight": tied.clone(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert all(torch.equal(weight, plain[name]) for name, weight in load_model(str(copy)).state_dict().items())
    require_finite_files(copy)


@pytest.mark.parametrize(("name", "load"), [("config.json", load_model), ("tokenizer.json", load_tokenizer)])
@pytest.mark.parametrize("content", ["[" * 99_999, "[]", "{}", "", "NaN", "\0"])
def test_a_config_or_tokenizer_that_is_none_is_refused(copy, name, load, content):
    (copy / name).write_text(content)
    with pytest.raises(PosgapError, match=f"^{copy}: ") as told:
        load(str(copy))
    assert len(str(told.value).splitlines()) == 1


def test_a_wrong_field_of_a_config_is_named(copy):
    """transformers names it in a second line."""
    write_json(copy / "config.json", read_json(copy / "config.json") | {"layer_types": ["full_attention"] * 5})
    with pytest.raises(BadModel, match=r"num_hidden_layers.* \(5\)"):
        load_config(str(copy))


def test_an_adapter_is_refused_with_what_merges_it(copy):
    write_json(copy / "adapter_config.json", {"base_model_name_or_path": "base"})
    for load in (load_model, load_config, load_tokenizer):
        with pytest.raises(BadModel, match=r"from_pretrained\(FOLDER\).merge_and_unload\(\)"):
            load(str(copy))


def test_a_config_that_names_rope_twice_is_refused(copy):
    """transformers reads `rope_scaling`, and loses the other's `rope_theta`."""
    file = copy / "config.json"
    whole = read_json(file) | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}
    write_json(file, whole)
    assert load_config(str(copy)).rope_parameters["rope_theta"] == 1e5
    write_json(file, whole | {"rope_scaling": {"type": "yarn", "factor": 4.0}})
    with pytest.raises(BadModel, match=f"^{file}: rope_scaling .* rope_parameters, .* 100000 "):
        load_config(str(copy))


@pytest.mark.parametrize("kept", [0, 7, 50, -500])
def test_a_file_of_weights_that_is_cut_off_is_refused(copy, kept):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    for check in (lambda: load_model(str(copy)), lambda: require_finite_files(copy)):
        with pytest.raises(PosgapError, match=f"^{copy}") as told:
            check()
        assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    "place", [".w.safetensors", "../w.safetensors", "sub/w.safetensors", "/{}/w.safetensors", None]
)
def test_weights_that_the_digest_does_not_cover_are_not_read(copy, tmp_path, place):
    """They could be exchanged after the sweep."""
    weights = load_file(copy / "model.safetensors")
    named = place and place.format(tmp_path)
    if place:
        target = copy / named
        target.parent.mkdir(exist_ok=True)
        shutil.move(copy / "model.safetensors", target)
    write_json(copy / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(weights, named)})
    with pytest.raises(BadModel, match=f"^{copy}: .* {named!r}, .* digest "):
        load_model(str(copy))


def test_a_tokenizer_whose_replacements_never_end_is_refused(copy):
    doubles = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    told = read_json(copy / "tokenizer.json")
    sequence = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [doubles] * 30}] * 2}
    write_json(copy / "tokenizer.json", told | {"normalizer": sequence})
    with pytest.raises(BadModel, match="tokenizer.json: .* 1e.18 "):
        load_tokenizer(str(copy))


def test_a_linked_folder_and_a_file_that_the_config_names_are_refused(copy, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (copy / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadModel, match="additional_chat_templates: "):
        load_tokenizer(str(copy))
    (copy / "additional_chat_templates").unlink()
    shutil.copy(copy / "model.safetensors", copy / ".w.safetensors")
    write_json(copy / "config.json", read_json(copy / "config.json") | {"transformers_weights": ".w.safetensors"})
    with pytest.raises(BadModel, match=f"^{copy}: .* '.w.safetensors', "):
        load_model(str(copy))


def test_a_stage_measures_no_model_that_is_not_whole(copy, tmp_path, capsys):
    change(copy, {NORM: None})
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 8)
    words = ["--texts", tmp_path / "t.txt", "--model", copy, "--length", "8", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit) as stopped:
        main(["rollout", "measure", *map(str, words)])
    assert stopped.value.code == 2
    assert f": {NORM}; " in (said := capsys.readouterr().err) and f"posgap: error: {copy}: " in said
    assert not (tmp_path / "out").exists()


def test_a_generation_config_that_transformers_refuses_is_told_in_a_line(tokenizer, tmp_path):
    model = tiny_model.untrained(0)
    model.generation_config.top_k = 7  # without sampling
    with pytest.raises(BadOutput, match="top_k") as refused:
        save_model(model, tokenizer, tmp_path / "model")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("config, cap", [(Gemma2Config, 1.0), (Gemma2Config, None), (LlamaConfig, None)])
def test_attention_whose_scores_are_capped_is_read_with_its_cap(tmp_path, config, cap):
    """Older transformers' sdpa, `make oldest` says, leaves the cap out and is the default."""
    ids = torch.arange(3, 35)[None]
    capped = {"attn_logit_softcapping": cap} if config is Gemma2Config else {}
    random_model(config, head_dim=8, **capped).float().save_pretrained(tmp_path)
    model = load_model(tmp_path)
    read = model(input_ids=ids).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(read, model(input_ids=ids).logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "claims",
    [
        {"hidden_size": 10**7},
        {"vocab_size": 10**7},
        {"num_hidden_layers": 10**7},
        {"num_attention_heads": 10**9, "num_key_value_heads": 10**9},
        {"intermediate_size": 10**11},
        {"head_dim": 10**9},
    ],
)
def test_a_config_that_claims_more_than_its_weights_is_refused_before_loading(claims, copy):
    write_json(copy / "config.json", read_json(copy / "config.json") | claims)
    with pytest.raises(BadModel) as told:
        load_model(str(copy))
    assert told.value.at == str(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8e6  # kB; of such a size it had taken 15.6 GB


def test_a_tokenizer_with_ids_that_the_model_does_not_have_is_refused(copy):
    tokenizer = load_tokenizer(str(copy))
    rows = load_config(str(copy)).vocab_size
    padding = [f"<more{number}>" for number in range(rows - len(tokenizer))]
    tokenizer.add_tokens([*padding, "<pad of its own>"])
    tokenizer.pad_token = "<pad of its own>"
    tokenizer.save_pretrained(copy)
    assert load_tokenizer(str(copy)).pad_token_id == tokenizer.eos_token_id
    tokenizer.add_tokens(["<beyond>"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(BadModel) as told:
        load_tokenizer(str(copy))
    assert str(rows + 1) in str(told.value) and told.value.at == str(copy)


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def test_what_was_freed_is_given_back_to_the_system():
    """Two hundred megabytes in pieces, beneath one that stays."""
    torch.ones(7 << 20)  # once this is freed, glibc takes smaller pieces from its heap
    pieces = [torch.ones(1 << 18) for _ in range(200)]
    del pieces[:-1]
    kept = anonymous_bytes()
    give_back_freed()
    assert kept - anonymous_bytes() > 150e6
