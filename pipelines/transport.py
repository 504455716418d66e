"""How requests reach a KFP server: with time limits, repeated where that is safe, and one line for what goes wrong."""

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import kfp_server_api
import urllib3
from kfp_server_api import rest

from posgap.config import ServerConfig
from posgap.errors import PosgapError

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between tries; doubled each time
PASSING = {408, 429, 500, 502, 503, 504}  # statuses that may be others a moment later


class Refused(PosgapError):
    """The server's answer is no; `status` is its HTTP status."""

    def __init__(self, complaint: str, status: int):
        super().__init__(complaint)
        self.status = status


class Unanswered(PosgapError):
    """The server was not reached, or failed: whether it did what it was asked is not known."""


def tries(retries: int) -> Iterator[bool]:
    """Counts 1 + `retries` tries, with growing waits between them; each says whether it is the last."""
    for number in range(retries + 1):
        if number:
            time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (number - 1)) * random.uniform(0.5, 1.0))
        yield number == retries


def once(create: Callable[[], T], find: Callable[[], dict[str, T]], retries: int) -> T:
    """Creates one thing, and never two: where an answer was lost, looks whether it is there before asking again.

    `find` returns what is there under its name, by id. 409 is such a case too: another may have been quicker.
    """
    before = set(find())
    lost: PosgapError | None = None

    def made() -> T | None:
        return next((thing for key, thing in find().items() if key not in before), None)

    for _ in tries(retries):
        if lost and (thing := made()):
            return thing
        try:
            return create()
        except Unanswered as error:
            lost = error
        except Refused as error:
            if error.status != 409:
                raise
            lost = error
            break
    if thing := made():
        return thing
    assert lost is not None  # there was a try
    raise lost


class Transport(rest.RESTClientObject):
    """Sends KFP's requests. `token_source` names where the token is from, for the complaint that it is not taken.

    What may go right when sent again is sent again, unless that could create a second one (see `once`).
    """

    def __init__(self, configuration: kfp_server_api.Configuration, config: ServerConfig, token_source: str):
        configuration.retries = False  # urllib3's own: without waits, and they follow redirects to login pages
        super().__init__(configuration)
        self.host, self.config, self.token_source = configuration.host, config, token_source

    def request(self, method: str, url: str, **options: object) -> rest.RESTResponse:
        creates = method == "POST" and ":" not in url.rsplit("/", 1)[-1]
        for last in tries(self.config.retries):
            try:
                return self._send(method, url, options)
            except _Again as again:
                if last or (creates and again.may_have_worked):
                    raise Unanswered(str(again)) from None
        raise AssertionError("unreachable")

    def _send(self, method: str, url: str, options: dict) -> rest.RESTResponse:
        seconds = self.config.request_timeout
        try:
            # As a pair: of a single number KFP's code takes only an int, and a float for no limit at all.
            response = super().request(method, url, **options | {"_request_timeout": (seconds, seconds)})
            json.loads(response.data)
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            hint = "is this the address of KFP?"
            raise _Again(f"{self.host}: cannot be reached ({_reason(error)}): {hint}", may_have_worked=False) from None
        except urllib3.exceptions.TimeoutError:
            raise _Again(f"{self.host}: no answer within {seconds:g} s") from None
        except urllib3.exceptions.HTTPError as error:
            raise _Again(f"{self.host}: {_reason(error)}") from None
        except kfp_server_api.ApiException as error:
            raise self._complaint(error) from None
        except ValueError:
            # KFP's code would take a web page for an empty answer.
            raise Refused(f"{self.host}: the answer is not KFP's: {_short(response.data)!r}", response.status) from None
        return response

    def _complaint(self, error: kfp_server_api.ApiException) -> Exception:
        status = error.status or 0
        answer = f"{status or ''} {_short(error.reason)}".strip()
        message = ": ".join(filter(None, [self.host, answer, _told(error.body)]))
        if status in PASSING:
            return _Again(message, may_have_worked=status != 429)
        if status == 401 or 300 <= status < 400:
            where = f"KFP does not take the token in {self.token_source}" if self.token_source else "set KFP_TOKEN"
            return Refused(f"{message}; {where}", status)
        if status == 403:
            return Refused(f"{message}; the token's owner may not do this: is --namespace right?", status)
        return Refused(message, status)


class _Again(Exception):
    """What may go right when sent again, and whether it may have gone right already."""

    def __init__(self, complaint: str, may_have_worked: bool = True):
        super().__init__(complaint)
        self.may_have_worked = may_have_worked


def _told(body: bytes | None) -> str:
    """What the server says is wrong; KFP's message for users, where there is one, is the shortest."""
    try:
        told = json.loads(body or b"")
        return _short(next(m["message"] for m in [*told.get("details", []), told] if m.get("message")))
    except (ValueError, AttributeError, TypeError, LookupError, StopIteration):
        return _short(body or "")


def _short(text: str | bytes) -> str:
    words = " ".join((text.decode("utf-8", "replace") if isinstance(text, bytes) else text or "").split())
    return words if len(words) <= 200 else f"{words[:200]}..."


def _reason(error: Exception) -> str:
    """urllib3's message without the object it happened to."""
    return str(error).rsplit(": ", 1)[-1]
