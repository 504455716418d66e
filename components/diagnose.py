"""KFP component of the stage `diagnose`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.measurement.config import DiagnoseConfig


@component(DiagnoseConfig, TRAIN)
def diagnose(
    sweep: dsl.Input[dsl.Artifact],
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
):
    """Explains why the model answers wrongly where it does. The run page shows the report."""
    arguments = dict(locals())
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_page
    from posgap.measurement.config import DiagnoseConfig
    from posgap.stages.diagnose import diagnose

    diagnose(to_config(DiagnoseConfig, arguments))
    show_page(out, "diagnosis.html", report)
