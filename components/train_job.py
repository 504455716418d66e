"""KFP component of the stage `train_job`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.distillation.config import TrainJobConfig


@component(TrainJobConfig)
def train_job(
    examples: dsl.Input[dsl.Dataset],
    responses: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Starts a TrainJob of Kubeflow Trainer that distils the model on several machines, and follows it to its end."""
    arguments = dict(locals())
    from posgap.distillation.config import TrainJobConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_training
    from posgap.stages.train_job import train_job

    train_job(to_config(TrainJobConfig, arguments))
    show_training(out, metrics)
