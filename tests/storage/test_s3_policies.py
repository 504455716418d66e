"""The policies of infra/s3, enforced by a server: what each role may do works, and the rest is one line.

By moto as the policies of IAM roles, whose keys are asked of STS; by Ceph (`POSGAP_S3=ceph`) as the bucket's policy for
its users.
"""

import json
import os
import urllib.request
import uuid
from contextlib import contextmanager

import boto3
import pytest
import s3_servers
from mlflow.store.artifact import s3_artifact_repo
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow_server import serving
from places import ROOT
from s3 import keys, put
from written_sweeps import copy_of, promotion, write_sweep

from posgap.foundation.errors import PosgapError, Refused
from posgap.foundation.locations import split_uri
from posgap.storage.cache import fetch_location
from posgap.storage.folders import announce, publish, publish_file
from posgap.storage.objects import delete
from posgap.storage.versions import newest
from posgap.verbs.promote import promote

POLICIES = {path.stem: path for path in (ROOT / "infra" / "s3").glob("*.json")}
ROOMS = ("data", "models", "run", "work", "kfp", "mlflow", "backup")
MAY_READ = {
    "posgap-data": {"data", "models", "run", "work", "kfp"},
    "posgap-mlflow": {"mlflow"},
    "posgap-backup": {"backup"},
    "posgap-promote": {"models", "run", "mlflow"},
    "posgap-release": {"data", "models"},
    "posgap-read": {"data", "models", "run", "mlflow"},
}
MAY_WRITE = {
    "posgap-data": {"run", "work", "kfp"},
    "posgap-mlflow": {"mlflow"},
    "posgap-backup": {"backup"},
    "posgap-promote": {"mlflow"},
    "posgap-release": {"data", "models"},
    "posgap-read": set(),
}
MAY_DELETE = {"posgap-data": {"run", "work", "kfp"}, "posgap-mlflow": {"mlflow"}}
SERVER = os.environ.get("POSGAP_S3", "moto")
pytestmark = pytest.mark.skipif(SERVER == "rclone", reason="rclone knows no policies")


def policy(role: str, bucket: str) -> dict:
    return json.loads(POLICIES[role].read_text().replace("BUCKET", split_uri(bucket)[0]))


def keys_of(role: str, bucket: str, endpoint: str) -> dict[str, str]:
    """The variables with which a process has a role."""
    if SERVER == "ceph":
        return dict(
            zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), s3_servers.new_user(endpoint, name(role, bucket)))
        )
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    iam = boto3.client("iam")
    made = iam.create_role(
        RoleName=name(role, bucket),
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
    )
    iam.put_role_policy(RoleName=name(role, bucket), PolicyName="s3", PolicyDocument=json.dumps(policy(role, bucket)))
    key = boto3.client("sts").assume_role(RoleArn=made["Role"]["Arn"], RoleSessionName="test")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        "AWS_SESSION_TOKEN": key["SessionToken"],
    }


def name(role: str, bucket: str) -> str:
    return f"{role}-{split_uri(bucket)[0]}"


@pytest.fixture
def has_role(bucket, s3_endpoint, monkeypatch):
    """A context in which posgap has a role, on a bucket with an object in each room."""
    for room in ROOMS:
        put(f"{bucket}/{room}/there", room.encode())
    put(f"{bucket}/data/train-2026-11-20.jsonl")
    environments = {role: keys_of(role, bucket, s3_endpoint) for role in POLICIES}
    if SERVER == "ceph":
        statements = [
            each | {"Sid": f"{number}{each['Sid']}", "Principal": {"AWS": [f"arn:aws:iam:::user/{name(role, bucket)}"]}}
            for number, role in enumerate(POLICIES)
            for each in policy(role, bucket)["Statement"]
        ]
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        boto3.client("s3").put_bucket_policy(Bucket=split_uri(bucket)[0], Policy=document)

    @contextmanager
    def given(role: str):
        with monkeypatch.context() as patch:
            for variable, value in environments[role].items():
                patch.setenv(variable, value)
            patch.setattr(boto3, "DEFAULT_SESSION", None)  # which goes on with the keys that it found first
            s3_artifact_repo._cached_get_s3_client.cache_clear()
            patch.setenv("POSGAP_CACHE", f"{os.environ['POSGAP_CACHE']}-{uuid.uuid4().hex}")
            enforce(s3_endpoint, True)
            try:
                yield
            finally:
                enforce(s3_endpoint, False)

    return given


def enforce(endpoint: str, yes: bool) -> None:
    if SERVER == "moto":
        after = b"0" if yes else b"inf"
        asked = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", after, {"Content-Type": "text/plain"})
        urllib.request.urlopen(asked).close()


def allowed(action) -> bool:
    """Whether something worked; what did not was refused in a line of posgap's."""
    try:
        action()
    except PosgapError as error:
        assert "access denied: these credentials may not do this" in str(error) and "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("role", sorted(POLICIES))
def test_a_role_reads_and_writes_in_its_rooms_only(role, bucket, has_role, tmp_path):
    with has_role(role):
        readable = {room for room in ROOMS if allowed(lambda room=room: fetch_location(f"{bucket}/{room}/there"))}
        listing = boto3.client("s3").list_objects_v2(Bucket=split_uri(bucket)[0])
        writable = set()
        for room in ROOMS:
            copy = tmp_path / room
            copy.write_bytes(b"text")
            try:
                boto3.client("s3").upload_file(str(copy), split_uri(bucket)[0], f"{room}/new")
                writable.add(room)
            except boto3.exceptions.S3UploadFailedError as error:
                assert "AccessDenied" in str(error)
    assert readable == MAY_READ[role] and writable == MAY_WRITE[role] and len(listing["Contents"]) == len(ROOMS) + 1
    assert {uri.split("/")[0] for uri in keys(f"{bucket}/") if uri.endswith("/new")} == writable


@pytest.mark.parametrize("role", sorted(POLICIES))
def test_a_role_deletes_in_its_rooms_only(role, bucket, has_role):
    for room in ROOMS:
        put(f"{bucket}/{room}/too")
    with has_role(role):
        for room in ROOMS:
            allowed(lambda room=room: delete([f"{bucket}/{room}/there"]))
            allowed(lambda room=room: delete([f"{bucket}/{room}/too", f"{bucket}/{room}/never"]))
    for name in ("/there", "/too"):
        left = {key.split("/")[0] for key in keys(f"{bucket}/") if key.endswith(name)}
        assert set(ROOMS) - left == MAY_DELETE.get(role, set())


def folder(tmp_path) -> str:
    made = tmp_path / "out"
    made.mkdir(exist_ok=True)
    (made / "manifest.json").write_text(json.dumps({"stage": "sweep", "identity": "", "files": {"a": {}}}))
    (made / "a").write_text("a")
    return made


def test_a_pod_writes_its_outputs_and_neither_the_registrys_objects_nor_data(bucket, has_role, tmp_path):
    with has_role("posgap-data"):
        assert newest(f"{bucket}/data/train-").name == "2026-11-20"
        announce(f"{bucket}/run/sweep", "sweep")
        publish(folder(tmp_path), f"{bucket}/run/sweep")
        fetch_location(f"{bucket}/run/sweep")
        for place in ("mlflow/1/models/m-1/artifacts", "models/base", "data/v=2"):
            with pytest.raises(Refused, match=f"^{bucket}/{place}/"):
                publish(folder(tmp_path), f"{bucket}/{place}")
            with pytest.raises(Refused, match=f"^{bucket}/{place}"):
                announce(f"{bucket}/{place}", "sweep")
    assert {key for key in keys(f"{bucket}/") if not key.endswith("/there")} == {
        "data/train-2026-11-20.jsonl",
        "run/sweep/a",
        "run/sweep/manifest.json",
    }


def test_who_makes_data_writes_the_version_that_is_taken(bucket, has_role, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("{}\n")
    with has_role("posgap-release"):
        publish_file(file, f"{bucket}/data/train-2026-11-27.jsonl", force=False)
    with has_role("posgap-data"):
        assert newest(f"{bucket}/data/train-").name == "2026-11-27"


def test_promote_alone_and_the_mlflow_server_write_the_registrys_objects(bucket, has_role, tmp_path):
    """As MLflow's own client does where no server hands the artifacts through."""
    model = folder(tmp_path)
    for role in ("posgap-data", "posgap-promote", "posgap-mlflow", "posgap-read"):
        artifacts = get_artifact_repository(f"{bucket}/mlflow/1/models/{role}/artifacts")
        with has_role(role):
            if "mlflow" in MAY_WRITE[role]:
                artifacts.log_artifacts(str(model))
                assert {each.path for each in artifacts.list_artifacts()} == {"a", "manifest.json"}
                artifacts.download_artifacts("", str(tmp_path))
            else:
                with pytest.raises(Exception, match="AccessDenied|Access Denied|403"):
                    artifacts.log_artifacts(str(model))
    assert {key.split("/")[3] for key in keys(f"{bucket}/mlflow/1")} == {"posgap-promote", "posgap-mlflow"}


@pytest.mark.full
@pytest.mark.skipif(SERVER == "moto", reason="moto denies presigned URLs, by which clients of MLflow download")
def test_a_pod_promotes_through_mlflows_server_which_alone_writes(
    bucket, has_role, tmp_path, empty_store, model_folder, monkeypatch
):
    base = write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
    with has_role("posgap-mlflow"), serving(tmp_path, f"{bucket}/mlflow", empty_store) as (uri, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with has_role("posgap-data"):
            promote(promotion(tmp_path, "first", copy_of(model_folder, tmp_path / "model"), base))
            enforce(os.environ["AWS_ENDPOINT_URL"], True)
            with pytest.raises(Refused):
                publish(folder(tmp_path), f"{bucket}/mlflow/0")
    assert any(key.endswith("/model.safetensors") for key in keys(f"{bucket}/mlflow/"))


def test_policies_name_one_bucket_and_grant_no_more_than_objects_of_it():
    assert POLICIES.keys() == MAY_READ.keys() == MAY_WRITE.keys()
    for role in POLICIES:
        for statement in policy(role, "s3://lab")["Statement"]:
            assert statement["Effect"] == "Allow" and "*" not in "".join(statement["Action"])
            assert all(
                each == "arn:aws:s3:::lab" or each.startswith("arn:aws:s3:::lab/") for each in statement["Resource"]
            )
