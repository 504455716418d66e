"""KFP component of the stage `scale_apply`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.scaling.config import ScaleApplyConfig


@component(ScaleApplyConfig)
def scale_apply(
    model: dsl.Input[dsl.Model],
    scaling: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Model],
):
    """Writes a copy of the model with the scaling's factors in its config."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_model
    from posgap.scaling.config import ScaleApplyConfig
    from posgap.stages.scale_apply import scale_apply

    scale_apply(to_config(ScaleApplyConfig, arguments))
    show_model(out)
