"""Finds and removes what killed commands left behind in MLflow: for `posgap sync --left-behind`, and for a pipeline's
next run on the same machine, which closes what its predecessors left."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from posgap.foundation.locations import MODELS
from posgap.tracking import champions, leases, registry
from posgap.tracking.leases import Lease
from posgap.tracking.outbox import KILLED, places_below
from posgap.tracking.parents import PARENT_TAG, PIPELINE_TAG, STAGE_TAG
from posgap.tracking.runs import Sender, send_kept
from posgap.tracking.server import STAGE, TrackingError, call_mlflow, experiment_id, is_tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.store.entities import PagedList

log = logging.getLogger(__name__)
_PROMOTE = "promote"  # the stage that logs models
T = TypeVar("T")


@dataclass(frozen=True)
class Remains:
    """Something left behind: what and which it is, since when (in milliseconds), and what becomes of it by `remove`."""

    kind: str
    name: str
    since: int
    becomes: str
    remove: Callable[[], None]


def left_behind(name: str, hours: float) -> list[Remains]:
    """Everything that has given no sign of life for so many hours, and every unfinished change.

    `name` is the registered model to look at, empty for all; `PosgapError` where there is none of this name.
    """
    before = int(1000 * (time.time() - 3600 * hours))
    if name:
        models = [registry.required_model(name)]
    else:
        found = _all(lambda client, token: client.search_registered_models(page_token=token))
        models = list(filter(None, (registry.registered_model(model.name) for model in found)))
    in_registry = chain.from_iterable(_of_model(model, before) for model in models)
    return [*in_registry, *_logged_models(before), *_stale_runs(before)]


def close_killed(pipeline_run: str, folder: Path) -> bool:
    """Closes as KILLED what the killed processes of a pipeline run left open in MLflow: the run itself and the runs of
    its stages, whose outboxes below `folder` are sent first. The caller knows that they are dead.

    Whether nothing is open any more; where MLflow does not answer it warns, and a later command can try again.
    """
    if not is_tracking():
        return False
    sender = Sender()
    try:
        for place in [*places_below(folder)]:
            send_kept(place, sender)
        for run in _all_runs(f"tags.`{PIPELINE_TAG}` = '{pipeline_run}' and attributes.status = 'RUNNING'"):
            call_mlflow(methodcaller("set_terminated", run.info.run_id, KILLED, _last_heard(run)), STAGE)
            log.info("the MLflow run %s of a process that was killed is closed", run.info.run_name)
    except TrackingError as error:
        log.warning("runs of a pipeline that was killed stay open in MLflow: %s", error)
        return False
    return True


def _of_model(model: "RegisteredModel", before: int) -> Iterator[Remains]:
    """Leases that nobody gave back, unfinished changes, and versions that were never looked at."""
    name = model.name

    def take_lease() -> None:
        champions.in_turn(name, lambda lease, completed: None)

    for flag, holder in leases.holders(model).items():
        since = leases.since(flag)
        if since < before:
            yield Remains("lease", f"{name}: {holder}", since, "removed, unless it is alive", take_lease)
    if champions.UNDER_WAY in model.tags and not leases.holders(model):
        yield Remains("change", name, model.last_updated_timestamp or 0, "completed", take_lease)
    for version in registry.versions(name):
        number, created = str(version.version), int(version.creation_timestamp)
        if created < before and _is_unfinished(name, number):
            yield Remains("version", f"{name} version {number}", created, "deleted", partial(_delete, name, number))


def _is_unfinished(name: str, number: str) -> bool:
    """Whether a version was registered by a promotion that never came to decide about it."""
    version = registry.get_version(name, number)
    return registry.DIGEST in version.tags and registry.PROMOTION_RUN not in version.tags and not version.aliases


def _delete(name: str, number: str) -> None:
    """Deletes a version, unless a promotion has taken it up meanwhile."""

    def delete(lease: Lease, _: champions.Change | None) -> None:
        if _is_unfinished(name, number):
            lease.send_change(lambda client: client.delete_model_version(name, number))

    champions.in_turn(name, delete)


def _logged_models(before: int) -> Iterator[Remains]:
    """Models that promotions uploaded without making a version of them."""
    uploaded = {run.info.run_id for run in _all_runs(f"tags.`{STAGE_TAG}` = '{_PROMOTE}'")}
    logged = _all(lambda client, token: client.search_logged_models([experiment_id(client)], page_token=token))
    # Of all registered models: a version that was overlooked would lose its model.
    versions = _all(lambda client, token: client.search_model_versions(page_token=token))
    used = {str(version.source) for version in versions}
    for model in logged:
        ours = model.source_run_id in uploaded and model.creation_timestamp < before
        if ours and f"{MODELS}{model.model_id}" not in used:
            delete = partial(call_mlflow, methodcaller("delete_logged_model", model.model_id))
            yield Remains("logged model", model.model_id, model.creation_timestamp, "deleted", delete)


def _stale_runs(before: int) -> Iterator[Remains]:
    """Runs of stages that still count as running, but have logged nothing for long."""
    for run in _all_runs("attributes.status = 'RUNNING'"):
        # Only for such a run MLflow is asked for its metrics.
        is_old = STAGE_TAG in run.data.tags and run.info.start_time < before
        heard = _last_heard(run) if is_old else before
        if heard < before:
            close = partial(call_mlflow, methodcaller("set_terminated", run.info.run_id, KILLED))
            which = f"{run.data.tags[STAGE_TAG]} {run.info.run_id}"
            yield Remains("run", which, heard, f"closed as {KILLED}", close)


def _last_heard(run: "Run") -> int:
    """Returns when a run, or one below it, last began, ended or logged a metric, in milliseconds."""

    def moments(client: "MlflowClient") -> list[int]:
        logged = []
        for name in run.data.metrics:
            logged += [point.timestamp for point in client.get_metric_history(run.info.run_id, name)]
        return logged

    if run.info.end_time:
        return run.info.end_time
    below = _all_runs(f"tags.`{PARENT_TAG}` = '{run.info.run_id}'")
    return max([run.info.start_time, *call_mlflow(moments), *map(_last_heard, below)])


def _all_runs(condition: str) -> "list[Run]":
    return _all(lambda client, token: client.search_runs([experiment_id(client)], condition, page_token=token))


def _all(search: "Callable[[MlflowClient, str | None], PagedList[T]]") -> list[T]:
    """Returns all that a search of MLflow finds, which gives a page at a time."""

    def after(token: str | None) -> "PagedList[T]":
        return call_mlflow(lambda client: search(client, token))

    page = after(None)
    every = [*page]
    while page.token:
        page = after(page.token)
        every += page
    return every
