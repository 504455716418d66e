"""The connection to S3, with its errors in one line each.

Endpoint, credentials and region come from boto3's usual places: AWS_ENDPOINT_URL (for MinIO and
its kind), AWS_ACCESS_KEY_ID, AWS_PROFILE, the role of a pod, and so on.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from posgap.foundation.errors import BadOption, NoServer, NotFound, PosgapError, Refused, first_line
from posgap.foundation.retries import RetryPolicy, Waits

RETRY_POLICY = RetryPolicy(seconds=60, longest_wait=15)  # of a request; a server that says SlowDown means minutes
UNREACHED = RetryPolicy(seconds=5, longest_wait=2)  # if nothing listens at the address, which is mostly wrong then
READ_SECONDS = 60.0  # for an answer, and for the next bytes of a download
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the pod's role"
_REFUSALS = {
    "NoSuchBucket": "there is no such bucket",
    "NoSuchKey": "there is no such object",
    "404": "there is no such object",
    "AccessDenied": "access denied: these credentials may not do this",
    "403": "access denied: these credentials may not do this, or there is no such object",
    "InvalidAccessKeyId": f"S3 does not know this access key; {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key is wrong; {_CREDENTIALS}",
    "ExpiredToken": "the credentials have expired; get new ones",
    "BadDigest": "checksum mismatch in transfer; try again",
    "PreconditionFailed": "it was changed while it was read; run the same command again",
    "412": "it was changed while it was read; run the same command again",
}
_MISSING = {"NoSuchBucket", "NoSuchKey", "404"}
_LASTING = {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}


def client() -> Any:
    """boto3's client for S3 as the environment asks for it. It may be shared by threads."""
    return _client(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))))


@lru_cache(maxsize=4)
def _client(environment: tuple) -> Any:
    from boto3.session import Session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    once = {"retries": {"total_max_attempts": 1, "mode": "standard"}, "connect_timeout": 10}
    try:
        made = Session().client("s3", config=Config(**once, read_timeout=READ_SECONDS, max_pool_connections=32))
    except (BotoCoreError, ValueError) as error:
        raise BadOption(f"S3: {_describe_error(error)}") from None
    made.meta.events.register_first("needs-retry.s3", _Tries(made.meta.endpoint_url).seconds_before_retry)
    return made


class _Tries:
    """Decides when botocore sends a request again.

    botocore itself gives up within seconds, and at once after some thirty failed requests of a process. Which errors
    are worth another try is its decision.
    """

    def __init__(self, address: str):
        from botocore.retries.standard import RetryEventAdapter, StandardRetryConditions

        self._adapter = RetryEventAdapter()
        self._conditions = StandardRetryConditions(max_attempts=sys.maxsize)
        self._waits = Waits(f"S3 at {address}")

    def seconds_before_retry(self, **details: Any) -> float | None:
        """Returns the seconds to wait before a retry; None for no retry."""
        from botocore.exceptions import EndpointConnectionError

        context = self._adapter.create_retry_context(**details)
        if not self._conditions.is_retryable(context):
            return None
        retry_policy = UNREACHED if isinstance(context.caught_exception, EndpointConnectionError) else RETRY_POLICY
        since = context.request_context.setdefault("posgap_failing_since", time.monotonic())
        seconds = retry_policy.seconds_to_wait(context.attempt_number)
        if time.monotonic() + seconds - since >= retry_policy.seconds:
            return None
        error = context.caught_exception
        reason = first_line(error).partition(" from endpoint URL")[0] if error else context.get_error_code()
        self._waits.count(reason or "no answer", seconds)
        return seconds


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Turns boto3's errors into a `PosgapError` of one line about `what`."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError

    try:
        yield
    except S3DownloadFailedError:
        raise NoServer("has changed since it was listed; try again when no other program writes it", at=what) from None
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise _kind_of(error)(_describe_error(error), at=what) from None
    except RetriesExceededError as error:
        raise NoServer(_describe_error(error.last_exception), at=what) from None


def _kind_of(error: Exception) -> type[PosgapError]:
    """The error to raise: S3 refuses some requests for good, and everything else may pass."""
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    if refusal(error) in _MISSING:
        return NotFound
    lacks_credentials = isinstance(error, NoCredentialsError | PartialCredentialsError)
    return Refused if lacks_credentials or refusal(error) in _LASTING else NoServer


def refusal(error: Exception) -> str:
    """Returns S3's code of a refusal; empty if it did not answer."""
    answer = getattr(error, "response", None) or {}  # a lost connection has none
    return answer.get("Error", {}).get("Code", "")


def _describe_error(error: Exception) -> str:
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        code = refusal(error)
        if code:
            return _REFUSALS.get(code) or f"S3 refused: {code}: {error.response['Error'].get('Message', '')}"
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return f"no AWS credentials; {_CREDENTIALS}"
    if isinstance(error, exceptions.FlexibleChecksumError):
        return "checksum mismatch: what arrived is not what S3 has; try again"
    if isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError):
        return f"S3 cannot be reached ({first_line(error)}); is AWS_ENDPOINT_URL right, and is there a network?"
    return first_line(error)
