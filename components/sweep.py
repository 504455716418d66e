"""KFP component of the stage `sweep`."""

from kfp import dsl

from posgap.components.wrapper import SERVE, component
from posgap.options.sweep import SweepConfig


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
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_sweep
    from posgap.kubeflow.keeping import keep_work
    from posgap.options.sweep import SweepConfig
    from posgap.verbs.sweep import sweep_model

    with keep_work(out):
        sweep_model(to_config(SweepConfig, arguments))
    show_sweep(out, curve, metrics)
