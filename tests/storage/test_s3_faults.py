"""S3 behind a proxy that spoils what passes: what goes up and comes down is whole, or one line says why not."""

import json
import logging
import os
import random
import re

import boto3
import pytest
from fault_proxy import FAULTS, FINE, Fault, faulty
from refusals import refuses
from s3 import elsewhere
from s3_servers import serving

from posgap.foundation import files
from posgap.foundation.errors import NoServer, NotFound, PosgapError, Unreadable
from posgap.foundation.retries import RetryPolicy
from posgap.storage import client
from posgap.storage.cache import fetch_location, take_snapshot
from posgap.storage.folders import publish

SEED = int(os.environ.get("CHAOS_SEED", "0"))
NOT_OF_S3 = {"login page", "429", "500 page", "drip"}  # it has no such answers, or the same as others


@pytest.fixture
def proxy(bucket, s3_endpoint, monkeypatch):
    with faulty(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "out"
    made.mkdir()
    for name, size in (("a.bin", 100_000), ("b.bin", 10), ("manifest.json", 2)):
        (made / name).write_bytes(b"{}" if size == 2 else random.Random(name).randbytes(size))
    return made


def test_ten_requests_that_s3_asks_to_slow_down_are_borne(proxy, bucket, folder, monkeypatch, caplog):
    monkeypatch.setattr(client, "RETRY_POLICY", RetryPolicy(seconds=60, first_wait=0.01, longest_wait=0.1))
    digest = files.digest_path(folder)
    proxy.fault = lambda number, method, path: FAULTS["503 SlowDown"] if number < 10 else FINE
    with caplog.at_level(logging.INFO, logger="posgap"):
        publish(folder, f"{bucket}/out")
    assert take_snapshot(f"{bucket}/out").digest() == digest and not folder.exists()
    assert "SlowDown; trying again in" in caplog.text


@pytest.mark.skipif(os.environ.get("POSGAP_S3") != "ceph", reason="a real SlowDown needs POSGAP_S3=ceph")
def test_a_gateway_that_takes_a_request_at_a_time_is_borne(bucket, tmp_path, monkeypatch, caplog):
    """It answers SlowDown to the others of the eight that are under way."""
    folder = tmp_path / "out"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.bin").write_bytes(random.Random(number).randbytes(1 << 20))
    (folder / "manifest.json").write_text("{}")
    digest, server = files.digest_path(folder), tmp_path / "server"
    server.mkdir()
    with serving("ceph", server, "rgw_max_concurrent_requests = 1") as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        boto3.client("s3").create_bucket(Bucket=bucket.removeprefix("s3://"))
        with caplog.at_level(logging.INFO, logger="posgap"):
            publish(folder, f"{bucket}/out")
        elsewhere(tmp_path, monkeypatch)
        assert files.digest_path(fetch_location(f"{bucket}/out")) == digest
    assert "SlowDown; trying again in" in caplog.text


def test_s3_is_given_a_minute():
    assert client.RETRY_POLICY.seconds == 60 and client.RETRY_POLICY.tries == float("inf")


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - NOT_OF_S3))
def test_what_s3_does_for_ever_is_one_line_and_harms_nothing(name, proxy, bucket, folder, tmp_path, monkeypatch):
    digest, first = files.digest_path(folder), random.Random(f"{SEED} {name}").randrange(6)
    proxy.fault = lambda number, method, path: FAULTS[name] if number >= first else FINE
    with monkeypatch.context() as patch:
        patch.setattr(client, "RETRY_POLICY", RetryPolicy(seconds=2, first_wait=0.05, longest_wait=0.2))
        patch.setattr(client, "READ_SECONDS", 1.5)
        try:
            publish(folder, f"{bucket}/out")
        except PosgapError as error:
            assert name != "delay"
            assert str(error).startswith(bucket) and len(str(error).splitlines()) == 1
            assert files.digest_path(folder) == digest
    proxy.heal()
    if folder.exists():
        publish(folder, f"{bucket}/out")  # the same command again
    elsewhere(tmp_path, monkeypatch)
    assert files.digest_path(fetch_location(f"{bucket}/out")) == digest


def test_an_s3_that_errs_now_and_then_is_borne(proxy, bucket, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "RETRY_POLICY", RetryPolicy(seconds=30, first_wait=0.01, longest_wait=0.1))
    draw, digest = random.Random(SEED), files.digest_path(folder)
    now_and_then = [FAULTS[name] for name in ("drop before", "drop after", "500", "503 SlowDown", "truncate")]
    proxy.fault = lambda number, method, path: draw.choice(now_and_then) if draw.random() < 0.3 else FINE
    publish(folder, f"{bucket}/out")
    elsewhere(tmp_path, monkeypatch)
    assert files.digest_path(fetch_location(f"{bucket}/out")) == digest


def _flip_a_byte(body):
    return bytes([body[0] ^ 1]) + body[1:]


def _without_first(body):
    return re.sub(rb"<Contents>.*?</Contents>", b"", body, count=1, flags=re.DOTALL)


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "change", "kind", "at", "named"),
    [
        ("a.bin", _flip_a_byte, NoServer, "/a.bin", ""),
        ("a.bin", lambda body: body[:-1], NoServer, "/a.bin", ""),
        ("a.bin", lambda body: b"", NoServer, "/a.bin", ""),
        ("list-type", lambda body: re.sub(rb"[0-9a-f]{32}", b"0" * 32, body), NoServer, "/a.bin", ""),
        ("list-type", lambda body: body.replace(b"a.bin", b"c.bin"), NotFound, "/c.bin", ""),
        ("list-type", lambda body: body[: len(body) // 2], NoServer, "", "S3"),
        ("list-type", lambda body: b"<html>log in</html>", NotFound, "", ""),
        ("list-type", _without_first, Unreadable, "", "a.bin"),
    ],
    ids=["other bytes", "short", "empty", "wrong ETag", "a key that is absent", "cut list", "page", "late list"],
)
def test_what_s3_says_wrongly_is_refused_in_one_line(
    proxy, bucket, folder, tmp_path, monkeypatch, path, change, kind, at, named
):
    """Nothing of it stays in the cache: what S3 has is read afterwards."""
    (folder / "manifest.json").write_text(json.dumps({"identity": "", "files": {"a.bin": {}, "b.bin": {}}}))
    digest = files.digest_path(folder)
    publish(folder, f"{bucket}/out")
    elsewhere(tmp_path, monkeypatch)
    monkeypatch.setattr(client, "RETRY_POLICY", RetryPolicy(seconds=1, first_wait=0.05, longest_wait=0.2))
    proxy.fault = lambda number, method, asked: Fault(change=change) if method == "GET" and path in asked else FINE
    with refuses(kind, named, at=f"{bucket}/out{at}") as refused:
        fetch_location(f"{bucket}/out")
    assert len(str(refused.value).splitlines()) == 1
    proxy.heal()
    assert files.digest_path(fetch_location(f"{bucket}/out")) == digest
