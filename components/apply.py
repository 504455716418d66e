"""KFP component of the stage `apply`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.apply import ApplyConfig


@component(ApplyConfig)
def apply(
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    settings: dict = {},  # noqa: B006  KFP reads the default
    found: dsl.Input[dsl.Artifact] = None,
):
    """Writes a copy of the model that loads with a mitigation in force."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_model
    from posgap.options.apply import ApplyConfig
    from posgap.verbs.apply import apply

    apply(to_config(ApplyConfig, arguments))
    show_model(out)
