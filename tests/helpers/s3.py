"""What tests do with the S3 server of this machine; the fixtures are in conftest.py."""

import time
from collections import Counter

import boto3

from posgap.foundation.locations import split_uri


class Killed(Exception):
    """Stands for whatever ends a process between two calls."""


class Calls:
    """What posgap asks of S3, in order, and what is to fail."""

    def __init__(self):
        self.made: list[tuple[str, str]] = []
        self.fail = lambda operation, key: None

    def named(self, params, context, **_):
        context["key"] = params.get("Key", "")

    def seen(self, model, context, **_):
        self.made.append((model.name, context["key"]))
        if error := self.fail(model.name, context["key"]):
            raise error

    def count(self) -> Counter:
        return Counter(operation for operation, _ in self.made)

    def keys(self, operation: str) -> list[str]:
        return [key for name, key in self.made if name == operation]

    def clear(self) -> None:
        self.made.clear()


def put(uri: str, content: bytes = b"", **more) -> None:
    bucket, key = split_uri(uri)
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content, **more)


def keys(uri: str) -> list[str]:
    """The keys of a bucket that begin as the URI's does."""
    bucket, prefix = split_uri(uri)
    return sorted(
        one["Key"] for one in boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())
    )


def elsewhere(tmp_path, monkeypatch) -> None:
    """Another machine: an empty cache."""
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / f"cache-{time.monotonic_ns()}"))
