"""The model registry: aliases `champion` and `previous` of one registered model."""

from collections.abc import Mapping
from pathlib import Path

from posgap.errors import PosgapError
from posgap.tracking.runs import PIPELINE_TAG, Run, require_server

CHAMPION, PREVIOUS = "champion", "previous"
SCORE_TAG = "posgap.mean_ci95_low"  # by which candidates of one run are compared
ANCESTORS = "posgap.ancestors"  # tag: digests of all that a model was made from


def champion(name: str):
    """The `ModelVersion` under the alias `champion`, or None."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    require_server()
    try:
        return MlflowClient().get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise PosgapError(f"registered model {name}: {error.message}") from None


def crown(name: str, model: Path, tags: Mapping[str, str], run: Run) -> tuple[str, str]:
    """Registers the model folder, and makes the best candidate of its pipeline run the champion.

    Returns its version and the champion's. A model that is registered already gets no second version.
    Candidates of one run come side by side: each looks at all of them when it is in the registry
    itself, so that the last one sees all, and the alias ends at the best in whatever order they come.
    The champion before the run becomes `previous`. Aliases move last, `previous` before `champion`,
    so that an interruption leaves a champion in place.
    """
    from mlflow import MlflowClient

    client, former = MlflowClient(), champion(name)
    if not run.id:
        raise PosgapError("no MLflow run: the registry needs a tracking server; start it and promote again")
    if known := _versions(client, name, "posgap.model_digest", tags["posgap.model_digest"]):
        version = str(known[0].version)
        for key, value in tags.items():
            client.set_model_version_tag(name, version, key, value)
    else:
        version = _register(name, model, tags, run)
    rivals = _versions(client, name, PIPELINE_TAG, tags[PIPELINE_TAG]) if tags.get(PIPELINE_TAG) else []
    scores = {str(rival.version): float(rival.tags.get(SCORE_TAG, "-inf")) for rival in rivals}
    best = max(scores, key=scores.__getitem__, default=version)
    if former is None or str(former.version) != best:
        if former is not None and str(former.version) not in scores:
            client.set_registered_model_alias(name, PREVIOUS, former.version)
        client.set_registered_model_alias(name, CHAMPION, best)
    return version, best


def _versions(client, name: str, tag: str, value: str) -> list:
    return list(client.search_model_versions(f"name='{name}' and tags.`{tag}`='{value}'"))


def _register(name: str, model: Path, tags: Mapping[str, str], run: Run) -> str:
    import mlflow
    import torch
    import transformers

    from posgap.models.loading import load_model, load_tokenizer

    with mlflow.start_run(run_id=run.id):
        logged = mlflow.transformers.log_model(
            {"model": load_model(str(model)), "tokenizer": load_tokenizer(str(model))},
            name="model",
            task="text-generation",
            pip_requirements=[
                f"torch=={torch.__version__.split('+')[0]}",
                f"transformers=={transformers.__version__}",
            ],
        )
    return str(mlflow.register_model(logged.model_uri, name, tags=dict(tags)).version)
