"""KFP component of the stage `rollout_predict`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.rollout.config import RolloutPredictConfig


@component(RolloutPredictConfig)
def rollout_predict(
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    architecture: dsl.Input[dsl.Artifact] = None,
    measurement: dsl.Input[dsl.Artifact] = None,
):
    """Predicts from the architecture alone how much of each input position reaches the last token."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_rollout
    from posgap.rollout.config import RolloutPredictConfig
    from posgap.stages.rollout_predict import rollout_predict

    rollout_predict(to_config(RolloutPredictConfig, arguments))
    show_rollout(out, "prediction.json", picture, "prediction.png")
