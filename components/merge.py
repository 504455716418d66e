"""KFP component of the stage `merge`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.measurement.config import MergeConfig


@component(MergeConfig)
def merge(
    sweeps: dsl.Input[list[dsl.Artifact]],
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
):
    """Merges the parts of one sweep, which were swept in parallel. The run page shows the curve."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_sweep
    from posgap.measurement.config import MergeConfig
    from posgap.stages.merge import merge

    merge(to_config(MergeConfig, arguments))
    show_sweep(out, curve, metrics)
