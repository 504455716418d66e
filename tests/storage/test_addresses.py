"""Files at addresses that are only read, by fsspec: from a hub and a server on this machine, and from memory."""

import sys
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from copy_stage import CALLS, CopyConfig, copy
from examples import kv_example
from hub import DATA, hub_with
from huggingface_hub import constants
from refusals import refuses

from posgap.cli.main import main
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import BadOption, MissingPackage, NotFound, PosgapError, Unreadable
from posgap.foundation.locations import addressed_cache, as_location, is_address, is_uri, with_uris
from posgap.kubeflow.arguments import to_config
from posgap.kubeflow.prerequisites import prerequisites
from posgap.options.data_make import MakeConfig
from posgap.options.distill import DistillConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import fetch_place, read_manifest, source
from posgap.storage.versions import newest

ON_HUB = f"hf://datasets/{DATA}/train.jsonl"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    with hub_with(tmp_path / "files") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
        yield hub


@pytest.fixture
def memory():
    """A function that puts content at an address, which is gone after the test."""
    system = fsspec.filesystem("memory")
    yield lambda address, content: system.pipe(address.removeprefix("memory:/"), content)
    system.store.clear()


def test_addresses_stay_text_and_everything_else_what_it_was():
    for address in ("hf://datasets/a/b@v1/c.jsonl", "gs://b/c", "az://b/c", "https://host:8080/c", "memory://c"):
        assert as_location(address) == as_location(Path(address)) == as_location(f"{address}/") == address
        assert is_address(address) and not is_uri(address)
    assert as_location("hf/x") == Path("hf/x") and not is_address("s3://bucket/key") and not is_address(Path("gs:/x"))


@pytest.mark.parametrize(
    "wrong",
    ["https://", "https://me:secret@host/x", "https://h/x?sig=1", "hf://a/../b", "https://h/x::file:///y", "gs:///x y"],
)
def test_what_is_no_part_of_a_file_s_place_is_in_no_address(wrong):
    with pytest.raises(ValueError, match=wrong.partition(":")[0] + "://"):
        as_location(wrong)


def test_examples_of_the_hub_are_imported_as_a_file_is(hub, tmp_path):
    write_examples(tmp_path / "own.jsonl", [kv_example(i) for i in range(3)])
    hub.data["train.jsonl"] = (tmp_path / "own.jsonl").read_bytes()
    there = source(ON_HUB)
    assert there.digest() == source(tmp_path / "own.jsonl").digest() and there.location == ON_HUB
    assert read_examples(there.fetch()) == read_examples(tmp_path / "own.jsonl")
    assert fetch_place(f"{hub.url}/datasets/{DATA}/resolve/main/train.jsonl").read_bytes() == hub.data["train.jsonl"]


def test_a_stage_is_reused_by_content_and_its_manifest_names_the_address(memory, tmp_path):
    CALLS.clear()
    config = CopyConfig(out=tmp_path / "out", source="memory://data/hello.txt")
    memory(config.source, b"hello")
    copy(config)
    copy(config)
    assert len(CALLS) == 1 and (tmp_path / "out" / "copy.txt").read_text() == "hello"
    assert read_manifest(tmp_path / "out")["inputs"]["source"]["path"] == config.source
    memory(config.source, b"other")
    copy(config)
    assert len(CALLS) == 2 and (tmp_path / "out" / "copy.txt").read_text() == "other"
    # What the first reader has is as it was, and a message about it names the address.
    assert CALLS[0].source.read_text() == "hello" and with_uris(f"{CALLS[0].source}:1") == f"{config.source}:1"


def test_a_fault_in_a_file_is_told_with_its_address(hub, tmp_path, capsys):
    hub.data["train.jsonl"] = b"no JSON\n"
    with pytest.raises(SystemExit) as ended:
        main(["data", "import", "--format", "own", "--input", ON_HUB, "--out", str(tmp_path / "e.jsonl")])
    assert ended.value.code == 2 and f"{ON_HUB}:1: " in capsys.readouterr().err


def test_what_cannot_be_read_is_one_line_and_leaves_nothing(hub, memory, monkeypatch):
    memory("memory://folder/file", b"x")
    for module in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    for address, (kind, named) in {
        f"hf://datasets/{DATA}/other.jsonl": (NotFound, ""),
        "hf://datasets/nobody/nothing/x": (NotFound, ""),
        f"hf://datasets/{DATA.split('/')[0]}": (Unreadable, "HF URI"),
        f"{hub.url}/nothing": (NotFound, ""),
        "http://127.0.0.1:9/x": (Unreadable, "127.0.0.1:9"),
        "memory://folder": (BadOption, ""),
        "gs://bucket/x": (MissingPackage, "pip install gcsfs"),
        "az://container/x": (MissingPackage, "pip install adlfs"),
    }.items():
        with refuses(kind, named, at=address):
            source(address)
    assert not list(addressed_cache().iterdir())


def test_no_output_goes_to_an_address(tmp_path):
    asked = {"examples": tmp_path, "model": "m", "responses": tmp_path, "out": tmp_path / "out"}
    for make in (
        lambda: MakeConfig(kind="kv", out="hf://datasets/a/b/c.jsonl"),
        lambda: SweepConfig(**asked | {"out": "gs://bucket/out"}),
        lambda: DistillConfig(**asked, work="az://container/work"),
    ):
        with pytest.raises(ValueError, match=r"\n(out|work)\n"):
            make()


def test_the_file_at_an_address_is_the_one_version_there_is():
    version = newest("hf://datasets/a/b/train-2026-11-20.jsonl")
    assert (version.name, version.is_folder) == ("2026-11-20", False)
    assert version.location == "hf://datasets/a/b/train-2026-11-20.jsonl"


def test_the_form_takes_an_address_where_the_run_can_import_it(form, memory, monkeypatch):
    there = form.model_copy(update={"data_train": "memory://train.jsonl"})
    memory(there.data_train, Path(form.data_train).read_bytes())
    check = prerequisites(there)["training examples"]
    assert check() == there.data_train
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with refuses(PosgapError, "s3:// and gs://"):
        check()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    memory(there.data_train, b"")
    with pytest.raises(PosgapError, match=r"train\.jsonl"):
        check()


def test_a_stage_in_kfp_s_local_runner_reads_the_address_itself(tmp_path):
    artifact = SimpleNamespace(path=str(tmp_path / "nothing"), uri="hf://datasets/a/b/c.jsonl")
    assert to_config(CopyConfig, {"source": artifact, "out": tmp_path / "out"}).source == artifact.uri
    Path(artifact.path).touch()
    assert to_config(CopyConfig, {"source": artifact, "out": tmp_path / "out"}).source == Path(artifact.path)


def test_a_path_may_begin_at_home(monkeypatch, tmp_path):
    """A shell leaves `~` as it is in `--out=~/run`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    config = SweepConfig(model="~/model", examples="~/e.jsonl", out="~/run/m")
    assert (config.model, config.examples, config.out) == (
        str(tmp_path / "model"),
        tmp_path / "e.jsonl",
        tmp_path / "run/m",
    )
    assert as_location("~nobody-by-this-name/x") == Path("~nobody-by-this-name/x")
    assert (
        as_location("a/~/b") == Path("a/~/b") and SweepConfig(model="owner/m", examples="e", out="o").model == "owner/m"
    )
