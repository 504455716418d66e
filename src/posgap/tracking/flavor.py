"""A Hugging Face folder in MLflow: its files byte for byte, and loaders that scale what is scaled.

A logged model has the folder below `data/model`. `data/asked.json` says how the sweep that admitted it asked.
`mlflow.pyfunc.load_model` and `mlflow models serve` load it as `posgap.load_model` does, and ask in the same way.
`mlflow.transformers.load_model` loads a model that is not scaled. It refuses a scaled one, which transformers would
load without its factors, in a line that says what to use.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posgap import __version__
from posgap.foundation import files
from posgap.models.factors import is_altered
from posgap.tracking import answering
from posgap.tracking.answering import ASKED, MAX_NEW_TOKENS

if TYPE_CHECKING:
    from mlflow.models import Model

NAME = "posgap"
DATA = "data/model"
# MLflow parses this as a type first, and quotes it in its error.
_REFUSED = (
    "of a model that is scaled, or mitigated otherwise, when it is loaded: use posgap.load_model or "
    "mlflow.pyfunc.load_model, which do that"
)
# What MLflow shows, and sends where somebody tries the version: the model is asked this with its sweep's template.
_EXAMPLE = ["What is the capital of France?"]
_COMPONENTS = "components/tokenizer"  # where MLflow looks for what is no model
_OF_MODEL = (".safetensors", ".safetensors.index.json")


def save_model(
    path: str, mlflow_model: "Model", folder: Path, asked: Mapping[str, Any] | None = None, **_: Any
) -> None:
    """Writes the logged model that `mlflow.models.Model.log` uploads, of the Hugging Face folder `folder`.

    `asked` is how its sweep asked it (`posgap.tracking.answering.as_swept`); without it prompts are read as they are.
    The weights are not loaded; where the disk has hard links they are not copied either.
    """
    import mlflow
    import torch
    import transformers
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    from posgap.models.loading import load_config

    config = load_config(str(folder))
    longest = (asked or {}).get("max_new_tokens", MAX_NEW_TOKENS)
    params = ParamSchema([ParamSpec("max_new_tokens", "integer", longest), ParamSpec("raw", "boolean", not asked)])
    versions = {
        "posgap": __version__,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
    }
    with tempfile.TemporaryDirectory() as parent:
        empty = Path(parent) / Path(DATA).name
        empty.mkdir()
        mlflow.pyfunc.save_model(
            path,
            loader_module=answering.__name__,
            data_path=str(empty),
            mlflow_model=mlflow_model,
            pip_requirements=[f"{package}=={version}" for package, version in versions.items()],
            input_example=_EXAMPLE,
            signature=ModelSignature(Schema([ColSpec("string")]), Schema([ColSpec("string")]), params),
        )
    _link(folder, Path(path) / DATA)
    if asked:
        files.write_json(Path(path) / ASKED, dict(asked))
    scaled = is_altered(config)
    mlflow_model.add_flavor(NAME, version=__version__, data=DATA, scaled=scaled)
    if scaled:
        mlflow_model.add_flavor(
            "transformers", task="text-generation", torch_dtype=_REFUSED, pipeline_model_type=_REFUSED, model_binary=""
        )
    else:
        tokenizer = Path(path) / _COMPONENTS
        _link(folder, tokenizer, leave=_OF_MODEL)
        mlflow_model.add_flavor("transformers", **_as_mlflow_has_it(config, tokenizer, (asked or {}).get("dtype", "")))
    mlflow_model.save(str(Path(path) / "MLmodel"))


def _as_mlflow_has_it(config: Any, tokenizer: Path, dtype: str) -> dict[str, Any]:
    """Returns the fields of MLflow's own flavor for transformers, which loads a model in the precision of its sweep."""
    import transformers

    from posgap.models.loading import load_tokenizer

    return {
        "task": "text-generation",
        "instance_type": "TextGenerationPipeline",
        "transformers_version": transformers.__version__,
        "pipeline_model_type": config.architectures[0],
        "source_model_name": "",
        "model_binary": DATA,
        "torch_dtype": f"torch.{dtype}" if dtype in ("float32", "bfloat16") else str(config.dtype),
        "components": ["tokenizer"],
        "tokenizer_type": type(load_tokenizer(str(tokenizer))).__name__,
    }


def _link(folder: Path, target: Path, leave: tuple[str, ...] = ()) -> None:
    """Brings the files of a folder to another one."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.endswith(leave):
            files.link(file, target / file.relative_to(folder))
