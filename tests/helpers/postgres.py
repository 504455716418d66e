"""A real PostgreSQL on this machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port

BINARIES = next((file.parent for file in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[::-1]), None)
needs_postgres = pytest.mark.skipif(
    BINARIES is None, reason="no PostgreSQL below /usr/lib/postgresql (Debian: postgresql)"
)


@contextmanager
def database(login: dict[str, str]) -> Iterator[int]:
    """The port of a PostgreSQL with an empty database `mlflow`, for whoever has these PGUSER and PGPASSWORD."""
    folder = tempfile.mkdtemp(prefix="posgap-postgres-")
    user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
    if user:
        shutil.chown(folder, user)

    def run(program: str, *words: str) -> None:
        arguments = [BINARIES / program, "-D", f"{folder}/data", *words]
        subprocess.run(arguments, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    (Path(folder) / "password").write_text(login["PGPASSWORD"])
    run("initdb", "-U", login["PGUSER"], f"--pwfile={folder}/password", "-A", "scram-sha-256")
    port = free_port()
    run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", f"-p {port} -k {folder} -h 127.0.0.1", "start")
    try:
        environment = os.environ | login | {"PGHOST": "127.0.0.1", "PGPORT": str(port)}
        subprocess.run([BINARIES / "createdb", "mlflow"], env=environment, check=True)
        yield port
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)
