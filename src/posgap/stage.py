"""The frame around every stage: what is complete is reused, what is interrupted is not taken for
complete, and what was done can be read from `manifest.json` and from MLflow."""

import functools
import importlib.metadata
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from posgap import __version__, files
from posgap.config import Role, StageConfig, role
from posgap.errors import PosgapError, Rejected
from posgap.tracking.runs import Run, start_run

log = logging.getLogger(__name__)
C = TypeVar("C", bound=StageConfig)
MANIFEST = "manifest.json"
_PACKAGES = ("accelerate", "great-expectations", "kfp", "mlflow", "numpy", "torch", "transformers")


def stage(work: Callable[[C, Path, Run], None]) -> Callable[[C], Path]:
    """Turns `work(config, out, run)`, which writes into the folder `out`, into a stage.

    The stage takes the config alone and returns `config.out`. It does nothing where that folder
    is complete for the same inputs, config and version, unless `force` is set. `work` writes into
    a temporary folder that takes its place when everything is in it, the manifest last; what it
    kept in `files.work_folder`, to go on after an interruption, is then removed. Where `work` raises
    `Rejected`, what it wrote is kept beside it as `<out>.rejected`.

    Under a launcher of several processes all do the work, and the first one alone writes: the
    others get an `out` that does not exist.
    """
    name = work.__name__.removeprefix("_")

    @functools.wraps(work)
    def run_stage(config: C) -> Path:
        inputs = _inputs(config)
        identity = _identity(name, config, inputs)
        if not config.force and _complete(config.out, identity):
            log.info("%s: %s is complete, reused", name, config.out)
            return config.out
        if not is_main_process():
            work(config, config.out.with_name(f".partial-{os.getpid()}-{config.out.name}"), Run())
            return config.out
        log.info("%s: started", name)
        started, clock = datetime.now(UTC), time.monotonic()
        with start_run(name, _lineage(inputs)) as run, files.atomic(config.out) as partial:
            partial.mkdir()
            run.params(_parameters(config))
            try:
                work(config, partial, run)
            except Rejected:
                files.replace(partial, config.out.with_name(f"{config.out.name}.rejected"))
                raise
            seconds = time.monotonic() - clock
            run.metrics({"seconds": seconds})
            manifest = {
                "stage": name,
                "identity": identity,
                "config": config.model_dump(mode="json"),
                "inputs": inputs,
                "versions": _versions(),
                "seed": config.seed,
                "started": started.isoformat(timespec="seconds"),
                "seconds": round(seconds, 3),
                "mlflow_run_id": run.id,
            }
            files.write_json(partial / MANIFEST, manifest)
            run.artifact(partial / MANIFEST)
        files.remove(files.work_folder(config.out))
        log.info("%s: done in %.1f s", name, seconds)
        return config.out

    return run_stage


def is_main_process() -> bool:
    """Whether this process is the one that writes, under torchrun and its kind."""
    return os.environ.get("RANK", "0") == "0"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a stage's folder; empty where no stage wrote it (a downloaded model)."""
    file = Path(folder) / MANIFEST
    return files.read_json(file) if file.is_file() else {}


def _inputs(config: StageConfig) -> dict[str, dict[str, str]]:
    """Path and sha256 of each input; a model on the hub is known by its name."""
    inputs = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if role(field) is not Role.INPUT or value is None:
            continue
        if isinstance(value, list):
            inputs |= {f"{name}.{i}": _input(name, one, must_exist=True) for i, one in enumerate(value, start=1)}
        else:
            inputs[name] = _input(name, value, must_exist=field.annotation is not str)
    return inputs


def _input(name: str, value: str | Path, must_exist: bool) -> dict[str, str]:
    path = Path(value)
    if not path.exists():
        if must_exist:
            raise PosgapError(f"{name}: {value}: no such file or folder")
        return {"path": str(value), "sha256": ""}
    known = {"path": str(value), "sha256": files.digest(path)}
    if run_id := path.is_dir() and read_manifest(path).get("mlflow_run_id"):
        known["mlflow_run_id"] = run_id
    return known


def _identity(name: str, config: StageConfig, inputs: dict) -> str:
    known = {
        "stage": name,
        "version": __version__,
        "parameters": _parameters(config),
        "inputs": {field: i["sha256"] or i["path"] for field, i in inputs.items()},
    }
    return files.digest_of(known)


def _parameters(config: StageConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", include=set(config.parameters()))


def _complete(out: Path, identity: str) -> bool:
    try:
        return read_manifest(out).get("identity") == identity
    except PosgapError:
        return False


def _lineage(inputs: dict) -> dict[str, str]:
    return {
        f"posgap.input.{field}.{key}": value for field, known in inputs.items() for key, value in known.items() if value
    }


def _versions() -> dict[str, str]:
    versions = {"posgap": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
