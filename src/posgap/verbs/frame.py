"""The frame around every stage: it reuses complete outputs, never takes an interrupted one for complete, and records
the work in `manifest.json` and MLflow."""

import functools
import importlib
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from posgap import __version__
from posgap.distillation.methods import method_in
from posgap.foundation import files
from posgap.foundation.errors import BadOutput, PosgapError, Rejection, shorten
from posgap.foundation.extras import installed_version
from posgap.foundation.launch import first_of_its_node, gather_from_all, is_main_process, launch_rank_and_size
from posgap.foundation.locations import Location, is_uri, with_uris
from posgap.options.base import StageConfig
from posgap.storage.cache import INCOMPLETE, MANIFEST, take_snapshot
from posgap.storage.datasets import Dataset, datasets_of
from posgap.storage.folders import announce, publish, require_ours
from posgap.storage.inputs import OnDisk, Source, manifest_of
from posgap.storage.manifests import REFUSAL, damage, hash_files, read_record
from posgap.storage.outputs import Folder
from posgap.tracking.runs import Run, log_unlogged, start_run
from posgap.verbs.inputs import on_this_machine, sources

log = logging.getLogger(__name__)
C = TypeVar("C", bound=StageConfig)
Work = Callable[[C, Path, Run], Callable[[], None] | None]
NOTHING = "nothing is there"
OTHERWISE = "its inputs, parameters or version were others"
_PACKAGES = ("accelerate", "great-expectations", "kfp", "mlflow", "numpy", "torch", "transformers")


def stage(work: Work[C], name: str = "") -> Callable[[C], Location]:
    """Turns `work(config, out, run)`, which writes into the folder `out`, into a stage, named after `work` or `name`.

    The stage takes the config alone and returns `config.out`. It does nothing if that folder is complete for the same
    inputs, config and version, unless `force` is set. `work` writes into a temporary folder, which takes the output's
    place when it is complete, the manifest last. Then the stage removes what `work` kept in `files.work_folder` for
    resuming, and calls what `work` returned, to remove what it kept elsewhere. If `work` raises `Rejection`, its output
    is kept beside the stage's as `<out>.rejected`.

    Before any work, `PosgapError` refuses an output if its place is not allowed (`require_place`), holds something that
    this stage did not write, is being written by another process, or cannot be written.

    Inputs in S3 are fetched, so that `work` sees paths of this machine. An output in S3 is made here and then uploaded;
    if only the upload failed, only that is repeated.

    Under a launcher of several processes all do the work, and the first one alone writes: the others get an `out` that
    does not exist. The first one of each machine hashes the inputs; `PosgapError` is raised if two machines have
    different ones.
    """
    run = functools.partial(run_stage, name or work.__name__.removeprefix("_"), get_work=lambda: work)
    return functools.update_wrapper(run, work)


def stage_at(target: str) -> Callable[[StageConfig], Location]:
    """Returns the stage that is the function `target`, "module:name", without importing its module yet.

    The module, and with it torch, is imported only if there is work to do; a complete output is reported before.
    """
    module, name = target.split(":")

    def import_work() -> Work[StageConfig]:
        # `stage` keeps the undecorated work as `__wrapped__`; the decorated one would hash all inputs a second time.
        return getattr(importlib.import_module(module), name).__wrapped__

    return lambda config: run_stage(name, config, import_work)


def run_stage(name: str, config: C, get_work: Callable[[], Work[C]]) -> Location:
    """Runs a stage as `stage` says. `get_work` returns its work, and is called only if there is work to do."""
    with Folder(config, name) as output:
        input_sources, inputs = _record_inputs(config, output)
        identity = identity_of(name, config, inputs)
        place = config.out if is_uri(config.out) else output.there()
        # The main process decides, since machines need not share a disk.
        reason = gather_from_all(lambda: stale_reason(place, identity))[0]
        if not config.force:
            if not reason:
                log.info("%s: %s is complete, reused", name, config.out)
                if is_main_process() and output.clear():
                    log_unlogged(output.out)
                return config.out
            if reason == OTHERWISE and config.is_costly:
                gather_from_all(lambda: _refuse_to_replace(place, name, config, inputs) if is_main_process() else None)
        if is_main_process():
            output.claim()
            announce(config.out, name)
        here = on_this_machine(config, input_sources)
        here = here.with_digests({field: record["sha256"] for field, record in inputs.items()})
        if not is_main_process():
            get_work()(here.resolve_auto(), output.home / f"process-{os.getpid()}", Run())
            return config.out
        clear = None
        alone = launch_rank_and_size()[1] == 1
        # Only a single process may finish an earlier output: others would go on to the work, and wait for it there.
        if not (alone and not config.force and _finish(output, config.out, identity)):
            if reason != NOTHING:
                log.info("%s: %s is made again%s", name, config.out, f": {reason}" if reason else "")
            about = {"stage": name, "identity": identity, "config": _placed(config.redacted_dump()), "inputs": inputs}
            about |= _origin(config, input_sources, inputs)
            clear = _make(get_work(), config, here, output, about)
        if clear:
            clear()
    return config.out


def _finish(output: Folder, out: Location, identity: str) -> bool:
    """Moves or uploads an output that an interrupted run had finished. Returns whether there was one."""
    if not stale_reason(output.partial, identity):
        output.take_place()
    elif not is_uri(out) or stale_reason(output.out, identity):
        return False
    log_unlogged(output.out)
    log.info("%s: an earlier run had finished it; moved into place", out)
    require_ours(out, output.stage)
    publish(output.out, out)
    return True


def _make(work: Work[C], config: C, here: C, output: Folder, about: dict[str, Any]) -> Callable[[], None] | None:
    """Does the work within an MLflow run, and completes the manifest that begins with `about`."""
    name = about["stage"]
    partial = output.partial
    log.info("%s: started", name)
    given = here
    here = here.resolve_auto()
    before = given.parameter_values()
    decided = {field: value for field, value in here.parameter_values().items() if before[field] != value}
    about |= {"settled": decided} if decided else {}
    started = datetime.now(UTC)
    clock = time.monotonic()
    files.delete_path(partial)
    with start_run(name, _lineage(about["inputs"]), output.out) as run:
        partial.mkdir()
        run.params(config.parameter_values() | decided)
        for dataset in about["datasets"]:
            run.dataset(Dataset(**dataset))
        try:
            clear = work(here, partial, run)
        except Rejection as error:
            output.reject(about | {"reason": with_uris(str(error))})
            if is_uri(config.out):
                require_ours(f"{config.out}.rejected", name, REFUSAL)
                publish(output.rejected, f"{config.out}.rejected")
            raise
        seconds = time.monotonic() - clock
        run.metrics({"seconds": seconds})
        # On the disk before the manifest says that they are there.
        files.flush(partial)
        listed = hash_files(partial)
        manifest = about | {
            "files": listed,
            "versions": _versions(),
            "seed": getattr(config, "seed", None),
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "mlflow_run_id": run.id,
            "mlflow_run_key": run.key,
        }
        files.write_json(partial / MANIFEST, manifest)
        run.artifact(partial / MANIFEST)
        output.take_place()
        require_ours(config.out, name)
        publish(output.out, config.out, {file: record["sha256"] for file, record in listed.items()})
    log.info("%s: done in %.1f s", name, seconds)
    return clear


def _record_inputs(config: StageConfig, output: Folder) -> tuple[dict[str, Source], dict[str, dict[str, str]]]:
    """Returns the inputs, and the manifest's record of each, made by the first process of a machine for the others.

    The main process claims a new output before that, so that all learn if it cannot.
    """
    input_sources: dict[str, Source] = {}

    def records() -> dict[str, dict[str, str]] | None:
        if is_main_process() and not is_uri(config.out) and not output.there().exists():
            output.claim()
        input_sources.update(sources(config))
        return {field: record_of(each) for field, each in input_sources.items()} if first_of_its_node() else None

    by_rank = gather_from_all(records)
    of_machines = [each for each in by_rank if each is not None]
    for field, record in of_machines[0].items():
        if len({each[field]["sha256"] for each in of_machines}) > 1:
            raise PosgapError(f"{field}: {record['path']} differs between machines; copy it to all machines again")
    return input_sources, [each for each in by_rank[: launch_rank_and_size()[0] + 1] if each is not None][-1]


def record_of(source: Source) -> dict[str, str]:
    """Returns the manifest's record of an input; a model on the hub is known by its name."""
    record = {"path": with_uris(str(source.location)), "sha256": source.digest(), **source.version()}
    manifest = manifest_of(source)
    return record | {name: manifest[name] for name in ("mlflow_run_id", "mlflow_run_key") if manifest.get(name)}


def _placed(value: Any) -> Any:
    """Returns a config's values, with places named so that another machine finds them."""
    if isinstance(value, dict):
        return {name: _placed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_placed(each) for each in value]
    return with_uris(value) if isinstance(value, str) else value


def _origin(config: C, input_sources: dict[str, Source], inputs: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Returns the manifest's `ancestors` (digests or names of everything that the output was made from), the `datasets`
    among them, and `model_made_by`, since the model's own manifest may not be at hand wherever the output goes."""
    names = {record["sha256"] or record["path"] for record in inputs.values()}
    ancestors = names.union(*(manifest_of(source).get("ancestors", ()) for source in input_sources.values()))
    datasets = datasets_of(config.examples_for, inputs, input_sources)
    origin = {"ancestors": sorted(ancestors), "datasets": [dataset.model_dump() for dataset in datasets]}
    made_by = method_in(manifest_of(input_sources["model"])) if "model" in input_sources else ""
    return origin | ({"model_made_by": made_by} if made_by else {})


def identity_of(name: str, config: StageConfig, inputs: dict[str, dict[str, str]]) -> str:
    """sha256 of all that decides what the stage `name` makes of inputs with these records."""
    names = config.cache_key_fields()
    deciding = {
        "stage": name,
        "version": __version__,
        "parameters": {name: value for name, value in config.parameter_values().items() if name in names},
        "inputs": {field: i["sha256"] or i["path"] for field, i in inputs.items()},
    }
    return files.digest_of(deciding)


def is_complete(name: str, config: StageConfig) -> bool:
    """Whether the stage `name` has already made the output of this config, and would reuse it."""
    inputs = {field: record_of(each) for field, each in sources(config).items()}
    return not stale_reason(config.out, identity_of(name, config, inputs))


def stale_reason(out: Location, identity: str) -> str:
    """Says why the content of `out` is not the complete output of this identity; empty if it is.

    It looks at names and sizes of files, and hashes none.
    """
    folder = _output_at(out)
    manifest = read_record(folder.local_file(MANIFEST))
    if folder.is_incomplete or not manifest:
        return "its upload broke off" if folder.is_incomplete and folder.sizes().keys() > {INCOMPLETE} else NOTHING
    if manifest.get("identity") != identity:
        return OTHERWISE
    return damage(manifest, folder.sizes())


def _output_at(out: Location) -> Source:
    return take_snapshot(out, must_exist=False) if is_uri(out) else OnDisk(Path(out))


def _refuse_to_replace(out: Location, name: str, config: StageConfig, inputs: dict[str, dict[str, str]]) -> None:
    """Raises a `PosgapError` that compares a complete output with the present request."""
    manifest = read_record(_output_at(out).local_file(MANIFEST))
    if manifest.get("stage") != name:
        return  # which the output itself refuses to replace
    wanted = config.redacted_dump()
    made = manifest.get("config", {})
    changes = list[tuple[str, str]]()
    for field in config.cache_key_fields():
        if made.get(field) != wanted[field]:
            changes.append((f"{field} {made.get(field)}", str(wanted[field])))
    for field, record in inputs.items():
        before = manifest.get("inputs", {}).get(field, {})
        is_moved = before.get("path") != record["path"]
        if before.get("sha256") != record["sha256"] or (not record["sha256"] and is_moved):
            was, now = (before.get("path"), record["path"]) if is_moved else ("as they were", "as they are now")
            changes.append((f"{field} {was}", now))
    changes = changes or [(f"posgap {manifest.get('versions', {}).get('posgap')}", __version__)]
    there, instead = (", ".join(map(shorten, words)) for words in zip(*changes, strict=True))
    raise BadOutput(
        f"{config.out}: has a finished {name.replace('_', ' ')} with {there}, and not {instead}; "
        "--force replaces it, another --out keeps it"
    )


def _lineage(inputs: dict) -> dict[str, str]:
    """Tags that lead to the inputs; their digests are in the manifest, which is among the run's files."""
    tags = {}
    for field, record in inputs.items():
        for key in ("path", "mlflow_run_id"):
            if record.get(key):
                tags[f"posgap.input.{field}.{key}"] = record[key]
    return tags


def _versions() -> dict[str, str]:
    installed = {package: installed_version(package) for package in _PACKAGES}
    return {"posgap": __version__} | {package: version for package, version in installed.items() if version}
