"""`posgap gc`: what commands that were killed left behind in MLflow."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar

from posgap.foundation import tables
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import MODELS
from posgap.foundation.printing import keep, show
from posgap.tracking import champions, leases, registry
from posgap.tracking.config import GcConfig
from posgap.tracking.leases import Lease
from posgap.tracking.outbox import KILLED
from posgap.tracking.parents import PARENT_TAG, STAGE_TAG
from posgap.tracking.server import ask, experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.store.entities import PagedList

_PROMOTE = "promote"  # the stage that logs models
# The fields of `Remains` that are shown, as JSON names them, with their headings.
_SHOWN = {"kind": "what", "name": "which", "since": "since (UTC)", "becomes": "becomes"}
T = TypeVar("T")


@dataclass(frozen=True)
class Remains:
    """Something left behind: what and which it is, since when (UTC, milliseconds), what `remove` does, and that."""

    kind: str
    name: str
    since: int
    becomes: str
    remove: Callable[[], None]


def collect(config: GcConfig) -> None:
    """Prints, as Markdown, what commands that were killed left behind, and with `yes` removes it.

    `PosgapError` where the registered model that `config` names is not there.
    """
    before = int(1000 * (time.time() - 3600 * config.older_than))
    remains = [*_in_registry(config.name, before), *_logged_models(before), *_runs(before)]
    if not remains:
        show("nothing was left behind", {"remains": [], "removed": False})
        return
    moments = [datetime.fromtimestamp(each.since / 1000, UTC).strftime(champions.WHEN) for each in remains]
    rows = [[each.kind, each.name, moment, each.becomes] for each, moment in zip(remains, moments)]
    listed = [dict(zip(_SHOWN, row, strict=True)) for row in rows]
    unchanged = "" if config.yes else "\n\nNothing was changed. With --yes it is."
    table = tables.markdown(list(_SHOWN.values()), rows, left=len(_SHOWN))
    show(f"{table}{unchanged}", {"remains": listed, "removed": False})
    if config.yes:
        for each in remains:
            each.remove()
        keep({"remains": listed, "removed": True})


def _in_registry(name: str, before: int) -> Iterator[Remains]:
    """Leases that nobody gave back, changes that broke off, and versions that were never looked at."""
    if name:
        model = registry.registered_model(name)
        if model is None:
            raise PosgapError(f"{name}: no registered model of this name in MLflow")
        models = [model]
    else:
        models = _all(lambda client, token: client.search_registered_models(page_token=token))
    for model in models:
        if whole := registry.registered_model(model.name):
            yield from _of_model(whole, before)


def _of_model(model: "RegisteredModel", before: int) -> Iterator[Remains]:
    name = model.name

    def take_lease() -> None:
        champions.in_turn(name, lambda lease, completed: None)

    for flag, holder in leases.holders(model).items():
        if (since := leases.since(flag)) < before:
            yield Remains("lease", f"{name}: {holder}", since, "removed, unless it is alive", take_lease)
    if champions.UNDER_WAY in model.tags and not leases.holders(model):
        yield Remains("change", name, model.last_updated_timestamp or 0, "completed", take_lease)
    for version in registry.versions(name):
        number, created = str(version.version), int(version.creation_timestamp)
        if created < before and _is_unfinished(name, number):
            yield Remains("version", f"{name} version {number}", created, "deleted", partial(_delete, name, number))


def _is_unfinished(name: str, number: str) -> bool:
    """Whether a version was registered by a promotion that never came to decide about it."""
    version = registry.numbered(name, number)
    return registry.DIGEST in version.tags and registry.PROMOTION_RUN not in version.tags and not version.aliases


def _delete(name: str, number: str) -> None:
    """Deletes a version, unless a promotion has taken it up meanwhile."""

    def delete(lease: Lease, _: champions.Change | None) -> None:
        if _is_unfinished(name, number):
            lease.write(lambda client: client.delete_model_version(name, number))

    champions.in_turn(name, delete)


def _logged_models(before: int) -> Iterator[Remains]:
    """What promotions uploaded, and no version was made of."""
    uploaded = {run.info.run_id for run in _all_runs(f"tags.`{STAGE_TAG}` = '{_PROMOTE}'")}
    logged = _all(lambda client, token: client.search_logged_models([experiment_id(client)], page_token=token))
    # Of every version there is: one that was overlooked would lose its model.
    versions = _all(lambda client, token: client.search_model_versions(page_token=token))
    used = {str(version.source) for version in versions}
    for model in logged:
        ours = model.source_run_id in uploaded and model.creation_timestamp < before
        if ours and f"{MODELS}{model.model_id}" not in used:
            delete = partial(ask, methodcaller("delete_logged_model", model.model_id))
            yield Remains("logged model", model.model_id, model.creation_timestamp, "deleted", delete)


def _runs(before: int) -> Iterator[Remains]:
    """Runs of stages that are said to be running, and have told nothing for long."""
    for run in _all_runs("attributes.status = 'RUNNING'"):
        if STAGE_TAG in run.data.tags and run.info.start_time < before and (heard := _last_heard(run)) < before:
            close = partial(ask, methodcaller("set_terminated", run.info.run_id, KILLED))
            which = f"{run.data.tags[STAGE_TAG]} {run.info.run_id}"
            yield Remains("run", which, heard, f"closed as {KILLED}", close)


def _last_heard(run: "Run") -> int:
    """When a run, or one below it, last began, ended or logged a metric, in milliseconds."""

    def moments(client: "MlflowClient") -> list[int]:
        return [
            point.timestamp for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)
        ]

    if run.info.end_time:
        return run.info.end_time
    below = _all_runs(f"tags.`{PARENT_TAG}` = '{run.info.run_id}'")
    return max([run.info.start_time, *ask(moments), *map(_last_heard, below)])


def _all_runs(condition: str) -> "list[Run]":
    return _all(lambda client, token: client.search_runs([experiment_id(client)], condition, page_token=token))


def _all(search: "Callable[[MlflowClient, str | None], PagedList[T]]") -> list[T]:
    """What a search of MLflow finds, page after page; it returns one at a time."""

    def after(token: str | None) -> "PagedList[T]":
        return ask(lambda client: search(client, token))

    page = after(None)
    every = [*page]
    while page.token:
        page = after(page.token)
        every += page
    return every
