"""The model registry: aliases `champion` and `previous` of one registered model."""

from collections.abc import Mapping
from pathlib import Path

from posgap.errors import PosgapError
from posgap.tracking.runs import Run, require_server

CHAMPION, PREVIOUS = "champion", "previous"
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


def crown(name: str, model: Path, tags: Mapping[str, str], run: Run) -> str:
    """Registers the model folder and makes it the champion; returns its version.

    The champion before it becomes `previous`. Aliases move last, `previous` before `champion`,
    so that an interruption leaves a champion in place.
    """
    import mlflow
    import torch
    import transformers
    from mlflow import MlflowClient

    from posgap.models import load_model, load_tokenizer

    if not run.id:
        raise PosgapError("no MLflow run: the registry needs a tracking server; start it and promote again")
    former = champion(name)
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
    version = mlflow.register_model(logged.model_uri, name, tags=dict(tags)).version
    client = MlflowClient()
    if former is not None:
        client.set_registered_model_alias(name, PREVIOUS, former.version)
    client.set_registered_model_alias(name, CHAMPION, version)
    return str(version)
