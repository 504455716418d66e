"""KFP component of the stage `rollout_predict`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.rollout_predict import RolloutPredictConfig


@component(RolloutPredictConfig)
def rollout_predict(
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    measurement: dsl.Input[dsl.Artifact] = None,
):
    """Predicts how much of each input position reaches the last token, and compares that with a measurement."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_rollout
    from posgap.options.rollout_predict import RolloutPredictConfig
    from posgap.verbs.rollout_predict import rollout_predict

    rollout_predict(to_config(RolloutPredictConfig, arguments))
    show_rollout(out, picture, "prediction.json", "prediction.png", "comparison.json", "comparison.png")
