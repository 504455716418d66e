"""A real MLflow server on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlflow.entities.model_registry import RegisteredModel
from ports import free_port

from posgap.tracking.leases import FLAG


@contextmanager
def serving(
    folder: Path, artifacts: str, store: Path | str, words: Sequence[str] = (), variables: Mapping[str, str] = {}
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a tracking server, with the database at a URI or a copy of a SQLite file, that hands artifacts
    through; and what kills it. `words` and `variables` are further ones for its command and its environment."""
    port = free_port()
    if isinstance(store, Path):
        shutil.copy(store, folder / "server.db")
        store = f"sqlite:///{folder}/server.db"
    command = [Path(sys.executable).with_name("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", store, "--workers", "1"]
    command += ["--artifacts-destination", artifacts, "--serve-artifacts", *words]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # processes for what nobody asks for
    environment |= variables
    with open(folder / "server.log", "wb") as shown:
        process = subprocess.Popen(command, stdout=shown, stderr=shown, start_new_session=True, env=environment)

    def stop() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    uri, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while True:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1).close()
                break
            except OSError:
                is_starting = process.poll() is None and time.monotonic() < deadline
                assert is_starting, (folder / "server.log").read_text()[-2000:]
                time.sleep(0.2)
        yield uri, stop
    finally:
        stop()


def holders(model: RegisteredModel) -> dict[str, str]:
    """The processes, alive or dead, that hold the lease of a registered model or wait for it, by their flags."""
    return {tag: json.loads(value)["by"] for tag, value in sorted(model.tags.items()) if tag.startswith(FLAG)}
