"""The objects of S3 that a URI names: one, or all those below it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from posgap.foundation.errors import Unreadable
from posgap.foundation.files import digest_of
from posgap.foundation.locations import SCHEME, split_uri
from posgap.storage.client import client, explain_errors, refusal

SHA256 = "sha256"  # in an object's metadata: the digest of its content, by the uploader


@dataclass(frozen=True)
class Object:
    """One listed object. `name` is its path below the URI, or its own name."""

    bucket: str
    key: str
    name: str
    size: int
    etag: str
    version_id: str = ""

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    @property
    def mark(self) -> str:
        """16 hex digits that differ for other content or another place."""
        return digest_of([client().meta.endpoint_url, self.bucket, self.key, self.etag, self.size])[:16]


def find(uri: str) -> list[Object]:
    """The object that `uri` names, or those below it; empty if there are none."""
    alone = head(uri) if split_uri(uri)[1] else None
    return [alone] if alone else list_objects(uri)


def head(uri: str) -> Object | None:
    """The object of this very name, or None."""
    from botocore.exceptions import ClientError

    bucket, key = split_uri(uri)
    with explain_errors(uri):
        try:
            answer = client().head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if refusal(error) in ("404", "NoSuchKey"):
                return None
            raise
    name = key.rsplit("/", 1)[-1]
    version = answer.get("VersionId", "")
    return Object(bucket, key, name, answer["ContentLength"], answer["ETag"].strip('"'), version)


def list_objects(uri: str) -> list[Object]:
    """The objects below `uri`, by name."""
    bucket, key = split_uri(uri)
    prefix = f"{key}/" if key else ""
    objects = []
    with explain_errors(uri):
        for page in client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(prefix)
                if name.endswith("/") or not name:
                    continue  # a folder's placeholder
                if name.startswith("/") or re.search(r"(^|/)\.\.?(/|$)|//", name):
                    raise Unreadable(f"{SCHEME}{bucket}/{entry['Key']}: no name for a file; remove this object")
                objects.append(Object(bucket, entry["Key"], name, entry["Size"], entry["ETag"].strip('"')))
    return objects


def stated_sha256(stored: Object) -> str:
    """The sha256 in the object's metadata; empty if its uploader gave none."""
    with explain_errors(stored.uri):
        answer = client().head_object(Bucket=stored.bucket, Key=stored.key, IfMatch=f'"{stored.etag}"')
    # Headers have no case: some servers hand them out as `Sha256`.
    return {name.lower(): said for name, said in answer["Metadata"].items()}.get(SHA256, "")


def put_object(uri: str, body: bytes) -> None:
    """Writes a small object."""
    bucket, key = split_uri(uri)
    with explain_errors(uri):
        client().put_object(Bucket=bucket, Key=key, Body=body)


def delete(uris: Iterable[str]) -> None:
    """Deletes objects; it is no error if one does not exist."""
    for uri in uris:
        bucket, key = split_uri(uri)
        # One by one: for a list of objects Ceph 16 wants the right to delete in the whole bucket.
        with explain_errors(uri):
            client().delete_object(Bucket=bucket, Key=key)
