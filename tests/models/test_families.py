"""The families of models that transformers has: the table in docs, and a handful tried again."""

import json
import sys

import pytest
import torch
from accelerate import Accelerator
from places import ROOT
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.distillation.export import Origin, TrainedModel, export
from posgap.distillation.lora import add_adapters
from posgap.foundation.errors import BadModel, PosgapError
from posgap.foundation.files import read_object
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation, scale_model
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.loading import save_model
from posgap.scaling.serve_check import serve_check

TABLES = ROOT / "benchmarks" / "tables"


def table_of(section: str) -> list[list[str]]:
    """The rows of a section's table, its head first."""
    part = (TABLES / f"{section}.md").read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]


def test_the_table_has_the_families_that_the_script_tries_and_all_answer_as_alone():
    rows = table_of("families")
    assert [row[0] for row in rows[1:]] == list(families.ROWS)
    assert len(rows) > 90 and {row[2] for row in rows[1:]} == {"equal"}


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v2", "llama4_text", "falcon, ALiBi", "phi3, long RoPE", "mamba"])
def test_a_family_is_as_the_table_says(name):
    row = families.generation_row(name)
    assert (
        families.table("families", [row]).splitlines()[-1]
        in (TABLES / "families.md").read_text(encoding="utf-8").splitlines()
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("bert", {}, "encoder"),
        ("xlnet", {}, "encoder"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "encoder"),
        ("bert", {"is_decoder": True}, ""),
        ("bloom", {}, ""),
        ("gemma3_text", {}, ""),
    ],
)
def test_a_model_that_reads_both_ways_is_refused_when_it_is_loaded(name, settings, complaint, tokenizer, tmp_path):
    save_model(families.build_family(name, **settings), tokenizer, tmp_path / "model")
    if not complaint:
        assert load_model(str(tmp_path / "model")) is not None
        return
    with pytest.raises(BadModel, match=complaint) as refused:
        load_model(str(tmp_path / "model"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen2_5_vl", ".* images .* qwen2_5_vl, "),
        ("t5", "(?!.* images).* t5, "),
    ],
)
def test_a_family_without_a_causal_language_model_is_refused_in_a_line_that_says_so(family, said, tmp_path):
    CONFIG_MAPPING[family]().save_pretrained(tmp_path / "model")
    with pytest.raises(BadModel, match=f"^{tmp_path / 'model'}: {said}") as refused:
        load_model(str(tmp_path / "model"))
    assert "\n" not in str(refused.value)


def test_a_model_of_which_the_text_alone_is_read_has_what_its_folder_names(tokenizer, tmp_path):
    """transformers keeps of such a folder's config the part about text, without what stands beside it."""
    kinds, factors = ["full_attention"] * 2, [1.3, 1.7]
    model = families.build_family("qwen3_5_text", num_hidden_layers=2, layer_types=kinds, head_dim=16)
    folder, ids = tmp_path / "model", torch.arange(3, 20)[None]
    save_model(model, tokenizer, folder)
    plain = model(input_ids=ids).logits
    scale_model(model, factors)
    scaled = model(input_ids=ids).logits
    apply_mitigation(model, "ms-poe", {"first_layer": 0})
    wanted = model(input_ids=ids).logits
    assert not torch.equal(scaled, plain) and not torch.equal(wanted, scaled)

    whole = {"model_type": "qwen3_5", "text_config": read_object(folder / "config.json"), CONFIG_KEY: factors}
    (folder / "config.json").write_text(json.dumps(whole))
    serve_check(folder, "transformers")
    bare = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(bare(input_ids=ids).logits, plain)
    assert torch.equal(scale_model(bare)(input_ids=ids).logits, scaled)
    remove_mitigation(bare, "lpes")
    assert torch.equal(scale_model(bare)(input_ids=ids).logits, plain)  # what was taken back stays so
    (folder / "config.json").write_text(json.dumps(whole | {MITIGATIONS_KEY: getattr(model.config, MITIGATIONS_KEY)}))
    loaded = load_model(str(folder))
    assert list(in_force(loaded)) == ["lpes", "ms-poe"]
    assert torch.equal(loaded(input_ids=ids).logits, wanted)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen3_moe", "llama4_text", "falcon", "mamba"])
def test_a_trained_model_of_a_family_has_its_tensors_when_it_is_written(family, rank, tokenizer, tmp_path):
    """`export` itself reads what it wrote and holds it to the trained model's logits."""
    name, settings = families.ROWS[family]
    base, out = tmp_path / "base", tmp_path / "out"
    save_model(families.build_family(name, **settings), tokenizer, base)
    model = load_model(str(base), "float32")
    origin = Origin(str(base), rank, "float32", seed=0, keeps_steps=False)
    try:
        if rank:
            add_adapters(model, rank)
    except PosgapError as error:
        assert str(error).startswith("lora_rank: ")
        return
    with torch.no_grad():
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter += 0.05 * torch.randn_like(parameter)
    out.mkdir()
    export(origin, TrainedModel.gather(model, torch.arange(3, 35)[None], Accelerator(cpu=True)), tokenizer, out)
    assert tensor_names(out) == tensor_names(base)


def tensor_names(folder) -> set[str]:
    names = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    return names
