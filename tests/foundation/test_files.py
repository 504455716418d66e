"""Nothing half-written is ever taken for complete."""

import os
import subprocess

import pytest
from refusals import refuses

from posgap.foundation.errors import Malformed
from posgap.foundation.files import atomic, digest_path, read_json, remove_leftovers, write_json, write_jsonl


def test_an_interrupted_write_leaves_the_old_content_and_no_rest(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_takes_the_place_of_an_empty_one_and_of_no_other(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    with atomic(target) as partial:
        partial.mkdir()
        (partial / "new").touch()
    assert [p.name for p in target.iterdir()] == ["new"]
    with pytest.raises(OSError), atomic(target) as partial:
        partial.mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_leftovers_of_a_killed_process_are_deleted_and_those_of_a_live_one_kept(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with atomic(tmp_path / "deep" / "a.txt") as partial:
        partial.write_text("half")
        rest = partial.with_name(partial.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-"))
        rest.write_text("half")
        elsewhere = partial.with_name(f".partial-another-{gone.pid}-a.txt")
        elsewhere.touch()
        remove_leftovers(tmp_path)
    assert {p.name for p in (tmp_path / "deep").iterdir()} == {"a.txt", elsewhere.name}


def test_digest_of_a_folder_sees_names_and_contents_but_no_manifest(tmp_path):
    (tmp_path / "a").write_text("1")
    before = digest_path(tmp_path)
    write_json(tmp_path / "manifest.json", {"seconds": 1})
    (tmp_path / ".hidden").touch()
    assert digest_path(tmp_path) == before
    (tmp_path / "a").rename(tmp_path / "b")
    assert digest_path(tmp_path) != before


def test_equal_rows_make_equal_archives(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_jsonl(tmp_path / name, [{"x": 1}, {"y": "ö"}])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_broken_json_file_is_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with refuses(Malformed, at="a.json"):
        read_json(tmp_path / "a.json")


def test_who_may_read_a_model_s_config_may_read_its_weights(model_folder):
    modes = {name: (model_folder / name).stat().st_mode & 0o777 for name in ("config.json", "model.safetensors")}
    assert len(set(modes.values())) == 1, modes
