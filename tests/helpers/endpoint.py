"""A small local server that speaks the OpenAI protocol, well or badly."""

import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RECORD = re.compile(r'"([\w-]+)": "([\w-]+)"')


def retrieve(text: str) -> str:
    """The right answer to a key-value prompt."""
    records, _, question = text.rpartition("Key:")
    return dict(RECORD.findall(records))[re.search(r'"([\w-]+)"', question)[1]]


class Endpoint:
    """What the server saw, and how it answers.

    `answer(text)` gives the response to a prompt, or (response, finish_reason) where that is not "stop".
    `misbehave(text, times)` is called with the prompt and how often it came before; it returns None for a
    proper answer, or (status, headers, body), or seconds to hang.
    """

    def __init__(
        self, answer: Callable[[str], str | tuple[str, str]] = retrieve, misbehave=lambda text, times: None, seconds=0.0
    ):
        self.answer, self.misbehave, self.seconds = answer, misbehave, seconds
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.models: list[str] | int | None = None  # that it lists; None: it has no list; a number: that status
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()
        self.url = ""

    def reply(self, body: dict, headers: dict) -> tuple[int, dict, str]:
        chat = "messages" in body
        text = body["messages"][0]["content"] if chat else body["prompt"]
        with self.lock:
            times, self.seen[text] = self.seen[text], self.seen[text] + 1
            self.bodies.append(body)
            self.headers.append(headers)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        wrong = self.misbehave(text, times)
        if isinstance(wrong, tuple):
            result = wrong
        else:
            time.sleep(self.seconds if wrong is None else wrong)
            said = self.answer(text)
            said, reason = said if isinstance(said, tuple) else (said, "stop")
            answer = {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
            result = 200, {}, json.dumps({"choices": [{"index": 0, **answer, "finish_reason": reason}]})
        with self.lock:
            self.under_way -= 1
        return result


@contextmanager
def served(endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    """Serves `endpoint` on a free port of this machine, at `endpoint.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a body waits until the client has acknowledged the headers

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path.partition("?")[0] == ("/v1/chat/completions" if "messages" in body else "/v1/completions")
            status, headers, text = endpoint.reply(body, dict(self.headers))
            content = text.encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client did not wait

        def do_GET(self):
            assert self.path.partition("?")[0] == "/v1/models"
            endpoint.headers.append(dict(self.headers))
            listed = [{"id": name} for name in endpoint.models] if isinstance(endpoint.models, list) else []
            content = json.dumps({"object": "list", "data": listed}).encode()
            self.send_response(
                endpoint.models if isinstance(endpoint.models, int) else 404 if endpoint.models is None else 200
            )
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 1024  # with http.server's 5, some of 128 connections at once are reset or hang

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        endpoint.url = f"https://localhost:{server.server_port}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
