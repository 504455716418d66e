"""KFP component of the stage `promote`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.promote import PromoteConfig


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
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_promotion
    from posgap.options.promote import PromoteConfig
    from posgap.verbs.gate import promote

    promote(to_config(PromoteConfig, arguments))
    show_promotion(out)
