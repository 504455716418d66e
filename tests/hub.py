"""A Hugging Face hub on this machine, with one model and one data set, that counts what it is asked, and takes what is
pushed."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import yaml

NAME, DATA = "someone/tiny", "someone/data"
COMMIT, TAG = "0123456789abcdef" * 2 + "01234567", "v1"


TOKEN = "hf_of_the_tests"  # the only one that may write


class Hub:
    """`asked` holds "METHOD path" of each request; where `hangs` is set nothing is answered.

    `data` has the files of the data set. `pushed` has the files of each branch of a model that was pushed, by
    "owner/name" and branch, `visibility` what was asked for as it was made, and `commits` the title of each commit.
    """

    def __init__(self, folder: Path):
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self.data: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.hangs = False
        self.closing = threading.Event()
        self.url = ""
        self.pushed: dict[str, dict[str, dict[str, bytes]]] = {}
        self.visibility: dict[str, str | None] = {}
        self.commits: list[str] = []
        self.large: dict[str, bytes] = {}  # by sha256

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
        name, resolve, rest = path.lstrip("/").partition("/resolve/")
        if resolve and name in self.pushed:
            branch, _, file = rest.partition("/")
            body = self.pushed[name].get(unquote(branch), {}).get(file)
            if body is None:
                return 404, {"X-Error-Code": "EntryNotFound"}, b""
            return 200, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT}, body
        missing = "RevisionNotFound" if path.startswith(f"/api/models/{NAME}/") else "RepoNotFound"
        return 404, {"X-Error-Code": missing}, b""

    def take(self, method: str, path: str, body: bytes, token: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to what would write: as huggingface_hub 2.4 asks and reads it."""
        if method == "PUT":
            self.large[path.removeprefix("/large/")] = body
            return 200, {}, b""
        if token != f"Bearer {TOKEN}":
            return 401, {"X-Error-Message": "Invalid username or password."}, b""
        if path == "/api/validate-yaml":
            front = json.loads(body)["content"].split("---\n")[1]
            index = yaml.safe_load(front)["model-index"]
            faults = [] if all(model["name"] and model["results"] for model in index) else [{"message": "model-index"}]
            return (400 if faults else 200), {}, json.dumps({"errors": faults, "warnings": []}).encode()
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            known = self.pushed.setdefault(name, {})
            if known:
                return 409, {}, json.dumps({"url": f"{self.url}/{name}"}).encode()
            known["main"], self.visibility[name] = {}, wanted.get("visibility")
            return 200, {}, json.dumps({"url": f"{self.url}/{name}"}).encode()
        name, _, what = path.removeprefix("/api/models/").lstrip("/").partition(".git/info/lfs/objects/")
        if what == "batch":
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.url}/large/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return 200, {}, json.dumps({"transfer": "basic", "objects": objects}).encode()
        owner, name, verb, revision = name.split("/")
        branches, revision = self.pushed[f"{owner}/{name}"], unquote(revision)
        if verb == "branch":
            there = revision in branches
            branches.setdefault(revision, dict(branches["main"]))
            return (409 if there else 200), {}, b""
        if verb == "preupload":
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith((".safetensors", ".png")) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            return 200, {}, json.dumps({"files": modes}).encode()
        assert verb == "commit"
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "file":
                branches[revision][value["path"]] = base64.b64decode(value["content"])
            else:
                branches[revision][value["path"]] = self.large[value["oid"]]
        answer = {"commitUrl": f"{self.url}/{owner}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        return 200, {}, json.dumps(answer).encode()


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

        def do_POST(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "")
            status, headers, answer = hub.take(self.command, self.path.partition("?")[0], body, token)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_POST

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
