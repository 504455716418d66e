"""GGUF files as models: equal to the folder that they were made of, and refused in a line where they cannot be."""

from types import SimpleNamespace

import gguf
import pytest
import tiny_gguf
import torch
from conftest import kv_example

from posgap.api import library
from posgap.foundation.errors import PosgapError
from posgap.models.gguf import convert
from posgap.models.loading import load_as_trained, load_tokenizer

KINDS = gguf.GGMLQuantizationType


def converted(file, out):
    convert(file, out, file.name)
    return load_as_trained(str(out), "float32"), load_tokenizer(str(out))


@torch.inference_mode()
def logits(model):
    return model(input_ids=torch.arange(4, 24)[None]).logits


@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.Q8_0], ids=lambda kind: kind.name)
def test_a_file_gives_the_logits_of_the_weights_that_it_holds(kind, tmp_path):
    model = tiny_gguf.llama()
    loaded, tokenizer = converted(tiny_gguf.write(tmp_path / "tiny.gguf", model, kind), tmp_path / "out")
    expected = logits(tiny_gguf.rounded(model, kind) if kind != KINDS.F32 else model)
    torch.testing.assert_close(logits(loaded), expected, atol=1e-5, rtol=1e-4)
    assert tokenizer.decode(tokenizer("the cat")["input_ids"]) == "the cat" and tokenizer.chat_template


def test_a_file_that_the_disk_has_no_room_for_is_not_begun(tmp_path, monkeypatch):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama())
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(PosgapError, match=r"^tiny\.gguf: dequantising it to float32 takes .* or set POSGAP_CACHE to"):
        convert(file, tmp_path / "new" / "out", file.name)
    assert not (tmp_path / "new").exists()


def test_an_answer_ends_where_the_chat_template_closes_a_turn(tmp_path):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama(), eos=0)
    loaded, _ = converted(file, tmp_path / "out")
    assert set(loaded.generation_config.eos_token_id) == {0, tiny_gguf.END}


def test_a_sweep_of_the_file_is_that_of_its_folder_and_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama())
    convert(file, tmp_path / "folder", file.name)
    examples = [kv_example(i, 4) for i in range(3)]
    by_file, by_folder = (
        library.sweep(str(model), examples, n_docs=4, max_new_tokens=6) for model in (file, tmp_path / "folder")
    )
    assert by_file.frame.response.tolist() == by_folder.frame.response.tolist()
    assert by_file.figures.model.endswith("tiny.gguf") and "cache" not in by_file.figures.model


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:2000], "cut off or damaged"),
        (lambda data: data[:-4000], "cut off or damaged"),
        (lambda data: b"PK" + data[2:], "is no GGUF file"),
        (lambda data: b"", "is no GGUF file"),
    ],
    ids=["half a header", "half its weights", "another format", "empty"],
)
def test_a_damaged_file_is_refused_and_leaves_no_folder(change, complaint, tmp_path):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama())
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(PosgapError, match=rf"^tiny\.gguf: .*{complaint}"):
        convert(file, tmp_path / "out", file.name)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"split__count": 2}, "one of 2 parts of a model; join them"),
        ({"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}, r"scales RoPE \(yarn, 4\)"),
        ({"without": ("blk.1.ffn_up.weight",)}, "weights are missing"),
        ({"architecture": "no-such-kind"}, "does not read this GGUF file"),
    ],
    ids=["a part", "scaled positions", "without a weight", "unknown architecture"],
)
def test_a_file_that_would_be_another_model_is_refused(options, complaint, tmp_path):
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.llama(), **options)
    with pytest.raises(PosgapError, match=rf"^tiny\.gguf: .*{complaint}"):
        convert(file, tmp_path / "out", file.name)
