"""Sends requests to an endpoint over HTTP, by one session with its connections, and says what went wrong with each.

The client is aiohttp: httpx takes five times as long for a request, as its pool looks at all connections each time. The
openai package uses httpx, reads answers of any size, and shows no waits.
"""

import asyncio
import json
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import aiohttp

from posgap.foundation.bounds import RECORD
from posgap.foundation.errors import PosgapError
from posgap.foundation.redaction import HIDDEN, MIN_CHARACTERS, redact
from posgap.foundation.retries import TransientError
from posgap.generation.endpoint_address import endpoint_url, headers_of, tls

SECONDS_TO_CONNECT = 30.0
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_WITHOUT_SOCKS = "a SOCKS proxy takes the package aiohttp-socks (pip install aiohttp-socks)"


class BusyError(TransientError):
    """The endpoint cannot be reached or is overloaded; the prompt is not at fault."""


class TimedOut(TransientError):
    """No whole answer in time."""


class Response(NamedTuple):
    """The response to a request, and when the request was sent, by the event loop's clock."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent: float

    @property
    def is_success(self) -> bool:
        """Whether the status says so."""
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> float:
        """The seconds that the Retry-After header asks for, as a number or as a date; 0 without such a header."""
        value = self.headers.get("Retry-After", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (TypeError, ValueError):
            return 0.0


class Sending:
    """A request under way: its clock begins when it has been sent, not while it waits for a connection."""

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.sent = asyncio.get_running_loop().time()
        self.deadline = asyncio.timeout(None)

    def note_sent(self) -> None:
        """Starts the clock."""
        self.sent = asyncio.get_running_loop().time()
        self.deadline.reschedule(self.sent + self.timeout)


class EndpointClient:
    """Posts JSON to one URL of an endpoint.

    `address` and `header` may have `$VARIABLE` in them. A whole answer may take `timeout` seconds. `has_responded` says
    whether any response has come yet: until then, an unreachable server ends the work at once.
    """

    def __init__(self, address: str, path: str, header: Mapping[str, str], timeout: float):
        self.url = endpoint_url(address, path)
        self.shown = redact(self.url)
        self.headers = headers_of(header)
        self.timeout = timeout
        self.has_responded = False
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """While this lasts, requests can be posted."""

        async def note_sent(_: Any, context: Any, __: Any) -> None:
            context.trace_request_ctx.note_sent()

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(note_sent)
        connector, self._proxy = self._way()
        async with aiohttp.ClientSession(
            connector=connector,
            headers={"Content-Type": "application/json", "User-Agent": "posgap"} | self.headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=SECONDS_TO_CONNECT),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        ) as self._session:
            yield

    def _way(self) -> tuple[aiohttp.BaseConnector, str | None]:
        """Returns what connects to the endpoint, and the HTTP proxy that the environment names for it."""
        settings: dict[str, Any] = {"limit": 0, "ssl": tls() if self.url.startswith("https:") else True}
        proxy = proxy_for(self.url)
        scheme = proxy.partition("://")[0] if proxy else ""
        try:
            if scheme.startswith("socks"):
                from aiohttp_socks import ProxyConnector

                return ProxyConnector.from_url(proxy, **settings), None
            if scheme not in ("", "http", "https"):
                raise ValueError(f"Unknown scheme {scheme}")
            return aiohttp.TCPConnector(**settings), proxy
        except (ImportError, ValueError) as fault:
            reason = _WITHOUT_SOCKS if isinstance(fault, ImportError) else str(fault)
            raise PosgapError(
                f"{self.shown}: the proxy that the environment names (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) cannot "
                f"be used: {redact(reason)}; or name this host in NO_PROXY"
            ) from None

    async def post(self, fields: Mapping[str, Any]) -> Response:
        """Returns the response. Raises `TransientError` if a retry may help, and `PosgapError` if nothing listens
        there."""
        assert self._session is not None
        sending = Sending(self.timeout)
        body = _ENCODER.encode(fields).encode()
        try:
            async with (
                sending.deadline,
                self._session.post(
                    self.url, data=body, proxy=self._proxy, allow_redirects=False, trace_request_ctx=sending
                ) as response,
            ):
                answer = Response(response.status, response.headers, await _read_body(response), sending.sent)
        except aiohttp.ConnectionTimeoutError:
            raise BusyError(f"no connection within {SECONDS_TO_CONNECT:g} s") from None
        except TimeoutError:
            raise TimedOut(f"no answer within {self.timeout:g} s") from None
        except aiohttp.InvalidURL as error:
            raise PosgapError(f"{self.shown}: is not the address of an endpoint: {redact(str(error))}") from None
        except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError) as error:
            if not self.has_responded and (reason := why_nobody(error)):
                raise PosgapError(f"{self.shown}: {reason}: {_what_then(self.url)}") from None
            raise BusyError(self.hide(_describe(error))) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransientError(self.hide(_describe(error))) from None
        self.has_responded = True
        return answer

    def hide(self, text: str) -> str:
        """Returns the text without secrets: those of the environment, and the headers that were sent."""
        for value in sorted(self.headers.values(), key=len, reverse=True):
            for secret in (value, *value.split()):
                if len(secret) >= MIN_CHARACTERS:
                    text = text.replace(secret, HIDDEN)
        return redact(text)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > RECORD:
            raise TransientError(f"an answer of more than {RECORD >> 20} MB")
    return b"".join(parts)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def why_nobody(error: BaseException | None) -> str:
    """Why no server that can be asked is at the address at all; empty if a later try may find one."""
    if isinstance(error, BaseExceptionGroup):  # a host with several addresses
        reasons = [why_nobody(each) for each in error.exceptions]
        return reasons[0] if all(reasons) else ""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused)"
    if isinstance(error, socket.gaierror):
        return "the host name is unknown" if error.errno == socket.EAI_NONAME else ""
    if type(error) is ssl.SSLCertVerificationError:  # aiohttp has a class of its own below it
        return f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE names another authority's file"
    return why_nobody(error.__cause__ or error.__context__) if error else ""


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL, with its scheme; None for a direct connection."""
    scheme, _, rest = url.partition("://")
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(rest.partition("/")[0]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _what_then(url: str) -> str:
    """Says what to do if nothing listens at an address, which may lie behind a proxy."""
    way = ", or the proxy that the environment names, or set NO_PROXY" if proxy_for(url) else ""
    return f"start the server, or correct the address{way}"


class PausingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stops while it does not run, as while a caller looks at an answer."""

    def __init__(self) -> None:
        super().__init__()
        self._away = 0.0
        self._left_at = super().time()

    def time(self) -> float:
        """Its running time, in seconds."""
        return (super().time() if self.is_running() else self._left_at) - self._away

    def run_forever(self) -> None:
        """Runs until it is stopped; its clock continues from the time at which it stopped."""
        self._away += super().time() - self._left_at
        try:
            super().run_forever()
        finally:
            self._left_at = super().time()

    def turn(self, times: int = 4) -> None:
        """Lets ready tasks go on: sockets are read, and tasks that wait for them send their next request."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()
