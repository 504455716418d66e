"""KFP component of the stage `train_job`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.train_job import TrainJobConfig


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
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_training
    from posgap.options.train_job import TrainJobConfig
    from posgap.verbs.train_job import train_job

    train_job(to_config(TrainJobConfig, arguments))
    show_training(out, metrics)
