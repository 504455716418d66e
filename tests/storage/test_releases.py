"""Which data version is released: of writers that come at once, one wins and the others are told so."""

import boto3
import pytest
from fault_proxy import FAULTS, FINE, faulty
from s3 import keys, put

from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import split_uri
from posgap.foundation.retries import RetryPolicy
from posgap.storage import client, objects, versions
from posgap.storage.versions import newest, release


@pytest.fixture(params=["S3", "disk"])
def data(request, tmp_path):
    """A folder of three versions."""
    if request.param == "disk":
        for day in (13, 20, 27):
            (tmp_path / f"train-2026-11-{day}.jsonl").touch()
        return str(tmp_path)
    bucket = request.getfixturevalue("bucket")
    for day in (13, 20, 27):
        put(f"{bucket}/data/train-2026-11-{day}.jsonl")
    return f"{bucket}/data"


def test_the_released_version_is_taken_until_a_later_one_is_released(data):
    assert newest(f"{data}/").name == "2026-11-27"
    release(f"{data}/train-2026-11-13.jsonl")
    release(f"{data}/train-2026-11-20.jsonl")
    assert newest(f"{data}/").name == "2026-11-20" == newest(f"{data}/train-").name == newest(data).name
    assert newest(f"{data}/train-2026-11-2").name == "2026-11-27"  # where that is asked for by name
    for _ in range(2):
        release(f"{data}/train-2026-11-27.jsonl")
    assert newest(data).name == "2026-11-27"


def test_an_earlier_version_is_released_in_place_of_a_named_one_only(data):
    release(f"{data}/train-2026-11-27.jsonl")
    with pytest.raises(PosgapError, match="2026-11-20.jsonl: is not released: 2026-11-27 is, since .* no later one"):
        release(f"{data}/train-2026-11-20.jsonl")
    release(f"{data}/train-2026-11-20.jsonl", instead_of="2026-11-27")
    with pytest.raises(PosgapError, match="is not released: what is by now is 2026-11-20, and not 2026-11-27"):
        release(f"{data}/train-2026-11-13.jsonl", instead_of="2026-11-27")
    assert newest(data).name == "2026-11-20"


def test_what_is_no_complete_version_is_not_released(bucket):
    put(f"{bucket}/data/v=1/part-0")
    put(f"{bucket}/data/train.jsonl")
    put(f"{bucket}/data/v=2/_SUCCESS")
    for place, complaint in (
        ("v=1", "v=1: is no complete version: name a file, or a folder with manifest.json"),
        ("train.jsonl", "train.jsonl: is no complete version"),
        ("v=", "v=: is no complete version"),
        ("v=3", "no data version"),
    ):
        with pytest.raises(PosgapError, match=complaint):
            release(f"{bucket}/data/{place}")
    assert f"{split_uri(bucket)[1]}data/v=latest.json" not in keys(bucket)
    release(f"{bucket}/data/v=2/")
    assert newest(f"{bucket}/data/v").location == f"{bucket}/data/v=2"


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "v=latest.json: holds no JSON object; remove it"),
        (b"[]", "v=latest.json: holds no JSON object; remove it"),
        (b'{"a":' * 100_000, "v=latest.json: holds no JSON object; remove it"),
        (b"{}", "v=latest.json: names no version; remove it"),
        (b'{"name": "../../v=1"}', "v=latest.json: names no version; remove it"),
        (b'{"name": "v=3"}', "v=latest.json: names s3://bucket-[0-9]+/v=3, which is not there or not complete"),
        (b'{"name": "v=1"}', "v=latest.json: names s3://bucket-[0-9]+/v=1, which is not there or not complete"),
    ],
)
def test_a_record_that_names_no_version_is_one_line(bucket, content, complaint):
    put(f"{bucket}/v=1/part-0")
    put(f"{bucket}/v=2/_SUCCESS")
    put(f"{bucket}/v=latest.json", content)
    with pytest.raises(PosgapError, match=complaint):
        newest(f"{bucket}/")


def test_of_two_that_read_the_same_one_is_told_to_run_again(bucket, monkeypatch):
    for day in (13, 20):
        put(f"{bucket}/train-2026-11-{day}.jsonl")
    read = versions._read_record

    def read_before_another_writes(place):
        found = read(place)
        monkeypatch.setattr(versions, "_read_record", read)
        release(f"{bucket}/train-2026-11-13.jsonl")
        return found

    monkeypatch.setattr(versions, "_read_record", read_before_another_writes)
    with pytest.raises(PosgapError, match="train-latest.json: another command wrote it meanwhile; run the same"):
        release(f"{bucket}/train-2026-11-20.jsonl")
    assert newest(f"{bucket}/train-").name == "2026-11-13"


@pytest.mark.parametrize("fault", ["drop after", "drop before", "503 SlowDown"])
def test_a_lost_answer_is_no_loss(fault, bucket, s3_endpoint, monkeypatch):
    """S3 has written the record, and refuses it when it is sent again."""
    monkeypatch.setattr(client, "RETRY_POLICY", RetryPolicy(seconds=30, first_wait=0.01, longest_wait=0.1))
    for day in (13, 20):
        put(f"{bucket}/train-2026-11-{day}.jsonl")
    with faulty(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        for day in (13, 20):
            to_spoil = [FAULTS[fault]]
            proxy.fault = lambda number, method, path, left=to_spoil: left.pop() if left and method == "PUT" else FINE
            release(f"{bucket}/train-2026-11-{day}.jsonl")
            assert not to_spoil and newest(f"{bucket}/train-").name == f"2026-11-{day}"


def test_conditions_of_a_put(bucket):
    place = f"{bucket}/object"
    assert objects.get(place) is None and not objects.put_if(place, b"1", "0" * 32)
    assert objects.put_if(place, b"1", "") and not objects.put_if(place, b"2", "")
    content, etag = objects.get(place)
    assert content == b"1" and not objects.put_if(place, b"2", "0" * 32) and objects.put_if(place, b"3", etag)
    assert not objects.put_if(place, b"4", etag) and objects.get(place)[0] == b"3"
    name, key = split_uri(place)
    assert boto3.client("s3").get_object(Bucket=name, Key=key)["Body"].read() == b"3"


def test_the_verb_says_what_it_did(bucket, capsys):
    put(f"{bucket}/data/v1.9.0/_SUCCESS")
    put(f"{bucket}/data/v1.10.0/_SUCCESS")
    for arguments, code, said in (
        ([f"{bucket}/data/v1.10.0"], 0, "version 1.10.0 is released"),
        ([f"{bucket}/data/v1.9.0"], 2, "this is no later one; to go back, --instead-of 1.10.0"),
        ([f"{bucket}/data/v1.9.0", "--instead-of", "1.10.0"], 0, "version 1.9.0 is released"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["data", "version", *arguments, "--release"])
        assert ended.value.code == code and said in capsys.readouterr().err
