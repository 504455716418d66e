"""KFP component of the stage `merge`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.merge import MergeConfig


@component(MergeConfig)
def merge(
    sweeps: dsl.Input[list[dsl.Artifact]],
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
):
    """Merges the parts of one sweep, which were swept in parallel. The run page shows the curve."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_sweep
    from posgap.options.merge import MergeConfig
    from posgap.verbs.merge import merge

    merge(to_config(MergeConfig, arguments))
    show_sweep(out, curve, metrics)
