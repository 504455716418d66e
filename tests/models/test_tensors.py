"""What tells a model from others, and what a folder must not have beside it."""

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from posgap.foundation.errors import BadModel, PosgapError
from posgap.foundation.files import digest_path, read_json, write_json
from posgap.models.loading import load_as_trained
from posgap.models.registrable import require_registrable
from posgap.models.tensors import digest_of_tensors, weight_files

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def copy(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "copy")


def sharded(folder, order=1):
    """The folder with its tensors in two shards."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = {name: f"part-{at * order % 2}.safetensors" for at, name in enumerate(tensors)}
    for shard in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == shard}, folder / shard, {"format": "pt"})
    write_json(folder / INDEX, {"metadata": {"total_size": 1}, "weight_map": names})


def with_metadata(folder):
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS, {"format": "pt", "note": "another look"})


def in_another_order(folder):
    """The bytes of the tensors stand in the file in the opposite order."""
    tensors, header, body = load_file(folder / WEIGHTS), {"__metadata__": {"format": "pt"}}, b""
    for name in reversed(list(tensors)):
        data = tensors[name].tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": tensors[name].shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + body)


@pytest.mark.parametrize("change", [sharded, with_metadata, in_another_order], ids=lambda change: change.__name__)
def test_the_same_tensors_in_other_files_are_the_same_model(model_folder, copy, change):
    """Each made the model that was rolled back, or judged before, another one."""
    change(copy)
    assert digest_path(copy) != digest_path(model_folder)
    assert digest_of_tensors(copy) == digest_of_tensors(model_folder) != ""
    require_registrable(copy)
    load_as_trained(str(copy))


def changed(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.update({NORM: tensors[NORM] * 1.001}),
        lambda tensors: tensors.update({NORM: tensors[NORM].reshape(2, -1)}),
        lambda tensors: tensors.update({NORM: tensors[NORM].view("int32")}),
        lambda tensors: tensors.update({"norm": tensors.pop(NORM)}),
    ],
    ids=["bytes", "shape", "dtype", "name"],
)
def test_other_tensors_are_another_model(model_folder, copy, change):
    changed(copy, change)
    assert digest_of_tensors(copy) != digest_of_tensors(model_folder)


def test_no_weights_have_no_digest(tmp_path):
    assert digest_of_tensors(tmp_path) == ""


def with_variant(folder):
    shutil.copy(folder / WEIGHTS, folder / "model.fp16.safetensors")
    return "model.fp16.safetensors"


def with_notes(folder):
    save_file({"one": load_file(folder / WEIGHTS)[NORM]}, folder / "notes.safetensors")
    return "notes.safetensors"


def with_another_index(folder):
    shutil.copy(folder / WEIGHTS, folder / "bad.safetensors")
    write_json(folder / INDEX, {"weight_map": {NORM: "bad.safetensors"}})
    return "bad.safetensors"


def with_a_spare_shard(folder):
    sharded(folder)
    shutil.copy(folder / "part-0.safetensors", folder / "part-2.safetensors")
    return "part-2.safetensors"


@pytest.mark.parametrize("add", [with_variant, with_notes, with_another_index, with_a_spare_shard])
def test_weights_beside_those_that_load_are_refused(copy, add):
    """vLLM takes all files of a folder, or those of the index: what was swept here was served otherwise there."""
    name = add(copy)
    for use in (weight_files, digest_of_tensors, require_registrable, lambda folder: load_as_trained(str(folder))):
        with pytest.raises(PosgapError, match=name):
            use(copy)


def test_an_index_of_the_one_file_does_no_harm(copy):
    write_json(copy / INDEX, {"weight_map": dict.fromkeys(load_file(copy / WEIGHTS), WEIGHTS)})
    assert [file.name for file in weight_files(copy)] == [WEIGHTS]


def test_a_tensor_in_two_shards_is_refused(copy):
    """Loaders differ in which of the two counts."""
    sharded(copy)
    part = copy / "part-1.safetensors"
    save_file(load_file(part) | {NORM: load_file(copy / "part-0.safetensors").get(NORM, [0])}, part) if NORM not in (
        load_file(part)
    ) else shutil.copy(part, copy / "part-0.safetensors")
    with pytest.raises(BadModel, match=f"^{part}: "):
        digest_of_tensors(copy)


def renamed(tensors):
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


@pytest.mark.parametrize(
    "change",
    [renamed, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": tensors[NORM]})],
    ids=["without their prefix", "one that no model reads"],
)
def test_tensors_that_load_under_other_names_or_not_at_all_are_not_registered(copy, change):
    """transformers loads them, and says nothing: so one model could be many."""
    changed(copy, change)
    with pytest.raises(BadModel, match=f"^{copy}: "):
        require_registrable(copy)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_code_is_not_registered(copy, file):
    known = read_json(copy / file) if (copy / file).is_file() else {}
    write_json(copy / file, known | {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}})
    with pytest.raises(PosgapError, match="auto_map"):
        require_registrable(copy)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_the_hub_are_not_registered(copy, key):
    """transformers would fetch them, and run them in place of its own attention."""
    known = read_json(copy / "config.json")
    write_json(copy / "config.json", known | {key: "sdpa"})
    require_registrable(copy)
    write_json(copy / "config.json", known | {"text_config": {key: "somebody/attention"}})
    with pytest.raises(PosgapError, match=key):
        require_registrable(copy)


@pytest.mark.parametrize("name", ["model-q4.gguf", "pytorch_model.bin", "other/pytorch_model-00001-of-00002.bin"])
def test_weights_of_other_formats_are_not_registered(copy, name):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"GGUF")
    with pytest.raises(BadModel, match=f"^{copy / name}: "):
        require_registrable(copy)


def test_a_module_beside_the_weights_is_not_registered(copy):
    (copy / "custom_generate").mkdir()
    (copy / "custom_generate" / "generate.py").write_text("print()")
    with pytest.raises(PosgapError, match=r"generate\.py"):
        require_registrable(copy)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 16, (9).to_bytes(8, "little") + b'{"a": 1} ', b"\x02" + bytes(7) + b"[]"]
)
def test_a_damaged_file_is_refused(copy, data):
    (copy / WEIGHTS).write_bytes(data)
    with pytest.raises(PosgapError, match=r"model\.safetensors"):
        digest_of_tensors(copy)


def test_a_name_that_is_there_twice_is_refused(copy):
    told = b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "U8", "shape": [1], '
    told += b'"data_offsets": [1, 2]}}'
    (copy / WEIGHTS).write_bytes(len(told).to_bytes(8, "little") + told + b"12")
    with pytest.raises(PosgapError, match="twice"):
        digest_of_tensors(copy)
