"""Requests to a KFP server: with time limits, with retries if they are safe, and with one line for each error."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import kfp_server_api
import urllib3
from kfp_server_api import rest

from posgap.foundation.errors import PosgapError
from posgap.foundation.retries import RetryPolicy, TransientError, Waits, retrying, within
from posgap.options.pipelines import KfpConfig

T = TypeVar("T")
HOST_VARIABLES = ("KFP_HOST", "KF_PIPELINES_ENDPOINT")
FIRST_WAIT = RetryPolicy.first_wait  # seconds
ANSWER_SECONDS = 30.0
TRIES = 6  # of a request
TRANSIENT = {408, 429, 500, 502, 503, 504}  # statuses of failures that may pass


class ServerRefusal(PosgapError):
    """The server refused the request with the HTTP status `status`."""

    def __init__(self, complaint: str, status: int):
        super().__init__(complaint)
        self.status = status


class NoAnswer(PosgapError):
    """The server was not reached, or failed, so it is unknown whether it carried out the request."""


def address(config: KfpConfig) -> str:
    """Returns the server's address: `config.host`, or else KFP_HOST or KF_PIPELINES_ENDPOINT."""
    host = config.host or next(filter(None, map(os.environ.get, HOST_VARIABLES)), "")
    if not host:
        raise PosgapError(f"no KFP server: give --host or set {HOST_VARIABLES[0]}, like http://localhost:8080")
    if not host.startswith(("http://", "https://")):
        raise PosgapError(f"--host: {host!r} must begin with http:// or https://")
    return host


def retry_policy() -> RetryPolicy:
    """Returns how often requests to KFP are retried."""
    return RetryPolicy(tries=TRIES, first_wait=FIRST_WAIT)


def once(create: Callable[[], T], find: Callable[[], dict[str, T]]) -> T:
    """Creates one object, and never two: if an answer was lost, it looks for the object before it tries again.

    `find` returns the existing objects of that name, by id. Status 409 (conflict) is treated in the same way, since
    another client may have created the object in the meantime.
    """
    before = set(find())
    lost: PosgapError | None = None

    def find_new() -> T | None:
        return next((new for key, new in find().items() if key not in before), None)

    def attempt() -> T:
        nonlocal lost
        new = find_new() if lost else None
        if new:
            return new
        try:
            return create()
        except NoAnswer as error:
            lost = error
            raise TransientError(str(error)) from None
        except ServerRefusal as error:
            if error.status != 409:
                raise
            lost = error
            raise _NameConflict from None

    with suppress(TransientError, _NameConflict):
        return retrying(retry_policy(), Waits("KFP"))(attempt)
    new = find_new()
    if new:
        return new
    assert lost is not None  # at least one try has failed
    raise lost


class _NameConflict(Exception):
    """Another thing has the name."""


class Transport(rest.RESTClientObject):
    """Sends KFP's requests. `token_source` says where the token comes from, for the message if it is refused.

    A failure worth a retry is retried, unless that could create an object twice (see `once`).
    """

    def __init__(self, configuration: kfp_server_api.Configuration, token_source: str):
        configuration.retries = False  # urllib3's own retries do not wait, and follow redirects to login pages
        super().__init__(configuration)
        self.host = configuration.host
        self.token_source = token_source
        self.waits = Waits(self.host)

    def request(self, method: str, url: str, **options: object) -> rest.RESTResponse:
        """Sends a request; raises `ServerRefusal` or `NoAnswer`."""
        creates = method == "POST" and ":" not in url.rsplit("/", 1)[-1]

        def attempt() -> rest.RESTResponse:
            try:
                return self._request_once(method, url, options)
            except _Again as again:
                if creates and again.may_have_worked:
                    raise NoAnswer(str(again)) from None
                raise

        try:
            return retrying(retry_policy(), self.waits)(attempt)
        except _Again as again:
            raise NoAnswer(str(again)) from None

    def _request_once(self, method: str, url: str, options: dict) -> rest.RESTResponse:
        try:
            # As a pair: KFP's code ignores a single float, and then there would be no limit at all.
            limited = options | {"_request_timeout": (ANSWER_SECONDS, ANSWER_SECONDS)}
            response = within(ANSWER_SECONDS, lambda: rest.RESTClientObject.request(self, method, url, **limited))
            json.loads(response.data)
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            hint = "is this the address of KFP?"
            raise _Again(f"{self.host}: cannot be reached ({_cause(error)}): {hint}", may_have_worked=False) from None
        except (urllib3.exceptions.TimeoutError, TimeoutError):
            raise _Again(f"{self.host}: no answer within {ANSWER_SECONDS:g} s") from None
        except urllib3.exceptions.HTTPError as error:
            raise _Again(f"{self.host}: {_cause(error)}") from None
        except kfp_server_api.ApiException as error:
            raise self._complaint(error) from None
        except ValueError:
            # KFP's code would treat a web page as an empty answer.
            raise ServerRefusal(
                f"{self.host}: the answer is not KFP's: {_short(response.data)!r}", response.status
            ) from None
        return response

    def _complaint(self, error: kfp_server_api.ApiException) -> Exception:
        status = error.status or 0
        answer = f"{status or ''} {_short(error.reason)}".strip()
        message = ": ".join(filter(None, [self.host, answer, _server_message(error.body)]))
        if status in TRANSIENT:
            return _Again(message, may_have_worked=status != 429)
        if status == 401 or 300 <= status < 400:
            where = f"KFP does not accept the token in {self.token_source}" if self.token_source else "set KFP_TOKEN"
            return ServerRefusal(f"{message}; {where}", status)
        if status == 403:
            return ServerRefusal(
                f"{message}; the token's owner has no permission for this: is --namespace right?", status
            )
        return ServerRefusal(message, status)


class _Again(TransientError):
    """A failure worth a retry, and whether the server may have carried out the request."""

    def __init__(self, complaint: str, may_have_worked: bool = True):
        super().__init__(complaint)
        self.may_have_worked = may_have_worked


def _server_message(body: bytes | None) -> str:
    """The server's error message; KFP's message for users, if there is one, is the shortest."""
    try:
        answer = json.loads(body or b"")
        return _short(next(m["message"] for m in [*answer.get("details", []), answer] if m.get("message")))
    except (ValueError, AttributeError, TypeError, LookupError, StopIteration):
        return _short(body or "")


def _short(text: str | bytes) -> str:
    words = " ".join((text.decode("utf-8", "replace") if isinstance(text, bytes) else text or "").split())
    return words if len(words) <= 200 else f"{words[:200]}..."


def _cause(error: Exception) -> str:
    """urllib3's message without the name of the object it concerns."""
    return str(error).rsplit(": ", 1)[-1]
