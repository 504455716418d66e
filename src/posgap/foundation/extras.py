"""Optional packages: which of posgap's extras brings each, and the message if one is missing.

Measuring an endpoint needs none of them. They are imported at their use, and never at the top of a module that
measuring an endpoint imports.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from posgap.foundation.errors import MissingPackage

# By the packages' import names; the extras themselves are in pyproject.toml.
_PACKAGES = {
    "local": ("torch", "transformers", "accelerate", "safetensors", "tokenizers"),
    "mlflow": ("mlflow", "sqlalchemy", "requests"),
    "kfp": ("kfp", "kfp_server_api", "google", "urllib3", "cronsim", "tabulate"),
    "s3": ("boto3", "botocore", "s3transfer"),
    "tables": ("pandas", "pyarrow"),
    "validate": ("great_expectations",),
    "train": ("deepspeed", "peft"),
    "cluster": ("kubeflow", "kubernetes"),
    "vllm": ("vllm",),
    "inspect": ("inspect_ai",),
    "gpu": ("flash_attn",),
}
EXTRA_OF = {package: extra for extra, packages in _PACKAGES.items() for package in packages}


def how_to_install(module: str) -> str:
    """Returns the words for a `module` (also "kfp.dsl") that cannot be imported; empty if no extra brings it."""
    package = module.partition(".")[0]
    extra = EXTRA_OF.get(package)
    if not extra:
        return ""
    return f"this needs posgap's extra {extra} ({package} is not installed): pip install 'posgap[{extra}]'"


def installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution, else None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def import_extra(module: str) -> Any:
    """Returns the imported module. Raises `MissingPackage`, which names the extra, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = how_to_install(error.name or "")
        if not hint:
            raise
        raise MissingPackage(hint) from None
