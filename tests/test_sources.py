"""Fetching public files, from a local server."""

import hashlib
import http.server
import threading
from typing import ClassVar

import pytest

from posgap.cli import main
from posgap.config import ImportConfig
from posgap.errors import PosgapError
from posgap.tasks import data, sources
from posgap.tasks.sources import SOURCES, Source, cache_folder, fetched

BODY = b"records" * 1000


class _Files(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        _Files.asked.append(self.path)
        found = self.path != "/missing"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: 10 if self.path == "/broken" else None] if found else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    _Files.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_file_is_downloaded_once(server, tmp_path):
    source = Source(f"{server}/kv.jsonl", "litm-kv", hashlib.sha256(BODY).hexdigest())
    path = fetched(source)
    assert path == tmp_path / "cache" / "kv.jsonl" and path.read_bytes() == BODY
    assert fetched(source) == path and _Files.asked == ["/kv.jsonl"]
    path.write_bytes(b"cut short")
    assert fetched(source).read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "sha256", "complaint"),
    [
        ("other", "0" * 64, f"/other: its sha256 is {hashlib.sha256(BODY).hexdigest()}, not 0000"),
        ("missing", "", "/missing: cannot be downloaded: HTTP 404 Not Found"),
        ("broken", "", "/broken: the download broke off after 10 of 7000 bytes"),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_kept(server, tmp_path, name, sha256, complaint):
    with pytest.raises(PosgapError, match=complaint):
        fetched(Source(f"{server}/{name}", "litm-kv", sha256))
    assert not list((tmp_path / "cache").iterdir())


def test_without_a_network_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    monkeypatch.setitem(data.SOURCES, "kv-75", Source("http://127.0.0.1:9/kv.jsonl.gz", "litm-kv"))
    with pytest.raises(SystemExit) as stopped:
        main(["data", "fetch", "kv-75"])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and "http://127.0.0.1:9/kv.jsonl.gz: cannot be downloaded" in shown
    assert "Traceback" not in shown and not list(tmp_path.iterdir())


def test_fetch_prints_the_path(server, monkeypatch, capsys):
    monkeypatch.setitem(data.SOURCES, "kv-75", Source(f"{server}/kv.jsonl", "litm-kv"))
    with pytest.raises(SystemExit) as stopped:
        main(["data", "fetch", "kv-75"])
    assert not stopped.value.code
    assert capsys.readouterr().out.strip() == str(cache_folder() / "kv.jsonl")


def test_an_unknown_name_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "fetch", "squad"])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and "'squad' is not one of 'kv-75', 'kv-140'" in shown


def test_every_source_is_of_a_format_that_import_reads():
    for source in SOURCES.values():
        ImportConfig(input="x", out="y", format=source.format)
        assert source.url.startswith("http") and len(source.sha256) in (0, 64)
    assert len({source.file for source in SOURCES.values()}) == len(SOURCES)


def test_the_cache_is_where_the_user_s_caches_are(monkeypatch, tmp_path):
    monkeypatch.delenv("POSGAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.cache_folder() == tmp_path / "posgap"
