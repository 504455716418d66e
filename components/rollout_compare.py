"""KFP component of the stage `rollout_compare`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.rollout.config import RolloutCompareConfig


@component(RolloutCompareConfig)
def rollout_compare(
    prediction: dsl.Input[dsl.Artifact],
    measurement: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    sweep: dsl.Input[dsl.Artifact] = None,
):
    """Compares the predicted influence of each position with the measured one, and with the accuracy by position."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_rollout
    from posgap.rollout.config import RolloutCompareConfig
    from posgap.stages.rollout_compare import rollout_compare

    rollout_compare(to_config(RolloutCompareConfig, arguments))
    show_rollout(out, "comparison.json", picture, "comparison.png")
