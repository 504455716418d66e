"""KFP component of the stage `sweep`."""

from kfp import dsl

from posgap.components.wrapper import SERVE, component
from posgap.measurement.config import SweepConfig


@component(SweepConfig, SERVE)
def sweep(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Measures accuracy with the gold documents at every position. The run page shows the curve."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_sweep
    from posgap.kfp_steps.keeping import keep_work
    from posgap.measurement.config import SweepConfig
    from posgap.stages.sweep import sweep

    with keep_work(out):
        sweep(to_config(SweepConfig, arguments))
    show_sweep(out, curve, metrics)
