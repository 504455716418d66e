"""The families of models that transformers has: the table in docs, and a handful tried again."""

import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import exports
import families

from posgap.errors import PosgapError
from posgap.models.loading import load_model, save_model

TABLE = (ROOT / "docs" / "families.md").read_text()


def table_of(section: str) -> list[list[str]]:
    """The rows of a section's table, its head first."""
    part = TABLE.partition(f"<!-- {section} -->")[2].partition(f"<!-- /{section} -->")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]


def test_the_table_has_the_families_that_the_script_tries_and_all_answer_as_alone():
    rows = table_of("families")
    assert [row[0] for row in rows[1:]] == list(families.ROWS)
    assert len(rows) > 90 and {row[2] for row in rows[1:]} == {"equal"}


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v2", "llama4_text", "falcon, ALiBi", "phi3, long RoPE", "mamba"])
def test_a_family_is_as_the_table_says(name):
    row = families.tried(name)
    assert families.table([row]).splitlines()[-1] in TABLE.splitlines()


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("bert", {}, "reads both ways"),
        ("xlnet", {}, "reads both ways"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "reads both ways"),
        ("bert", {"is_decoder": True}, ""),
        ("bloom", {}, ""),
        ("gemma3_text", {}, ""),
    ],
)
def test_a_model_that_reads_both_ways_is_refused_when_it_is_loaded(name, settings, complaint, tokenizer, tmp_path):
    save_model(families.build(name, **settings), tokenizer, tmp_path / "model")
    if not complaint:
        assert load_model(str(tmp_path / "model")) is not None
        return
    with pytest.raises(PosgapError, match=complaint) as refused:
        load_model(str(tmp_path / "model"))
    assert "\n" not in str(refused.value)


def test_the_table_of_exports_has_the_families_that_the_script_tries_and_all_are_equal_or_refused_before_training():
    rows = table_of("exports")
    assert [row[0] for row in rows[1:]] == exports.FAMILIES and len(rows) > 15
    assert {row[1] for row in rows[1:]} == {"equal"}
    assert all(row[2] == "equal" or row[2].startswith("lora_rank: peft cannot adapt") for row in rows[1:])


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen3_moe", "llama4_text", "falcon", "mamba"])
def test_a_trained_model_of_a_family_is_exported_as_the_table_says(family):
    assert exports.table([exports.tried(family)]).splitlines()[-1] in TABLE.splitlines()
