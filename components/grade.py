"""KFP component of the stage `grade`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.measurement.config import GradeConfig


@component(GradeConfig, TRAIN)
def grade(
    sweep: dsl.Input[dsl.Artifact],
    examples: dsl.Input[dsl.Dataset],
    judge: str,
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
):
    """Scores the responses of a sweep again, by a model that judges them. The run page shows the curve."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_sweep
    from posgap.measurement.config import GradeConfig
    from posgap.stages.grade import grade

    grade(to_config(GradeConfig, arguments))
    show_sweep(out, curve, metrics)
