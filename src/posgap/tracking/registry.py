"""The content of the model registry: registered models, their versions and policies, and what these hold."""

import logging
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import registered_name
from posgap.foundation.files import digest_path
from posgap.foundation.heavy_types import MlflowClient, ModelVersion, RegisteredModel
from posgap.foundation.retries import RetryPolicy
from posgap.tracking import flavor
from posgap.tracking.champions import CHAMPION, PREVIOUS
from posgap.tracking.runs import PIPELINE_TAG, pipeline_run
from posgap.tracking.server import MAX_CHARACTERS, RequestRefused, TrackingError, call_mlflow, look_up, tries_of_mlflow

log = logging.getLogger(__name__)
DIGEST = "posgap.model_digest"  # tag: the model's
WEIGHTS = "posgap.weights_digest"  # tag: that of its weights alone, by which a veto holds
DOWNLOAD_SECONDS = 3600.0  # for the download of a model; MLflow does not tell its size
MODEL_SECONDS = 120.0  # for an operation on a whole model, besides its upload
RECIPE = "posgap.recipe"  # tag: digest of how a model was made, beside what it was made from
POLICY = "posgap.policy"  # tag: of a registered model its policy; of a version the one that admitted it
PROMOTION_RUN = "posgap.promotion_run"  # tag: the MLflow run that promoted a version
JUDGED_FOR = "posgap.judged_for"  # tag: the registered name for which a version was admitted
PROMOTED_SWEEP = "sweep"  # among that run's files: the sweep that was judged
DTYPE = "posgap.dtype"  # tag: the precision in which a version was swept
DEVICE = "posgap.device"  # tag: the class of device on which
EVIDENCE = "posgap.evidence"  # tag: sha256 of the file with the digests of all that admitted a version
WATCHED = "posgap.watched"  # tag: when and how a version was last found on fresh data
SEVERAL = RetryPolicy(tries=3, longest_wait=10)  # for operations on a whole model
# In MLflow's messages if files did not arrive.
_IN_PART = ("failures occurred while downloading", "please ensure that the path is correct")


def champion(name: str) -> ModelVersion | None:
    """The version with the alias `champion`, or None; `TrackingError` if MLflow does not answer."""
    return _under(name, CHAMPION)


def previous(name: str) -> ModelVersion | None:
    """The version with the alias `previous`, or None; `TrackingError` if MLflow does not answer."""
    return _under(name, PREVIOUS)


def to_beat(name: str) -> ModelVersion | None:
    """The version that a candidate is compared with: the champion or, if that is a candidate of the same pipeline run,
    the champion before the run; None if there is none.

    `promote_version` compares the candidates of one run with each other, when all of them are registered.
    """
    return next((version for version in (champion(name), previous(name)) if not is_of_this_run(version)), None)


def is_of_this_run(version: ModelVersion | None) -> bool:
    """Whether a version is a candidate of the pipeline run that this process is a step of."""
    return version is not None and bool(pipeline_run()) and version.tags.get(PIPELINE_TAG) == pipeline_run()


def _under(name: str, alias: str) -> ModelVersion | None:
    try:
        return call_mlflow(lambda client: client.get_model_version_by_alias(name, alias))
    except RequestRefused as error:
        # A server with log-ins refuses access to a name that does not exist.
        if error.is_missing or error.is_wrong or registered_model(name) is None:
            return None
        raise


def version_of(uri: str) -> ModelVersion:
    """The version that `models:/name@alias` or `models:/name/3` names; `PosgapError` if there is none."""
    whole = re.fullmatch(r"models:/([^/@]+)(?:@([\w.-]+)|/(\d{1,9}))", uri)
    try:
        name, alias, number = whole.groups() if whole else ("", "", "")
        registered_name(name)
    except ValueError:
        raise PosgapError(f"{uri}: names no version; write models:/NAME@champion or models:/NAME/3") from None
    if alias:
        found = look_up(lambda client: client.get_model_version_by_alias(name, alias))
    else:
        found = look_up(lambda client: client.get_model_version(name, number))
    if found is None:
        raise PosgapError(f"{uri}: no such version in MLflow's registry")
    return found


def policy(name: str) -> str:
    """The text of a registered model's policy; empty if it has none, or there is no such model."""
    model = registered_model(name)
    return model.tags.get(POLICY, "") if model else ""


def registered_model(name: str) -> RegisteredModel | None:
    """The registered model of this name, or None; `TrackingError` if MLflow does not answer."""
    return look_up(lambda client: client.get_registered_model(name))


def required_model(name: str) -> RegisteredModel:
    """The registered model of this name; `PosgapError` if there is none."""
    model = registered_model(name)
    if model:
        return model
    raise PosgapError(f"{name}: no registered model of this name in MLflow")


def identity(version: ModelVersion) -> list[Any]:
    """Returns what identifies a version: a registry that was begun anew counts from 1 again."""
    return [version.name, version.version, version.run_id, version.creation_timestamp]


def versions(name: str) -> list[ModelVersion]:
    """All versions of a registered model."""
    return call_mlflow(lambda client: list(client.search_model_versions(f"name='{name}'")))


def is_judged_here(version: ModelVersion) -> bool:
    """Whether a version was admitted under its name: MLflow copies tags to another name with the version.

    An older posgap did not write the name down. A copy then tells itself by its source, the version that it is of.
    """
    name = version.tags.get(JUDGED_FOR)
    return name == version.name if name else not re.fullmatch(r"models:/[^/]+/\d+", str(version.source or ""))


def find_versions(name: str, tag: str, value: str) -> list[ModelVersion]:
    """The versions with this value of a tag, in the order in which they were registered."""
    versions = call_mlflow(
        lambda client: list(client.search_model_versions(f"name='{name}' and tags.`{tag}`='{value}'"))
    )
    return sorted(versions, key=lambda version: int(version.version))


def get_version(name: str, number: str) -> ModelVersion:
    """The version of a registered model with this number."""
    return call_mlflow(lambda client: client.get_model_version(name, number))


def set_policy(name: str, text: str) -> None:
    """Keeps the text of a policy on a registered model, which is created if there is none."""
    if len(text) > MAX_CHARACTERS:
        raise PosgapError(f"policy of {name}: {len(text)} characters, and MLflow keeps at most {MAX_CHARACTERS}")
    if registered_model(name) is None:
        create(name)
    call_mlflow(lambda client: client.set_registered_model_tag(name, POLICY, text))


def create(name: str) -> None:
    """Creates a registered model, unless another command does so at the same time."""
    try:
        call_mlflow(lambda client: client.create_registered_model(name))
    except RequestRefused:
        call_mlflow(
            lambda client: client.get_registered_model(name)
        )  # made by another command, or by a try without an answer


def bring(run: str, path: str, folder: Path) -> bool:
    """Downloads a file or a folder at the top of a run's files; false if the run has none of that name."""
    there = look_up(lambda client: [file.path for file in client.list_artifacts(run)])
    if path not in (there or ()):
        return False
    call_mlflow(
        lambda client: _complete_download(lambda: client.download_artifacts(run, path, str(folder))),
        seconds=MODEL_SECONDS,
    )
    return True


def _complete_download(download: Callable[[], str]) -> str:
    """Returns the result of an MLflow download. Raises `ConnectionError` if files did not arrive; MLflow has several
    errors for that."""
    from mlflow.exceptions import MlflowException

    try:
        return download()
    except MlflowException as error:
        if any(text in str(error) for text in _IN_PART):
            raise ConnectionError("not all files came") from error
        raise


def stored_digests(version: ModelVersion) -> set[str]:
    """The digests of all folders of weights that a version holds, whoever registered it; none if MLflow does not
    give it back."""
    uri = f"models:/{version.name}/{version.version}"
    with tempfile.TemporaryDirectory() as place:
        try:
            folder = _download(uri, Path(place))
        except TrackingError as error:
            log.warning("%s", error)
            return set()
        folders = [config.parent for config in folder.rglob("config.json")]
        return {digest_path(each) for each in folders if any(each.glob("*.safetensors"))}


def bring_model(uri: str, place: Path) -> Path:
    """Downloads a version's model, `models:/name@champion`, into the folder `place`; returns its Hugging Face folder.

    `PosgapError` if posgap did not register it.
    """
    folder = _download(uri, place) / flavor.DATA
    if not (folder / "config.json").is_file():
        raise PosgapError(
            f"{uri}: holds no model that this posgap registered; delete that version, and promote the model again"
        )
    return folder


def _download(uri: str, place: Path) -> Path:
    import mlflow

    def download(_: MlflowClient) -> str:
        with tries_of_mlflow():
            return _complete_download(
                lambda: mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(place))
            )

    return Path(call_mlflow(download, SEVERAL, DOWNLOAD_SECONDS))
