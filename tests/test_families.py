"""The families of models that transformers has: the table in docs, and a handful tried again."""

import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.errors import PosgapError
from posgap.models.loading import load_model, save_model

TABLE = (ROOT / "docs" / "families.md").read_text()


def test_the_table_has_the_families_that_the_script_tries_and_all_answer_as_alone():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")
    ]
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
