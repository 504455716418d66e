"""KFP component of the stage `rollout_measure`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.options.rollout_measure import RolloutMeasureConfig


@component(RolloutMeasureConfig, TRAIN)
def rollout_measure(
    texts: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    sweep: dsl.Input[dsl.Artifact] = None,
):
    """Measures how much each part of a prompt reaches a model's last token, and what tells its right answers."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_rollout
    from posgap.options.rollout_measure import RolloutMeasureConfig
    from posgap.verbs.rollout_measure import rollout_measure

    rollout_measure(to_config(RolloutMeasureConfig, arguments))
    show_rollout(out, picture, "measurement.json", "influence.png")
