"""What a manifest says of an output's files: what is recorded, whose a folder is, and what of it is damaged."""

import hashlib
import json
import os

import pytest

from posgap.foundation.files import entries
from posgap.storage.cache import INCOMPLETE, MANIFEST
from posgap.storage.manifests import REFUSAL, damage, file_records, hash_files, read_record, why_not_ours

OWN = {"stage": "sweep", "identity": "1", "versions": {}, "files": {"a": {"size": 1}, "b/c": {"size": 2}}}


def test_files_are_recorded_by_sha256_and_size_wherever_they_lie(tmp_path):
    (tmp_path / "b" / "empty").mkdir(parents=True)
    contents = {"a": b"1", "b/c": b"22", f"b/{MANIFEST}": b"{}", MANIFEST: b"{}"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.symlink(tmp_path / "b", tmp_path / "link")  # a folder that is elsewhere is one entry, and not looked into
    assert entries(tmp_path) == sorted([*contents, "link"]) and entries(tmp_path / "none") == []
    (tmp_path / "link").unlink()
    expected = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in contents.items()
        if name != MANIFEST
    }
    assert hash_files(tmp_path) == expected
    assert hash_files(tmp_path, ["a", MANIFEST]) == {"a": expected["a"]} and hash_files(tmp_path, []) == {}


def test_a_manifest_that_is_none_says_nothing(tmp_path):
    assert read_record(None) == read_record(tmp_path / "none") == {}
    for text, record in (("{", {}), ("[1]", {}), ('{"files": {}}', {"files": {}})):
        (tmp_path / MANIFEST).write_text(text)
        assert read_record(tmp_path / MANIFEST) == record
    for files in (None, [], {"a": 1}, {"a": {"size": 1}, "b": 2}):
        assert file_records(json.loads(json.dumps({"files": files}))) == {}
    assert file_records({}) == {} and file_records(OWN) == OWN["files"]


@pytest.mark.parametrize(
    ("names", "manifest", "why"),
    [
        ([], {}, ""),
        ([".DS_Store", "b/Thumbs.db", "desktop.ini"], {}, ""),
        (["a", "b/c", MANIFEST, ".DS_Store", "b/.DS_Store"], OWN, ""),
        (["a", INCOMPLETE, REFUSAL], OWN, ""),  # that something is missing does not make it another's
        (["z", "y"], {}, "it holds what posgap did not write (y)"),
        (["a", "z", "y", MANIFEST], OWN, "it holds what posgap did not write (y)"),
        (["a", f"b/{MANIFEST}"], OWN, f"it holds what posgap did not write (b/{MANIFEST})"),
        (["a"], OWN | {"stage": "merge"}, "it holds what merge made"),
        (["a"], {"stage": "sweep", "identity": "1", "files": OWN["files"]}, ""),
        (["a"], {"stage": "sweep", "files": OWN["files"]}, "it holds what posgap did not write (a)"),
        (["a"], {"stage": "sweep", "identity": "1"}, "it holds what posgap did not write (a)"),
        (
            ["a"],
            {name: OWN[name] for name in ("stage", "identity", "versions")},
            "an older posgap made it, and its manifest lists no files",
        ),
    ],
)
def test_a_folder_is_a_stage_s_own_where_all_in_it_is_recorded(names, manifest, why):
    assert why_not_ours(names, manifest, "sweep") == why


def test_what_is_missing_or_of_another_size_is_damaged():
    sizes = {"a": 1, "b/c": 2}
    assert damage(OWN, sizes) == damage(OWN, sizes | {"more": 3}) == ""
    assert damage(OWN, {"a": 1}) == "b/c is missing"
    assert damage(OWN, {"a": 0, "b/c": 2}) == "a has 0 bytes, not 1"
    assert damage({"files": {"a": {}}}, sizes) == "a has 1 bytes, not None"
    assert damage({}, sizes) == "its manifest, of an older posgap, lists no files"
