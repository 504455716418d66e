"""Types of packages that take long to import, for annotations alone: at run time each of them is `Any`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from kubeflow.trainer import TrainerClient
    from kubeflow.trainer.types.types import TrainJob
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel
    from pandas import DataFrame
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
else:
    Environment = Template = TrainerClient = TrainJob = MlflowClient = DatasetInput = Any
    ModelVersion = RegisteredModel = DataFrame = PeftModel = Any
    PretrainedConfig = PreTrainedModel = PreTrainedTokenizerBase = Any
