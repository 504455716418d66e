"""Packages that not everybody needs: which of posgap's extras brings each, and what to say where one is missing.

Measuring needs none of them. They are imported where they are used, and never at the top of a module that measuring
imports.
"""

import importlib
from typing import Any

from posgap.foundation.errors import PosgapError

# By the name under which a package is imported; the extras themselves are in pyproject.toml.
EXTRA_OF = {
    "mlflow": "mlflow",
    "sqlalchemy": "mlflow",
    "alembic": "mlflow",
    "requests": "mlflow",
    "kfp": "kfp",
    "kfp_server_api": "kfp",
    "google": "kfp",
    "urllib3": "kfp",
    "cronsim": "kfp",
    "tabulate": "kfp",
    "boto3": "s3",
    "botocore": "s3",
    "s3transfer": "s3",
    "pandas": "tables",
    "pyarrow": "tables",
    "great_expectations": "validate",
    "cma": "search",
    "deepspeed": "train",
    "peft": "train",
    "kubeflow": "cluster",
    "kubernetes": "cluster",
    "psycopg": "cluster",
    "lm_eval": "harness",
    "inspect_ai": "inspect",
    "vllm": "vllm",
    "flash_attn": "gpu",
}


def how_to_install(module: str) -> str:
    """What to say where `module` (also "kfp.dsl") cannot be imported; empty where no extra brings it."""
    package = module.partition(".")[0]
    extra = EXTRA_OF.get(package)
    return (
        f"this needs posgap's extra {extra} ({package} is not installed): pip install 'posgap[{extra}]'"
        if extra
        else ""
    )


def needed(module: str) -> Any:
    """The imported module. Raises `PosgapError` that names the extra where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not (said := how_to_install(error.name or "")):
            raise
        raise PosgapError(said) from None
