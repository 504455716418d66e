"""KFP component of the stage `rollout_advise`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.rollout.config import RolloutAdviseConfig


@component(RolloutAdviseConfig, TRAIN)
def rollout_advise(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
):
    """Finds the attention heads that make the bias, predicts what turning them changes, and checks it."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_rollout
    from posgap.rollout.config import RolloutAdviseConfig
    from posgap.stages.rollout_advise import rollout_advise

    rollout_advise(to_config(RolloutAdviseConfig, arguments))
    show_rollout(out, picture, "advice.json", "advice.png")
