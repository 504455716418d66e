"""A proxy in front of an HTTP server that spoils what passes through it: real connections, real faults."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
LOGIN_PAGE = b"<!DOCTYPE html><title>Please log in</title>"


@dataclass(frozen=True)
class Fault:
    """What becomes of one exchange. With none of these set it passes as it is.

    `drop`: the connection is reset, "before" the server has seen the request or "after" it did what was asked.
    `status`: the proxy answers by itself, with `body` and `headers`. `truncate`: half of the server's answer comes,
    then the connection ends. `delay`: seconds before the request goes on. `hang`: nothing ever comes.
    `drip`: the answer comes at one byte a second. `change`: what becomes of the server's answer to a request that went
    well.
    """

    drop: str = ""
    status: int = 0
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    truncate: bool = False
    delay: float = 0.0
    hang: bool = False
    drip: bool = False
    change: Callable[[bytes], bytes] | None = None


FINE = Fault()
FAULTS = {
    "drop before": Fault(drop="before"),
    "drop after": Fault(drop="after"),
    "truncate": Fault(truncate=True),
    "delay": Fault(delay=0.3),
    "500": Fault(status=500, body=json.dumps({"error_code": "INTERNAL_ERROR", "message": "boom"}).encode()),
    "500 page": Fault(status=500, body=b"<html>Internal Server Error</html>"),
    "429": Fault(status=429, headers=(("Retry-After", "86400"),)),
    "503 SlowDown": Fault(status=503, body=SLOW_DOWN, headers=(("Content-Type", "application/xml"),)),
    "login page": Fault(status=200, body=LOGIN_PAGE, headers=(("Content-Type", "text/html"),)),
    "hang": Fault(hang=True),
    "drip": Fault(drip=True),
}


class FaultProxy:
    """`fault(number, method, path)` decides on each request, counted from 0; `seen` holds "METHOD path" of each.

    A client may also take it for its HTTP proxy, and ask for whole addresses."""

    def __init__(self, target: str):
        address = urlsplit(target)
        assert address.hostname and address.port
        self.host, self.port = address.hostname, address.port
        self.fault: Callable[[int, str, str], Fault] = lambda number, method, path: FINE
        self.seen: list[str] = []
        self.lock = threading.Condition()
        self.under_way = 0
        self.closing = threading.Event()
        self.url = ""

    def always(self, fault: Fault) -> None:
        self.fault = lambda number, method, path: fault

    def heal(self) -> None:
        """Waits for what the server was still asked: a late PUT would meet the requests that come after."""
        with self.lock:
            self.always(FINE)
            assert self.lock.wait_for(lambda: not self.under_way, timeout=60)

    @contextmanager
    def next_fault(self, method: str, path: str) -> Iterator[Fault]:
        """The fault of one exchange, which is under way from this decision on, not only once it is sent on."""
        with self.lock:
            self.seen.append(f"{method} {path}")
            self.under_way += 1
            fault = self.fault(len(self.seen) - 1, method, path)
        try:
            yield fault
        finally:
            with self.lock:
                self.under_way -= 1
                self.lock.notify_all()


@contextmanager
def faulty(target: str) -> Iterator[FaultProxy]:
    """A proxy on a free port of this machine in front of the server at `target`."""
    proxy = FaultProxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def exchange(self) -> None:
            body = self._body()
            answer: tuple[int, list[tuple[str, str]], bytes] = (0, [], b"")
            with proxy.next_fault(self.command, self.path) as fault:
                proxy.closing.wait(fault.delay)
                if fault.status:
                    answer = (fault.status, list(fault.headers), fault.body)
                elif not fault.hang and fault.drop != "before":
                    answer = self._forwarded(body)
                    if fault.change and answer[0] < 300:
                        answer = (*answer[:2], fault.change(answer[2]))
            if fault.hang:
                proxy.closing.wait()
            if fault.hang or fault.drop:
                self._reset()
            else:
                self._send(*answer, fault)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = exchange

        def handle_expect_100(self) -> bool:
            super().handle_expect_100()
            self.wfile.flush()  # whoever asked waits for it
            return True

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                size = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(size)
                if len(body) < size:  # its client gave up; S3 refuses such a request, and moto would keep what came
                    raise ConnectionResetError
                return body
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
            headers |= {"Content-Length": str(len(body)), "Connection": "close"}
            try:
                whole = urlsplit(self.path)
                connection.request(self.command, whole._replace(scheme="", netloc="").geturl(), body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault) -> None:
            dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
            length = next((v for k, v in headers if k.lower() == "content-length"), str(len(body)))
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in dropped:
                    self.send_header(name, value)
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault.drip:
                for at in range(len(body)):
                    self.wfile.write(body[at : at + 1])
                    self.wfile.flush()
                    if proxy.closing.wait(1):
                        break
                self._reset()
            elif fault.truncate:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self._reset()
            else:
                self.wfile.write(body)

        def _reset(self) -> None:
            """Ends the connection with a reset, which no client takes for the end of an answer."""
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def finish(self) -> None:
            with suppress(OSError, ValueError):  # the connection was reset, by whomever
                super().finish()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that did not wait

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()
