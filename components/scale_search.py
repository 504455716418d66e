"""KFP component of the stage `scale_search`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.options.scale_search import ScaleSearchConfig


@component(ScaleSearchConfig, TRAIN)
def scale_search(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
    exclude: dsl.Input[dsl.Dataset] = None,
):
    """Searches for the RoPE factor per layer with which the model answers best (LPES)."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_scaling
    from posgap.options.scale_search import ScaleSearchConfig
    from posgap.verbs.scale_search import scale_search

    scale_search(to_config(ScaleSearchConfig, arguments))
    show_scaling(out, picture, metrics)
