"""KFP component of the stage `rollout_predict`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import RolloutPredictConfig


@component(RolloutPredictConfig, artifacts=("picture",))
def rollout_predict(
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    sequence_length: int,
    layers: int,
    heads: int,
    mask: str,
    window: int,
    prefix: int,
    encoding: str,
    slope: float,
    rope_theta: float,
    head_size: int,
    rope_angle: float,
    rope_strength: float,
    rope_factors: list,
    residual: str,
    residual_strength: float,
    residual_power: float,
    content: str,
    content_score: float,
    head_weights: list,
    temperature: float,
    label: str,
    seed: int,
    measurement: dsl.Input[dsl.Artifact] = None,
):
    """What of each input position reaches the last token by the architecture alone."""
    arguments = dict(locals())
    from posgap.config import RolloutPredictConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_rollout
    from posgap.stages.rollout_predict import rollout_predict

    rollout_predict(to_config(RolloutPredictConfig, arguments))
    show_rollout(out, "prediction.json", picture, "prediction.png")
