"""A Hugging Face hub on this machine, with one model and one data set, that counts what it is asked."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME, DATA = "someone/tiny", "someone/data"
COMMIT, TAG = "0123456789abcdef" * 2 + "01234567", "v1"


class Hub:
    """`asked` holds "METHOD path" of each request; where `hangs` is set nothing is answered.

    `data` has the files of the data set.
    """

    def __init__(self, folder: Path):
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self.data: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.hangs = False
        self.closing = threading.Event()
        self.url = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if path == f"/api/datasets/{DATA}":
            return 200, {}, json.dumps({"id": DATA, "sha": COMMIT}).encode()
        if path.startswith(f"/api/datasets/{DATA}/tree/"):
            return 200, {}, _tree(self.data)
        if body := self.data.get(path.removeprefix(f"/datasets/{DATA}/resolve/main/")):
            return 200, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT}, body
        if path in (f"/api/models/{NAME}/revision/{revision}" for revision in ("main", TAG, COMMIT)):
            return 200, {}, json.dumps({"id": NAME, "sha": COMMIT}).encode()
        if path == f"/api/models/{NAME}/tree/{COMMIT}":
            return 200, {}, _tree(self.files)
        prefix = f"/{NAME}/resolve/{COMMIT}/"
        if path.startswith(prefix) and (body := self.files.get(path.removeprefix(prefix))) is not None:
            return 200, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT}, body
        missing = "RevisionNotFound" if path.startswith(f"/api/models/{NAME}/") else "RepoNotFound"
        return 404, {"X-Error-Code": missing}, b""


def _tree(files: dict[str, bytes]) -> bytes:
    """The hub's list of files."""
    entries = [{"type": "file", "path": name, "size": len(body), "oid": _oid(body)} for name, body in files.items()]
    return json.dumps(entries).encode()


def _oid(body: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


@contextmanager
def hub_with(folder: Path) -> Iterator[Hub]:
    """Serves the model of a folder as `someone/tiny`, on a free port of this machine."""
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if hub.hangs:
                hub.closing.wait()
                self.close_connection = True
                return
            status, headers, body = hub.answer(self.path.partition("?")[0])
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        server.server_close()
