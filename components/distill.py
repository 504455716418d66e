"""KFP component of the stage `distill`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.options.distill import DistillConfig


@component(DistillConfig, TRAIN)
def distill(
    examples: dsl.Input[dsl.Dataset],
    responses: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Trains the model with its own answers from its best position (Pos2Distill)."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_training
    from posgap.kubeflow.keeping import keep_work
    from posgap.kubeflow.launching import on_all_gpus
    from posgap.options.distill import DistillConfig
    from posgap.verbs.distill import distill

    with keep_work(out) as place:
        arguments["work"] = arguments["work"] or place
        on_all_gpus(distill, to_config(DistillConfig, arguments))
    show_training(out, metrics)
