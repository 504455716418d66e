"""S3 servers on this machine: moto's, and real ones where they are installed.

`POSGAP_S3=ceph` has every test that uses the fixture `bucket` run against Ceph's object gateway on a cluster in memory
(Debian's packages `radosgw`, `ceph-mon` and `ceph-osd`); `POSGAP_S3=rclone` against `rclone serve s3` (1.65 or newer).
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ports import free_port

KEY = "test"  # access key and secret key of every server
SECONDS = 120  # for a server to come up


@contextmanager
def serving(name: str, folder: Path, *options: str) -> Iterator[str]:
    """The address of a server, whose files are in a folder; skips where its programs are not installed.

    `options` are lines of Ceph's configuration.
    """
    if name not in _SERVERS:
        raise pytest.UsageError(f"POSGAP_S3={name}: there is no such server; name one of {', '.join(_SERVERS)}")
    programs, start = _SERVERS[name]
    if missing := [program for program in programs if not shutil.which(program)]:
        pytest.skip(f"POSGAP_S3={name}: not installed: {', '.join(missing)}")
    with start(folder, *options) as address:
        yield address


@contextmanager
def _moto(folder: Path) -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextmanager
def _rclone(folder: Path) -> Iterator[str]:
    port, data = free_port(), folder / "data"
    data.mkdir()
    command = ["rclone", "serve", "s3", str(data), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{KEY}"]
    with _process(command, folder) as alive:
        yield _when_up(port, alive, folder)


@contextmanager
def _ceph(folder: Path, *options: str) -> Iterator[str]:
    """A monitor, one OSD that keeps everything in memory, and the gateway; no log-in between them."""
    monitor, port, cluster, osd = free_port(), free_port(), uuid.uuid4(), uuid.uuid4()
    conf = folder / "ceph.conf"
    conf.write_text("\n".join([_CEPH.format(folder=folder, cluster=cluster, monitor=monitor), *options, ""]))
    for name in ("mon", "osd", "crash"):
        (folder / name).mkdir()

    def run(*command: str) -> None:
        done = subprocess.run([command[0], "-c", conf, *command[1:]], capture_output=True, text=True, timeout=SECONDS)
        assert not done.returncode, f"{command}: {done.stdout}{done.stderr}"

    run("monmaptool", "--create", "--fsid", str(cluster), "--addv", "a", f"[v1:127.0.0.1:{monitor}]", f"{folder}/map")
    run("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{folder}/map")
    with ExitStack() as stack:

        def start(program: str, *more: str):
            return stack.enter_context(_process([program, "-c", str(conf), *more], folder))

        start("ceph-mon", "-f", "-i", "a")
        run("ceph", "--connect-timeout", str(SECONDS), "osd", "new", str(osd))
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", str(osd))
        # One that asks before it has the monitors' map ends at once, with `wrong fsid`.
        again = f"until ceph-osd -c {conf} -f -i 0; do sleep 1; done"
        stack.enter_context(_process(["sh", "-c", again], folder))
        frontend = f"--rgw_frontends=beast endpoint=127.0.0.1:{port}"
        alive = start("radosgw", "-f", "-n", "client.rgw", frontend, f"--rgw_data={folder}/rgw")
        address = _when_up(port, alive, folder)
        _CEPH_FILES[address] = conf
        new_user(address, KEY)
        yield address


_CEPH_FILES: dict[str, Path] = {}  # by address


def new_user(address: str, name: str) -> tuple[str, str]:
    """Adds a user to Ceph, whose access key and secret key are its name; returns these."""
    who = ["--uid", name, "--display-name", name, "--access-key", name, "--secret", name, "--max-buckets", "0"]
    command = ["radosgw-admin", "-c", str(_CEPH_FILES[address]), "user", "create", *who]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return name, name


_CEPH = """[global]
fsid = {cluster}
mon_host = [v1:127.0.0.1:{monitor}]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
mon_allow_pool_size_one = true
mon_data_avail_crit = 1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_class_update_on_start = false
osd_objectstore = memstore
memstore_device_bytes = 4294967296
run_dir = {folder}
admin_socket =
pid_file =
log_file = {folder}/$name.log
mon_data = {folder}/mon
osd_data = {folder}/osd
crash_dir = {folder}/crash
"""

_SERVERS = {
    "moto": ((), _moto),
    "ceph": (("ceph", "monmaptool", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin"), _ceph),
    "rclone": (("rclone",), _rclone),
}


@contextmanager
def _process(command: list[str], folder: Path) -> Iterator[subprocess.Popen]:
    with open(folder / f"{command[0]}.out", "wb") as shown:
        process = subprocess.Popen(command, stdout=shown, stderr=shown, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _when_up(port: int, process: subprocess.Popen, folder: Path) -> str:
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "\n".join(path.read_text() for path in folder.glob("*.out"))
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return address
        except urllib.error.HTTPError:  # it asks who is there
            return address
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{address}: no answer after {SECONDS} s")
