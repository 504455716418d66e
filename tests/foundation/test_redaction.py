"""Secrets never reach what people and servers read."""

import pytest

from posgap.foundation.redaction import redact, redact_value


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in {
        "PGPASSWORD": "hunter2hunter2",
        "MLFLOW_TRACKING_TOKEN": "abcdefgh123",
        "AWS_ACCESS_KEY_ID": "a-key-of-minio",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "POSGAP_WEBHOOK_URL": "https://chat.example/hook/4711",
        "TOKENIZERS_PARALLELISM": "falsefalse",
        "S3_SECRET": "test",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@host:5000/x", "http://***@host:5000/x"),
        ("http://user:p@ss@host/x", "http://***@host/x"),
        ("postgresql+psycopg://u:p%40ss@h/db", "postgresql+psycopg://***@h/db"),
        ("PGPASSWORD=short1 psql", "PGPASSWORD=*** psql"),
        ("said hunter2hunter2!", "said ***!"),
        ("a-key-of-minio and wJalrXUtnFEMI/K7MDENG", "*** and ***"),
        ("told https://chat.example/hook/4711", "told ***"),
        ("{'Authorization': 'Bearer abc.def-ghijk'}", "{'Authorization': 'Bearer ***'}"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("x?token=abcdef123456&y=1", "x?token=***&y=1"),
        ("x?X-Amz-Signature=deadbeef&X-Amz-Credential=AKIAX/1", "x?X-Amz-Signature=***&X-Amz-Credential=***"),
        ("key AKIAIOSFODNN7EXAMPLE", "key ***"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("""{"password": "secret", "api_key": "k"}""", """{"password": "***", "api_key": "***"}"""),
        ("password: hunter2", "password: ***"),
        ("https://hooks.slack.com/services/T0/B0/XX", "https://hooks.slack.com/services/***"),
        ("at https://a.example/v1?api-key=abc&key=4711: 503", "at https://a.example/v1?api-key=***&key=***: 503"),
        ("https://a.example/v1?api-version=2024-02-01-preview&k=x", "https://a.example/v1?api-version=2024-02-01-preview&k=***"),
    ],
)  # fmt: skip
def test_secrets_are_hidden_wherever_they_stand(text, shown):
    assert redact(text) == redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=16, batch_tokens: 64, token=16",
        "the gold token: it follows; field `token_ids`: Input should be a list",
        "host@example.com s3://bucket/key@2 http://host/path@1 /home/me/run@3",
        "falsefalse test",
        "secret: validation failed; the passage: 1 of 3; passed: true",
        "http://localhost:5000/#/experiments/1?workflowType=machine_learning",
        "is it at https://a.example/v1? key=4711",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_values_are_redacted_at_every_depth():
    named = {
        "user": {
            "password": "hunter2",
            "api-key": "k",
            "auth_token": "t",
            "secret": "$NAME",
            "passwd": "$a b",
            "max_tokens": 7,
        }
    }
    hidden = {
        "user": {
            "password": "***",
            "api-key": "***",
            "auth_token": "***",
            "secret": "$NAME",
            "passwd": "***",
            "max_tokens": 7,
        }
    }
    assert redact_value(named) == hidden
    value = {"a": ["http://u:p@h", 1, None], "b": {"c": ("password=x",)}, "password=x": 1.5}
    assert redact_value(value) == {"a": ["http://***@h", 1, None], "b": {"c": ["password=***"]}, "password=x": 1.5}
