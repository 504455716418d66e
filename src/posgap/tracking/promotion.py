"""How a model that was admitted enters the registry, and which one becomes the champion."""

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from posgap.foundation import files
from posgap.foundation.errors import Contradiction, PosgapError
from posgap.foundation.heavy_types import MlflowClient
from posgap.tracking import champions, flavor
from posgap.tracking.candidates import best_of_run
from posgap.tracking.champions import CHALLENGER, CHAMPION, PREVIOUS, Change
from posgap.tracking.leases import Lease
from posgap.tracking.registry import (
    DIGEST,
    EVIDENCE,
    MODEL_SECONDS,
    PROMOTED_SWEEP,
    PROMOTION_RUN,
    SEVERAL,
    WEIGHTS,
    bring_model,
    create,
    find_versions,
    get_version,
    is_judged_here,
    is_of_this_run,
    registered_model,
    required_model,
)
from posgap.tracking.runs import PIPELINE_TAG, Run, user
from posgap.tracking.server import BYTES_PER_SECOND, call_mlflow, tries_of_mlflow
from posgap.tracking.version_record import record_of

log = logging.getLogger(__name__)
APPROVED = "posgap.approved"  # tag of a version: who approved it
# Tag of a challenger that was rolled back: the tag that records this, and why it may be the champion again.
DESPITE = "posgap.despite_rollback"
_OF_CANDIDATES = (EVIDENCE, PROMOTION_RUN, PIPELINE_TAG)  # tags: a version without them is not ready to be promoted


class Standing(NamedTuple):
    """Where a model stands in the registry: its version, the alias of that (empty: none), and the champion's version
    (empty: none)."""

    version: str
    alias: str
    champion: str


@dataclass(frozen=True)
class Promotion:
    """A model folder that was admitted, and how it is to enter the registry under `name`.

    `tags` are the version's. `sweep` is the folder of the sweep that admitted it; the run keeps a copy. `asked` says
    how that sweep asked, and MLflow serves the version with the same settings. With `needs_approval` the best candidate
    becomes the challenger, unless it is approved already. `despite_rollback` says why a version that was rolled back
    may be the champion again; empty: it may not.

    `require_current` raises if the verdict does not compare with the champion of this moment. `try_out` is called with
    the folder that the registry gives back, and raises if the version must not be used.
    """

    name: str
    model: Path
    tags: Mapping[str, str]
    run: Run
    sweep: Path | None = None
    asked: Mapping[str, Any] | None = None
    needs_approval: bool = False
    despite_rollback: str = ""
    require_current: Callable[[], object] = lambda: None
    try_out: Callable[[Path], None] = lambda _: None


def promote_version(promotion: Promotion) -> Standing:
    """Registers the model folder, and makes the best candidate of its pipeline run the champion.

    A model that is registered already gets no second version. Which version gets the alias is decided under the lease
    of the name. Candidates of one run come side by side. Each is compared with all that were registered before it
    (`candidates.best_candidate`). The last one sees all of them, so the result does not depend on the order.
    """
    name = promotion.name
    run = promotion.run
    digest = promotion.tags[DIGEST]
    sweep = promotion.sweep
    run_id = run.required_id()
    uri = "" if find_versions(name, DIGEST, digest) else _log_model(promotion.model, digest, name, run, promotion.asked)
    if sweep:
        call_mlflow(lambda client: _upload_sweep(client, run_id, sweep), seconds=MODEL_SECONDS)
    if registered_model(name) is None:
        create(name)
    # Not yet a candidate of its run: a version must not be promoted before it was tried.
    first = {key: value for key, value in promotion.tags.items() if key not in _OF_CANDIDATES}
    version = champions.in_turn(name, lambda lease, _: _register_version(lease, uri, first, run))
    _require_stored(name, version, digest, promotion.try_out)
    return champions.in_turn(name, lambda lease, _: _choose_champion(lease, promotion, version))


def _choose_champion(lease: Lease, promotion: Promotion, version: str) -> Standing:
    """Makes `version` a candidate of its run, and the best candidate the champion, or the challenger where it needs
    approval. The champion before the run becomes `previous`."""
    name = promotion.name
    despite_rollback = promotion.despite_rollback
    _promote_approved(lease)
    promotion.require_current()
    if not despite_rollback:
        _require_not_rolled_back(lease, version)
    _tag(lease, version, promotion.tags)
    registered = lease.read_model()
    winner = best_of_run(registered, version, promotion.tags.get(PIPELINE_TAG, ""))
    former, previous = (champions.alias_version(registered, alias) for alias in (CHAMPION, PREVIOUS))
    champion = Standing(version, CHAMPION if version == winner else "", winner)
    if former == winner:
        return champion
    if promotion.needs_approval and not _approver(name, winner):
        if despite_rollback:
            lifted = f"{champions.ended_by(registered, _rolled_back_as(lease, winner))} {despite_rollback}"
            lease.send_change(methodcaller("set_model_version_tag", name, winner, DESPITE, lifted))
        lease.set_alias(CHALLENGER, winner)
        return Standing(version, CHALLENGER if version == winner else "", former)
    stays = bool(former) and is_of_this_run(get_version(name, former)) and previous != winner
    why = f"promoted, though rolled back before: {despite_rollback}" if despite_rollback else "promoted"
    champions.set_champion(lease, winner, why, previous if stays else former, run=promotion.run.id)
    return champion


def approve_challenger(name: str, version: str) -> None:
    """Makes the challenger of a registered model its champion, and records who approved it.

    Raises `PosgapError` if the challenger is another version, or was judged against another champion.
    """
    required_model(name)

    def decide(lease: Lease, _: Change | None) -> None:
        registered = lease.read_model()
        champion, challenger = (champions.alias_version(registered, alias) for alias in (CHAMPION, CHALLENGER))
        if champion == version and _approver(name, version):
            return
        if challenger != version:
            there = f"version {challenger} is" if challenger else "there is none"
            raise PosgapError(f"{name} version {version}: is not the {CHALLENGER} ({there}); promote it first")
        if not is_judged_here(get_version(name, version)):
            raise PosgapError(f"{name} version {version}: was not judged for {name}; gate it with --name {name}")
        _require_not_rolled_back(lease, version)
        lease.send_change(methodcaller("set_model_version_tag", name, version, APPROVED, user()))
        _promote_approved(lease)
        if champions.alias_version(lease.read_model(), CHAMPION) != version:
            raise PosgapError(
                f"{name} version {version}: was judged against another champion than version {champion}; promote it "
                "again with --gate-again FOLDER"
            )

    champions.in_turn(name, decide)


def _promote_approved(lease: Lease) -> None:
    """Makes the challenger the champion, if it is approved and was judged against the champion of today."""
    registered = lease.read_model()
    champion, challenger = (champions.alias_version(registered, alias) for alias in (CHAMPION, CHALLENGER))
    approver = _approver(lease.name, challenger) if challenger else ""
    if not approver:
        return
    if champion != challenger:
        reason = _veto(lease, challenger)
        if reason:
            log.warning("%s: challenger %s was %s", lease.name, challenger, reason)
            return
        if not is_judged_here(get_version(lease.name, challenger)):
            log.warning("%s: challenger %s was judged for another name", lease.name, challenger)
            return
        record = record_of(get_version(lease.name, challenger))
        of_today = get_version(lease.name, champion).tags.get(DIGEST, "") if champion else None
        if record is None or record.sweeps.get("champion", {}).get("model") != of_today:
            log.warning("%s: challenger %s was judged against another champion", lease.name, challenger)
            return
        run = get_version(lease.name, challenger).tags.get(PROMOTION_RUN, "")
        reason = _despite(lease, challenger)
        why = f"approved by {approver}" + (f", though rolled back before: {reason}" if reason else "")
        champions.set_champion(lease, challenger, why, champion, run)
    lease.set_alias(CHALLENGER, "")


def _require_not_rolled_back(lease: Lease, version: str) -> None:
    reason = _veto(lease, version)
    if reason:
        raise PosgapError(
            f"{lease.name} version {_rolled_back_as(lease, version)}: is this model, and was {reason}; "
            "promote another one, or give a reason by --despite-rollback"
        )


def _veto(lease: Lease, version: str) -> str:
    """Why a version was rolled back, unless somebody said as it became the challenger why it may return; else empty."""
    reason = champions.rolled_back(lease.read_model()).get(_rolled_back_as(lease, version), "")
    return "" if reason and _despite(lease, version) else reason


def _rolled_back_as(lease: Lease, version: str) -> str:
    """The version with these weights whose last reign a rollback ended, this one first; this one where there is none.

    A file of no matter beside the weights makes another version, and no other model.
    """
    vetoed = champions.rolled_back(lease.read_model())
    weights = get_version(lease.name, version).tags.get(WEIGHTS)
    if version in vetoed or not weights:
        return version
    same = (str(each.version) for each in find_versions(lease.name, WEIGHTS, weights))
    return next((each for each in same if each in vetoed), version)


def _despite(lease: Lease, version: str) -> str:
    """Returns why a version may be the champion again after its last rollback; empty if no reason was given."""
    ended, _, reason = get_version(lease.name, version).tags.get(DESPITE, "").partition(" ")
    of_veto = champions.ended_by(lease.read_model(), _rolled_back_as(lease, version))
    return reason if ended and ended == of_veto else ""


def _approver(name: str, version: str) -> str:
    """Returns the user who approved a version; empty if it is not approved."""
    return get_version(name, version).tags.get(APPROVED, "")


def _tag(lease: Lease, version: str, tags: Mapping[str, str]) -> None:
    """Sets the tags of a version that are missing or differ."""
    there = get_version(lease.name, version).tags
    missing = [key for key in tags if there.get(key) != tags[key]]
    # The tags that make it a candidate come last: a comparison reads the others.
    for key in sorted(missing, key=lambda key: key in _OF_CANDIDATES):
        lease.send_change(methodcaller("set_model_version_tag", lease.name, version, key, tags[key]))


def _upload_sweep(client: MlflowClient, run: str, sweep: Path) -> None:
    """Uploads a sweep to the files of a run, and checks that it arrived: MLflow's client takes a log-in page for
    success."""
    client.log_artifacts(run, str(sweep), PROMOTED_SWEEP)
    for folder in (sweep, *(each for each in sweep.rglob("*") if each.is_dir())):
        listed = client.list_artifacts(run, (Path(PROMOTED_SWEEP) / folder.relative_to(sweep)).as_posix())
        there = {Path(file.path).name: file.file_size for file in listed if not file.is_dir}
        if there != {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}:
            raise ConnectionError("it accepted the sweep, but does not have it")


def _require_stored(name: str, version: str, model_digest: str, try_out: Callable[[Path], None]) -> None:
    """`PosgapError` unless the registry gives back the files of the model that was judged, and `try_out` accepts
    them."""
    uri = f"models:/{name}/{version}"
    with tempfile.TemporaryDirectory() as place:
        folder = bring_model(uri, Path(place))
        if files.digest_path(folder) != model_digest:
            raise Contradiction(
                "MLflow returned other files than were uploaded; no alias was moved; promote again", at=uri
            )
        try:
            try_out(folder)
        except PosgapError as error:
            raise error.within(f"{uri}: no alias was moved") from None


def _log_model(model: Path, digest: str, name: str, run: Run, asked: Mapping[str, Any] | None) -> str:
    """Logs the model folder with MLflow, for a registered model of this name; returns its URI there."""
    import mlflow
    from mlflow.models import Model

    size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())

    # MLflow takes every registered name as that of a logged model, except for dots.
    logged_name = name.replace(".", "-")
    tags = {DIGEST: digest, PROMOTION_RUN: run.required_id()}

    def upload(client: MlflowClient) -> str:
        there = _uploaded(client, tags)
        if there:
            return there
        with tries_of_mlflow(), mlflow.start_run(run_id=run.id):
            how = {"flavor": flavor, "flavor_name": flavor.NAME, "folder": model, "asked": asked, "tags": tags}
            # MLflow would load the model to try the example, which the trial of the version does with its prompts.
            return Model.log(artifact_path=None, name=logged_name, validate_serving_input=False, **how).model_uri

    return call_mlflow(upload, SEVERAL, MODEL_SECONDS + size / BYTES_PER_SECOND)


def _uploaded(client: MlflowClient, tags: Mapping[str, str]) -> str:
    """The URI of the logged model that an earlier try of a run has uploaded whole; empty if there is none.

    Deletes what such a try left in part, so that an upload that is still under way ends nowhere.
    """
    experiment = client.get_run(tags[PROMOTION_RUN]).info.experiment_id
    condition = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
    whole = ""
    for logged in client.search_logged_models([experiment], filter_string=condition):
        if not whole and str(logged.status) == "READY":
            whole = logged.model_uri
        else:
            client.delete_logged_model(logged.model_id)
    return whole


def _register_version(lease: Lease, uri: str, tags: Mapping[str, str], run: Run) -> str:
    """The version of a model. If there is none, exactly one is made of the logged model at `uri`."""
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    logged = uri.rpartition("/")[2]

    def make(client: MlflowClient) -> None:
        # Where the answer to a first try was lost, the version is there.
        if find_versions(lease.name, DIGEST, tags[DIGEST]):
            return
        if not uri:
            raise PosgapError(f"{lease.name}: the version of this model was deleted meanwhile; promote it again")
        client.create_model_version(lease.name, uri, run.id, dict(tags), await_creation_for=30, model_id=logged)

    lease.send_change(make)
    lease.await_inflight()
    aliased = {str(number) for number in lease.read_model().aliases.values()}
    there = find_versions(lease.name, DIGEST, tags[DIGEST])
    if not there:
        raise PosgapError(
            f"{lease.name}: MLflow accepted a version of this model, but does not find it; promote it again"
        )
    version, *twins = sorted(there, key=lambda version: str(version.version) not in aliased)
    for twin in twins:
        log.warning("%s version %s: a copy of version %s; deleted", lease.name, twin.version, version.version)
        lease.send_change(methodcaller("delete_model_version", lease.name, str(twin.version)))
    if str(version.source) == uri:
        linked = {MLFLOW_MODEL_VERSIONS: json.dumps([{"name": lease.name, "version": int(version.version)}])}
        lease.send_change(lambda client: client.set_logged_model_tags(logged, linked))
    return str(version.version)
