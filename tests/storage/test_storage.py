"""S3 against a server on this machine: what is read once, written whole, and said when it fails."""

import hashlib
import os
import random
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from refusals import refuses
from s3 import Killed, elsewhere, keys, put

from posgap.foundation import files
from posgap.foundation.errors import BadOption, NoServer, NotFound, PosgapError, Refused, Unreadable
from posgap.foundation.locations import as_location, is_uri, s3_cache, split_uri, with_uris
from posgap.foundation.retries import RetryPolicy
from posgap.storage import client, transfer
from posgap.storage.cache import fetch_location, take_snapshot
from posgap.storage.folders import ResumableFolder, announce, local_copy, publish

FILES = {"a.txt": b"a", "deep/b.bin": bytes(range(256)) * 50, "empty": b"", "manifest.json": b"{}"}


def write(folder, contents=FILES):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Locations


def test_uris_stay_uris_and_paths_become_paths():
    assert as_location("s3://bucket/a/b/") == "s3://bucket/a/b" == as_location(Path("s3://bucket/a/b"))
    assert as_location("runs/x") == Path("runs/x") and not is_uri("runs/x")
    assert split_uri("s3://bucket/a/b") == ("bucket", "a/b") and split_uri("s3://bucket") == ("bucket", "")
    for wrong in ("s3://", "s3:///key", "s3://bucket/../x"):
        with pytest.raises(ValueError, match="s3://bucket/key"):
            as_location(wrong)


def test_messages_name_the_uri_that_a_cached_path_stands_for(bucket):
    put(f"{bucket}/data/train.jsonl")
    here = fetch_location(f"{bucket}/data/train.jsonl")
    assert with_uris(f"{here}:3: not JSON") == f"{bucket}/data/train.jsonl:3: not JSON"
    assert with_uris(f"{local_copy(f'{bucket}/out')}.rejected") == f"{bucket}/out.rejected"
    assert with_uris("/tmp/else") == "/tmp/else"


# Round trips


def test_a_folder_comes_back_as_it_went(bucket, tmp_path, monkeypatch):
    folder = write(tmp_path / "folder")
    digest = files.digest_path(folder)
    publish(folder, f"{bucket}/run/base")
    assert not folder.exists()
    elsewhere(tmp_path, monkeypatch)
    there = take_snapshot(f"{bucket}/run/base")
    assert there.digest() == digest
    here = there.fetch()
    assert read(here) == FILES and files.digest_path(here) == digest
    assert files.digest_path(fetch_location(f"{bucket}/run/base/a.txt")) == files.digest_path(
        write(tmp_path / "again") / "a.txt"
    )


def test_the_manifest_goes_last_and_what_is_stale_goes_away(bucket, tmp_path, s3_calls):
    publish(write(tmp_path / "old", {"stale": b"", "a.txt": b"old", "manifest.json": b"1"}), f"{bucket}/out")
    s3_calls.clear()
    publish(write(tmp_path / "new"), f"{bucket}/out")
    changed = [(op, key) for op, key in s3_calls.made if op in ("PutObject", "DeleteObject")]
    assert changed[0] == ("PutObject", "out/.incomplete")
    assert {changed[1], changed[2]} == {("DeleteObject", "out/manifest.json"), ("DeleteObject", "out/stale")}
    assert changed[-2:] == [("PutObject", "out/manifest.json"), ("DeleteObject", "out/.incomplete")]
    assert keys(bucket) == sorted(f"out/{name}" for name in FILES)


def test_large_files_move_in_parts(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PART", 5 << 20)
    monkeypatch.setattr(transfer, "WORTH_SHOWING", 1)
    content = random.Random(0).randbytes(12 << 20)
    publish(write(tmp_path / "model", {"model.safetensors": content}), f"{bucket}/model")
    elsewhere(tmp_path, monkeypatch)
    (there,) = take_snapshot(f"{bucket}/model").objects
    assert there.etag.endswith("-3")
    assert (fetch_location(f"{bucket}/model") / "model.safetensors").read_bytes() == content


# The cache


def test_what_is_in_the_cache_is_not_downloaded_again(bucket, tmp_path, s3_calls, monkeypatch):
    publish(write(tmp_path / "folder"), f"{bucket}/f")
    fetch_location(f"{bucket}/f")
    assert s3_calls.count()["GetObject"] == 0  # this machine uploaded it
    elsewhere(tmp_path, monkeypatch)
    first = fetch_location(f"{bucket}/f")
    assert s3_calls.count()["GetObject"] == len(FILES)
    s3_calls.clear()
    assert fetch_location(f"{bucket}/f") == first and files.digest_path(first) == take_snapshot(f"{bucket}/f").digest()
    assert s3_calls.count().keys() == {"HeadObject", "ListObjectsV2"} and s3_calls.count()["HeadObject"] == 2
    put(f"{bucket}/f/a.txt", b"changed")
    second = fetch_location(f"{bucket}/f")
    assert second != first and (second / "a.txt").read_bytes() == b"changed" and (first / "a.txt").read_bytes() == b"a"
    assert s3_calls.keys("GetObject") == ["f/a.txt"]


def test_hashing_needs_no_download_where_the_uploader_stated_it(bucket, tmp_path, s3_calls, monkeypatch):
    folder = write(tmp_path / "folder")
    digest = files.digest_path(folder)
    publish(folder, f"{bucket}/f")
    elsewhere(tmp_path, monkeypatch)
    s3_calls.clear()
    assert take_snapshot(f"{bucket}/f").digest() == digest
    assert s3_calls.count()["GetObject"] == 0
    put(f"{bucket}/by-another-tool", b"no sha256")
    assert take_snapshot(f"{bucket}/by-another-tool").digest() == files.digest_path(
        fetch_location(f"{bucket}/by-another-tool")
    )
    assert s3_calls.count()["GetObject"] == 1


def test_an_interrupted_download_goes_on_where_it_was(bucket, tmp_path, s3_calls, monkeypatch):
    publish(write(tmp_path / "folder"), f"{bucket}/f")
    elsewhere(tmp_path, monkeypatch)
    s3_calls.fail = lambda op, key: Killed() if (op, key) == ("GetObject", "f/deep/b.bin") else None
    with pytest.raises(Killed):
        fetch_location(f"{bucket}/f")
    assert not (s3_cache() / "trees").exists() and not list((s3_cache() / "incoming").iterdir())
    s3_calls.fail = lambda op, key: None
    s3_calls.clear()
    assert read(fetch_location(f"{bucket}/f")) == FILES
    assert s3_calls.keys("GetObject") == ["f/deep/b.bin"]


def test_of_many_readers_one_downloads(bucket, tmp_path, s3_calls):
    for name, content in FILES.items():
        put(f"{bucket}/f/{name}", content)
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(fetch_location, [f"{bucket}/f"] * 8))
    assert len(folders) == 1 and read(folders.pop()) == FILES
    assert s3_calls.count()["GetObject"] == len(FILES)


@pytest.mark.full
def test_processes_that_share_a_cache_do_not_disturb_each_other(bucket, tmp_path):
    for name, content in FILES.items():
        put(f"{bucket}/f/{name}", content)
    code = f"from posgap.storage.cache import fetch_location; print(fetch_location('{bucket}/f'))"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    (folder,) = {process.communicate(timeout=60)[0].strip() for process in started}
    assert read(Path(folder)) == FILES


def test_a_cache_that_lost_a_file_gets_it_again(bucket, tmp_path):
    publish(write(tmp_path / "folder"), f"{bucket}/f")
    here = fetch_location(f"{bucket}/f")
    (here / "a.txt").resolve().unlink()
    assert read(fetch_location(f"{bucket}/f")) == FILES


# Interruptions and faults


def test_a_folder_whose_upload_broke_off_is_not_read(bucket, tmp_path, s3_calls):
    folder = write(tmp_path / "folder")
    s3_calls.fail = lambda op, key: Killed() if (op, key) == ("PutObject", "f/deep/b.bin") else None
    with pytest.raises(Killed):
        publish(folder, f"{bucket}/f")
    assert "f/manifest.json" not in keys(bucket)
    with refuses(Unreadable, at=f"{bucket}/f"):
        fetch_location(f"{bucket}/f")
    s3_calls.fail = lambda op, key: None
    sent_before = {key for op, key in s3_calls.made if op == "PutObject" and key in keys(bucket)}
    s3_calls.clear()
    publish(folder, f"{bucket}/f")
    sent = s3_calls.keys("PutObject")
    assert set(sent) & sent_before == {"f/.incomplete"}  # what had arrived is not sent again
    assert read(fetch_location(f"{bucket}/f")) == FILES


def test_an_announced_folder_is_not_complete(bucket):
    announce(f"{bucket}/f", "sweep")
    assert keys(bucket) == ["f/.incomplete"]
    with pytest.raises(Unreadable):
        fetch_location(f"{bucket}/f")


@pytest.mark.parametrize("name", ["sha256", "Sha256", "SHA256"])
def test_the_name_of_a_stated_sha256_may_come_in_any_case(name, bucket, s3_calls):
    """As Go's HTTP servers write headers: rclone's, and others."""
    put(f"{bucket}/a", b"text", Metadata={"sha256": "0" * 64})
    rename = lambda parsed, **_: parsed.update(Metadata={name: "0" * 64})  # noqa: E731
    events = client.client().meta.events
    events.register("after-call.s3.HeadObject", rename)
    try:
        assert take_snapshot(f"{bucket}/a").digest() == "0" * 64 and "GetObject" not in s3_calls.count()
    finally:
        events.unregister("after-call.s3.HeadObject", rename)


def test_what_is_not_what_its_checksum_says_is_not_kept(bucket, tmp_path):
    put(f"{bucket}/model/weights", b"damaged", Metadata={"sha256": "0" * 64})
    with refuses(Unreadable, hashlib.sha256(b"damaged").hexdigest(), at=f"{bucket}/model/weights"):
        fetch_location(f"{bucket}/model")
    assert not list((s3_cache() / "incoming").iterdir()) and not (s3_cache() / "blobs").exists()


def test_what_changes_while_it_is_read_is_not_mixed(bucket):
    put(f"{bucket}/f/a", b"old")
    seen = take_snapshot(f"{bucket}/f")
    put(f"{bucket}/f/a", b"new")
    with pytest.raises(PosgapError, match=f"{bucket}/f/?a?: it was changed while it was read"):
        seen.fetch()


def test_names_that_lead_out_of_the_folder_are_refused(bucket):
    put(f"{bucket}/f/../../etc/passwd")
    with pytest.raises(Unreadable):
        fetch_location(f"{bucket}/f")


def test_what_is_not_there_is_named(bucket):
    with refuses(NotFound, at=f"{bucket}/none"):
        fetch_location(f"{bucket}/none")
    with refuses(NotFound, at="s3://no-such-bucket/x"):
        fetch_location("s3://no-such-bucket/x")


def test_a_version_of_an_object_is_known(bucket):
    name, _ = split_uri(bucket)
    boto3.client("s3").put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    put(f"{bucket}/a", b"1")
    first = take_snapshot(f"{bucket}/a").version()
    put(f"{bucket}/a", b"2")
    second = take_snapshot(f"{bucket}/a").version()
    assert first.keys() == second.keys() == {"etag", "version_id"} and first["version_id"] != second["version_id"]


def test_no_credentials(bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with refuses(Refused, "AWS_ACCESS_KEY_ID", at=f"{bucket}/x"):
        fetch_location(f"{bucket}/x")


def test_an_unreachable_endpoint(bucket, monkeypatch):
    monkeypatch.setattr(client, "UNREACHED", RetryPolicy(tries=1, seconds=0))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with refuses(NoServer, '"http://127.0.0.1:9/', "AWS_ENDPOINT_URL"):
        fetch_location(f"{bucket}/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with refuses(BadOption, "minio:9000"):
        fetch_location(f"{bucket}/x")


@pytest.mark.skipif("POSGAP_S3" in os.environ, reason="makes users by moto's IAM, which other servers lack")
def test_access_denied(bucket, s3_endpoint, monkeypatch):
    def require_rights(after: bytes):
        asked = urllib.request.Request(f"{s3_endpoint}/moto-api/reset-auth", after, {"Content-Type": "text/plain"})
        urllib.request.urlopen(asked).close()

    iam, name = boto3.client("iam"), split_uri(bucket)[0]
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    require_rights(b"0")
    try:
        with refuses(Refused, at=f"{bucket}/x"):
            fetch_location(f"{bucket}/x")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN")
        with refuses(Refused, "AWS_ACCESS_KEY_ID", at=f"{bucket}/x"):
            announce(f"{bucket}/x", "sweep")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with refuses(Refused, "secret", at=f"{bucket}/x"):
            announce(f"{bucket}/x", "sweep")
    finally:
        require_rights(b"inf")


# Work under way


def test_work_is_kept_in_s3_and_brought_to_other_machines(bucket, tmp_path, monkeypatch):
    kept = ResumableFolder(f"{bucket}/work") / "states"
    write(kept.folder, {"one": b"1", "two": b"2"})
    kept.push([kept.folder / "one", kept.folder / "two"])
    elsewhere(tmp_path, monkeypatch)
    there = ResumableFolder(f"{bucket}/work") / "states"
    assert there.folder != kept.folder and there.stored_names() == ["one", "two"]
    there.pull()
    assert read(there.folder) == {"one": b"1", "two": b"2"}
    (there.folder / "one").write_bytes(b"3")
    there.push([there.folder / "one"])
    kept.pull()
    assert read(kept.folder)["one"] == b"3"
    kept.drop(["two"])
    assert there.stored_names() == ["one"]
    kept.delete()
    assert keys(bucket) == [] and not kept.folder.exists()


def test_work_on_this_machine_alone_goes_nowhere(tmp_path):
    kept = ResumableFolder(tmp_path / "work")
    write(kept.folder, {"one": b"1"})
    kept.push([kept.folder / "one"])
    kept.pull()
    assert kept.stored_names() == [] and read(tmp_path / "work") == {"one": b"1"}
