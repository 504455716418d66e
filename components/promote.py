"""KFP component of the stage `promote`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.tracking.config import PromoteConfig


@component(PromoteConfig)
def promote(
    model: dsl.Input[dsl.Model],
    gate: dsl.Input[dsl.Artifact],
    sweep: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    examples: dsl.Input[dsl.Artifact] = None,
):
    """Registers a model that passed the gate and makes it the champion."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_promotion
    from posgap.tracking.config import PromoteConfig
    from posgap.workflows.admission import promote

    promote(to_config(PromoteConfig, arguments))
    show_promotion(out)
