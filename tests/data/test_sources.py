"""Fetching public files, from a local server."""

import hashlib
import http.server
import io
import subprocess
import threading
import zipfile
from typing import ClassVar

import pytest
from fault_proxy import FAULTS, FINE, faulty
from refusals import refuses

from posgap.cli.main import main
from posgap.data import fetching
from posgap.data.fetching import checksum, fetch_source
from posgap.data.reading import read_examples
from posgap.data.sources import SOURCES, Source
from posgap.foundation.errors import Contradiction, Malformed, NoServer, Refused
from posgap.foundation.locations import cache_folder
from posgap.foundation.retries import RetryPolicy
from posgap.options.data_import import ImportConfig
from posgap.verbs import data_import

BODY = b"records" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


class _Files(http.server.BaseHTTPRequestHandler):
    """Gives BODY, or what `other` has, at every path but /missing; /broken breaks off, /moved leads elsewhere."""

    asked: ClassVar[list[str]] = []
    other: ClassVar[dict[str, bytes]] = {}

    def do_GET(self):
        _Files.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path == "/moved.zip":
            self.send_response(302)
            self.send_header("Location", "/archive.zip")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = _Files.other.get(path, BODY) if path != "/missing" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: 10 if path == "/broken" else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    _Files.asked.clear()
    _Files.other.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_file_is_downloaded_once(server, tmp_path):
    source = Source(f"{server}/kv.jsonl", "litm-kv", f"sha256:{SHA256}")
    path = fetch_source(source)
    assert path == tmp_path / "cache" / "kv.jsonl" and path.read_bytes() == BODY
    assert fetch_source(source) == path and _Files.asked == ["/kv.jsonl"]
    assert subprocess.run(["sha256sum", "--check", "kv.jsonl.sha256"], cwd=path.parent, check=False).returncode == 0
    path.write_bytes(b"cut short")
    assert fetch_source(source).read_bytes() == BODY


@pytest.mark.parametrize(
    ("algorithm", "of_nothing", "of_hello"),
    [  # as sha256sum, md5sum and git hash-object say
        ("sha256", "e3b0c44298fc1c14", "5891b5b522d5df08"),
        ("md5", "d41d8cd98f00b204", "b1946ac92492d234"),
        ("git", "e69de29bb2d1d643", "ce013625030ba8db"),
    ],
)
def test_checksums_are_those_of_the_usual_tools(tmp_path, algorithm, of_nothing, of_hello):
    for content, wanted in ((b"", of_nothing), (b"hello\n", of_hello)):
        (tmp_path / "file").write_bytes(content)
        assert checksum(tmp_path / "file", algorithm).startswith(wanted)


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.json", content)
    return packed.getvalue()


def test_a_member_is_taken_out_of_an_archive_that_is_checked_whole(server, tmp_path):
    archive = _Files.other["/archive.zip"] = zipped(dev=b"[1]", train=b"[2]")
    wanted = f"md5:{hashlib.md5(archive).hexdigest()}"
    path = fetch_source(Source(f"{server}/moved.zip?dl=1", "2wiki", wanted, "dev.json"))
    assert path == tmp_path / "cache" / "moved-dev.json" and path.read_bytes() == b"[1]"
    assert sorted(p.name for p in path.parent.iterdir()) == ["moved-dev.json", "moved-dev.json.sha256"]
    with refuses(Malformed, "test.json", at="archive.zip"):
        fetch_source(Source(f"{server}/archive.zip", "2wiki", wanted, "test.json"))
    with refuses(Malformed, "dev.json", at="other.zip"):
        fetch_source(Source(f"{server}/other.zip", "2wiki", "", "dev.json"))
    assert len(list(path.parent.iterdir())) == 2


def test_without_a_published_checksum_the_first_download_is_trusted(server, caplog):
    source = Source(f"{server}/webq.json.gz", "dpr")
    caplog.set_level("INFO", logger="posgap")
    path = fetch_source(source)
    assert f"sha256 {SHA256}, recorded in webq.json.gz.sha256, since none is published" in caplog.text
    path.unlink()
    assert fetch_source(source).read_bytes() == BODY
    path.unlink()
    _Files.other["/webq.json.gz"] = b"something else"
    with refuses(Contradiction, SHA256, "gz.sha256", at="webq.json.gz"):
        fetch_source(source)
    assert not path.exists()
    path.with_name("webq.json.gz.sha256").unlink()
    assert fetch_source(source).read_bytes() == b"something else"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "checksum", "kind", "named"),
    [
        ("other", f"sha256:{'0' * 64}", Contradiction, [SHA256, "0000"]),
        ("other", f"git:{'0' * 40}", Contradiction, ["git", "0000"]),
        ("missing", "", Refused, ["404"]),
        ("broken", "", NoServer, ["10 bytes", "7000"]),
    ],
)
def test_what_goes_wrong_is_said_and_nothing_is_kept(server, tmp_path, name, checksum, kind, named):
    with refuses(kind, *named, at=f"/{name}"):
        fetch_source(Source(f"{server}/{name}", "litm-kv", checksum))
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"login page"}))
def test_a_server_that_fails_at_first_is_asked_again(server, tmp_path, monkeypatch, name):
    monkeypatch.setattr(fetching, "SECONDS", 0.7)
    monkeypatch.setattr(fetching, "RETRY_POLICY", RetryPolicy(tries=4, first_wait=0.01, longest_wait=0.05))
    with faulty(server) as proxy:
        proxy.fault = lambda number, method, path: FAULTS[name] if number < 2 else FINE
        assert fetch_source(Source(f"{proxy.url}/kv.jsonl", "litm-kv")).read_bytes() == BODY
        proxy.always(FAULTS[name])
        if name != "delay":
            with refuses(NoServer, at=f"{proxy.url}/other"):
                fetch_source(Source(f"{proxy.url}/other", "litm-kv"))
            assert len(proxy.seen) == 3 + 4


def test_without_a_network_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    monkeypatch.setitem(data_import.SOURCES, "kv-75", Source("http://127.0.0.1:9/kv.jsonl.gz", "litm-kv"))
    with pytest.raises(SystemExit) as stopped:
        main(["data", "import", "--input", "kv-75", "--out", "e.jsonl"])
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and "http://127.0.0.1:9/kv.jsonl.gz: cannot be downloaded" in shown
    assert "Traceback" not in shown and not list(tmp_path.iterdir())


def test_a_public_file_is_imported_by_its_name(server, monkeypatch, tmp_path):
    _Files.other["/kv.jsonl"] = b'{"ordered_kv_records": [["a5", "d"], ["9f", "7"]], "key": "a5", "value": "d"}'
    monkeypatch.setitem(data_import.SOURCES, "kv-75", Source(f"{server}/kv.jsonl", "litm-kv"))
    with pytest.raises(SystemExit) as stopped:
        main(["data", "import", "--input", "kv-75", "--out", str(tmp_path / "examples.jsonl")])
    assert not stopped.value.code and (cache_folder() / "kv.jsonl").is_file()
    assert [example.key for example in read_examples(tmp_path / "examples.jsonl")] == ["a5"]


def test_every_source_is_of_a_format_that_import_reads():
    for source in SOURCES.values():
        ImportConfig(input="x", out="y", format=source.format)
        algorithm, _, value = source.checksum.partition(":")
        assert source.url.startswith("http")
        assert len(value) == {"sha256": 64, "md5": 32, "git": 40, "": 0}[algorithm]
    assert [name for name, source in SOURCES.items() if not source.checksum] == ["webq"]
    assert SOURCES["2wiki"].file == "data_ids_april7-dev.json"
    assert len({source.file for source in SOURCES.values()}) == len(SOURCES)


def test_the_cache_is_where_the_user_s_caches_are(monkeypatch, tmp_path):
    monkeypatch.delenv("POSGAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "posgap"
