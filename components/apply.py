"""KFP component of the stage `apply`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.mitigation_search.config import ApplyConfig


@component(ApplyConfig)
def apply(
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    settings: dict = {},  # noqa: B006  KFP reads the default
    found: dsl.Input[dsl.Artifact] = None,
):
    """Writes a copy of the model that loads with a mitigation in force."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_model
    from posgap.mitigation_search.config import ApplyConfig
    from posgap.stages.apply import apply

    apply(to_config(ApplyConfig, arguments))
    show_model(out)
