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
from posgap.config import StageConfig
from posgap.errors import PosgapError, Rejected
from posgap.locations import Location, is_uri
from posgap.storage.cache import MANIFEST, look
from posgap.storage.folders import announce, publish, twin
from posgap.storage.inputs import OnDisk, Source, manifest_of, on_this_machine, sources
from posgap.tracking.runs import Run, send_left_behind, start_run

log = logging.getLogger(__name__)
C = TypeVar("C", bound=StageConfig)
Work = Callable[[C, Path, Run], Callable[[], None] | None]
_PACKAGES = ("accelerate", "great-expectations", "kfp", "mlflow", "numpy", "torch", "transformers")


def stage(work: Work[C]) -> Callable[[C], Location]:
    """Turns `work(config, out, run)`, which writes into the folder `out`, into a stage.

    The stage takes the config alone and returns `config.out`. It does nothing where that folder
    is complete for the same inputs, config and version, unless `force` is set. `work` writes into
    a temporary folder that takes its place when everything is in it, the manifest last; what it
    kept in `files.work_folder`, to go on after an interruption, is then removed, and what it
    returned is called, to remove what it kept elsewhere. Where `work` raises `Rejected`, what it
    wrote is kept beside it as `<out>.rejected`.

    Inputs in S3 are fetched, so that `work` sees paths of this machine. An output there is made
    here and then uploaded; where the upload alone failed, only that is done again.

    Under a launcher of several processes all do the work, and the first one alone writes: the
    others get an `out` that does not exist.
    """
    name = work.__name__.removeprefix("_")

    @functools.wraps(work)
    def run_stage(config: C) -> Location:
        found = sources(config)
        inputs = {field: record_of(source) for field, source in found.items()}
        identity = identity_of(name, config, inputs)
        if not config.force and is_complete(config.out, identity):
            log.info("%s: %s is complete, reused", name, config.out)
            if is_main_process():
                send_left_behind(twin(config.out))
            return config.out
        here = on_this_machine(config, found).with_digests({field: known["sha256"] for field, known in inputs.items()})
        if not is_main_process():
            work(here, here.out.with_name(f".partial-{os.getpid()}-{here.out.name}"), Run())
            return config.out
        if is_uri(config.out) and _is_alone() and not config.force and is_complete(here.out, identity):
            log.info("%s: was made before, and is not in S3 yet", name)
            publish(here.out, config.out)
        else:
            about = {"stage": name, "identity": identity, "config": config.recorded(), "inputs": inputs}
            clear = _make(work, config, here, about | {"ancestors": _ancestors(found, inputs)})
            if clear:
                clear()
        files.remove(files.work_folder(here.out))
        return config.out

    return run_stage


def _make(work: Work[C], config: C, here: C, about: dict[str, Any]) -> Callable[[], None] | None:
    """Does the work within an MLflow run, and completes the manifest that begins with `about`."""
    name = about["stage"]
    log.info("%s: started", name)
    announce(config.out)
    started, clock = datetime.now(UTC), time.monotonic()
    with start_run(name, _lineage(about["inputs"]), here.out) as run:
        with files.atomic(here.out) as partial:
            partial.mkdir()
            run.params(config.settings())
            try:
                clear = work(here, partial, run)
            except Rejected:
                rejected = here.out.with_name(f"{here.out.name}.rejected")
                files.replace(partial, rejected)
                publish(rejected, f"{config.out}.rejected")
                raise
            seconds = time.monotonic() - clock
            run.metrics({"seconds": seconds})
            manifest = about | {
                "versions": _versions(),
                "seed": config.seed,
                "started": started.isoformat(timespec="seconds"),
                "seconds": round(seconds, 3),
                "mlflow_run_id": run.id,
                "mlflow_run_key": run.key,
            }
            files.write_json(partial / MANIFEST, manifest)
            run.artifact(partial / MANIFEST)
        publish(here.out, config.out)
    log.info("%s: done in %.1f s", name, seconds)
    return clear


def is_main_process() -> bool:
    """Whether this process is the one that writes, under torchrun and its kind."""
    return os.environ.get("RANK", "0") == "0"


def _is_alone() -> bool:
    # Only a single process may take this short cut: under a launcher the other ranks would go on to the work and wait
    # for rank 0 there.
    return os.environ.get("WORLD_SIZE", "1") == "1"


def record_of(source: Source) -> dict[str, str]:
    """What the manifest says of an input; a model on the hub is known by its name."""
    known = {"path": str(source.location), "sha256": source.digest(), **source.version()}
    manifest = manifest_of(source)
    return known | {name: manifest[name] for name in ("mlflow_run_id", "mlflow_run_key") if manifest.get(name)}


def _ancestors(found: dict[str, Source], inputs: dict[str, dict[str, str]]) -> list[str]:
    """Digests, or names, of the inputs and of all that they in turn were made from."""
    told = {known["sha256"] or known["path"] for known in inputs.values()}
    return sorted(told.union(*(manifest_of(source).get("ancestors", ()) for source in found.values())))


def identity_of(name: str, config: StageConfig, inputs: dict[str, dict[str, str]]) -> str:
    """sha256 of all that decides what the stage `name` makes of inputs with these records."""
    known = {
        "stage": name,
        "version": __version__,
        "parameters": config.settings(),
        "inputs": {field: i["sha256"] or i["path"] for field, i in inputs.items()},
    }
    return files.digest_of(known)


def is_complete(out: Location, identity: str) -> bool:
    """Whether `out` is what a stage of this identity makes."""
    folder: Source = look(out, must_exist=False) if is_uri(out) else OnDisk(Path(out))
    file = None if folder.is_incomplete else folder.read(MANIFEST)
    try:
        return file is not None and files.read_object(file).get("identity") == identity
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
