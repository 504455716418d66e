"""The model registry: aliases `champion` and `previous` of one registered model."""

import json
import re
import tempfile
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posgap import files
from posgap.config.fields import registered_name
from posgap.errors import PosgapError
from posgap.json_text import parse
from posgap.models import flavor
from posgap.tracking.runs import PIPELINE_TAG, Run, pipeline_run
from posgap.tracking.server import BYTES_PER_SECOND, ONCE, Refused, ask, tries_of_mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

CHAMPION, PREVIOUS = "champion", "previous"
DIGEST = "posgap.model_digest"  # tag: the model's
DOWNLOAD_SECONDS = 3600.0  # for the download of a model, whose size MLflow does not tell
MODEL_SECONDS = 120.0  # for what is done with a whole model, beside its upload
SCORE_TAG = "posgap.mean_ci95_low"  # by which candidates of one run are compared
POLICY = "posgap.policy"  # tag: of a registered model its policy; of a version the one that admitted it
PROMOTION_RUN = "posgap.promotion_run"  # tag: the MLflow run that promoted a version
PROMOTED_SWEEP = "sweep"  # among that run's files: the sweep that was judged
EVIDENCE = "posgap.evidence"  # tag: sha256 of the file with the digests of all that admitted a version
CHANGE = "posgap.champion."  # beginning of tags of a registered model, one more whenever its champion changes
WHEN = "%Y-%m-%d %H:%M:%S"  # in UTC
MOST_CHARACTERS = 5000  # of a registered model's tag, in MLflow's database


def champion(name: str) -> "ModelVersion | None":
    """The version under the alias `champion`, or None; `TrackingError` where MLflow does not say."""
    return _under(name, CHAMPION)


def previous(name: str) -> "ModelVersion | None":
    """The version under the alias `previous`, or None; `TrackingError` where MLflow does not say."""
    return _under(name, PREVIOUS)


def to_beat(name: str) -> "ModelVersion | None":
    """The version that a candidate is compared with: the champion, or, where that is a candidate of this same pipeline
    run, the champion before the run; None where there is none.

    Candidates of one run are compared with each other when all of them are registered (`crown`).
    """
    return next((version for version in (champion(name), previous(name)) if not _of_this_run(version)), None)


def _of_this_run(version: "ModelVersion | None") -> bool:
    return version is not None and bool(pipeline_run()) and version.tags.get(PIPELINE_TAG) == pipeline_run()


def _under(name: str, alias: str) -> "ModelVersion | None":
    try:
        return ask(lambda client: client.get_model_version_by_alias(name, alias))
    except Refused as error:
        if error.is_missing or error.is_wrong:
            return None
        raise


def version_of(uri: str) -> "ModelVersion":
    """The version that `models:/name@alias` or `models:/name/3` names; `PosgapError` where there is none."""
    whole = re.fullmatch(r"models:/([^/@]+)(?:@([\w.-]+)|/(\d{1,9}))", uri)
    try:
        name, alias, number = whole.groups() if whole else ("", "", "")
        registered_name(name)
    except ValueError:
        raise PosgapError(f"{uri}: names no version; write models:/NAME@champion or models:/NAME/3") from None
    try:
        if alias:
            return ask(lambda client: client.get_model_version_by_alias(name, alias))
        return ask(lambda client: client.get_model_version(name, number))
    except Refused as error:
        if error.is_missing or error.is_wrong:
            raise PosgapError(f"{uri}: no such version in MLflow's registry") from None
        raise


def policy(name: str) -> str:
    """The text of a registered model's policy; empty where it has none, or there is no such model."""
    model = registered_model(name)
    return model.tags.get(POLICY, "") if model else ""


def registered_model(name: str) -> "RegisteredModel | None":
    """The registered model of this name, or None; `TrackingError` where MLflow does not say."""
    try:
        return ask(lambda client: client.get_registered_model(name))
    except Refused as error:
        if error.is_missing:
            return None
        raise


def versions(name: str) -> "list[ModelVersion]":
    """All versions of a registered model."""
    return ask(lambda client: list(client.search_model_versions(f"name='{name}'")))


def set_policy(name: str, text: str) -> None:
    """Keeps the text of a policy on a registered model, which is made where there is none yet."""
    if len(text) > MOST_CHARACTERS:
        raise PosgapError(f"policy of {name}: {len(text)} characters, and MLflow keeps at most {MOST_CHARACTERS}")
    if registered_model(name) is None:
        _create(name)
    ask(lambda client: client.set_registered_model_tag(name, POLICY, text))


def _create(name: str) -> None:
    try:
        ask(lambda client: client.create_registered_model(name))
    except Refused:
        ask(lambda client: client.get_registered_model(name))  # made by another command, or by a try without an answer


def bring(run: str, path: str, folder: Path) -> bool:
    """Downloads a file of a run, or the files below a folder, at the top of its files; false where it has none."""
    try:
        if path not in {file.path for file in ask(lambda client: client.list_artifacts(run))}:
            return False
        ask(lambda client: client.download_artifacts(run, path, str(folder)), seconds=MODEL_SECONDS)
    except Refused as error:
        if error.is_missing or error.is_wrong:
            return False
        raise
    return True


def crown(name: str, model: Path, tags: Mapping[str, str], run: Run) -> tuple[str, str]:
    """Registers the model folder, and makes the best candidate of its pipeline run the champion.

    Returns its version and the champion's. A model that is registered already gets no second version.
    Candidates of one run come side by side: each looks at all of them when it is in the registry
    itself, so that the last one sees all, and the alias ends at the best in whatever order they come.
    The champion before the run becomes `previous`. Aliases move last, `previous` before `champion`,
    so that an interruption leaves a champion in place. `PosgapError`, and no alias moves, where somebody else's
    candidate has become the champion meanwhile.
    """
    former = champion(name)
    if registered := _versions(name, DIGEST, tags[DIGEST]):
        version = str(registered[0].version)
        for key, value in tags.items():
            ask(partial(_tag, name=name, version=version, key=key, value=value))
    else:
        version = _register(name, model, tags, run)
    _require_stored(name, version, tags[DIGEST])
    rivals = _versions(name, PIPELINE_TAG, tags[PIPELINE_TAG]) if tags.get(PIPELINE_TAG) else []
    scores = {str(rival.version): float(rival.tags.get(SCORE_TAG, "-inf")) for rival in rivals}
    best = max(scores, key=scores.__getitem__, default=version)
    meanwhile = champion(name)
    if meanwhile and not _of_this_run(meanwhile) and meanwhile.version != (former and former.version):
        raise PosgapError(
            f"{name}: version {meanwhile.version} has become the champion meanwhile, so that no alias was moved to "
            f"version {version}; gate it again, against that"
        )
    if former is None or str(former.version) != best:
        outside = former is not None and str(former.version) not in scores
        set_champion(name, best, former, "promoted", former_is_previous=outside)
    return version, best


def set_champion(
    name: str, version: str, former: "ModelVersion | None", why: str, former_is_previous: bool = True
) -> None:
    """Moves the alias `champion` to a version, and before that `previous` to the former champion, if there is one.

    The registered model gets a tag that says so: one of its own, so that nobody writes over another's.
    """
    if former is not None and former_is_previous:
        ask(lambda client: client.set_registered_model_alias(name, PREVIOUS, former.version))
    ask(lambda client: client.set_registered_model_alias(name, CHAMPION, version))
    seconds = time.time()
    change = {
        "at": datetime.fromtimestamp(seconds, UTC).strftime(WHEN),
        "version": version,
        "before": str(former.version) if former else "",
        "why": why,
    }
    tag = f"{CHANGE}{int(1000 * seconds)}-{uuid.uuid4().hex[:8]}"
    ask(lambda client: client.set_registered_model_tag(name, tag, json.dumps(change)))


def changes(model: "RegisteredModel") -> list[dict[str, Any]]:
    """Each change of the champion, in order: when (`at`, UTC), to which `version`, from which `before`, and `why`."""
    moments = {tag: tag.removeprefix(CHANGE).partition("-")[0] for tag in model.tags if tag.startswith(CHANGE)}
    ours = sorted((int(moment), tag) for tag, moment in moments.items() if moment.isdigit())
    return [parse(model.tags[tag], f"{model.name}: tag {tag}") for _, tag in ours]


def _tag(client: "MlflowClient", name: str, version: str, key: str, value: str) -> None:
    client.set_model_version_tag(name, version, key, value)


def _versions(name: str, tag: str, value: str) -> "list[ModelVersion]":
    return ask(lambda client: list(client.search_model_versions(f"name='{name}' and tags.`{tag}`='{value}'")))


def bring_model(uri: str, place: Path) -> Path:
    """Downloads a version's model, `models:/name@champion`, into the folder `place`; returns its Hugging Face folder.

    `PosgapError` where there is none that posgap registered.
    """
    import mlflow

    def download(_: "MlflowClient") -> str:
        with tries_of_mlflow():
            return mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(place))

    folder = Path(ask(download, ONCE, DOWNLOAD_SECONDS)) / flavor.DATA
    if not (folder / "config.json").is_file():
        raise PosgapError(
            f"{uri}: holds no model that this posgap registered; delete that version, and promote the model again"
        )
    return folder


def _require_stored(name: str, version: str, model_digest: str) -> None:
    """`PosgapError` unless the registry gives back the very files of the model that was judged."""
    uri = f"models:/{name}/{version}"
    with tempfile.TemporaryDirectory() as place:
        if files.digest(bring_model(uri, Path(place))) != model_digest:
            raise PosgapError(
                f"{uri}: MLflow gives back other files than it was given; no alias was moved, promote again"
            )


def _register(name: str, model: Path, tags: Mapping[str, str], run: Run) -> str:
    import mlflow
    from mlflow.models import Model

    size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())

    def upload(_: "MlflowClient") -> str:
        with tries_of_mlflow(), mlflow.start_run(run_id=run.id):
            how = {"flavor": flavor, "flavor_name": flavor.NAME, "folder": model}
            return Model.log(artifact_path=None, name="model", **how).model_uri

    def register(_: "MlflowClient") -> str:
        # Where the answer to a first try was lost, the version is there.
        if there := _versions(name, DIGEST, tags[DIGEST]):
            return str(there[0].version)
        return str(mlflow.register_model(uri, name, await_registration_for=30, tags=dict(tags)).version)

    uri = ask(upload, ONCE, MODEL_SECONDS + size / BYTES_PER_SECOND)
    return ask(register, seconds=MODEL_SECONDS)
