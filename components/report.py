"""KFP component of the stage `report`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.report import ReportConfig


@component(ReportConfig, apart={"state": ("status",), "message": ()})
def report(
    status: dsl.PipelineTaskFinalStatus,
    out: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
):
    """Reports how the run ended, whatever happened: to MLflow, and to a webhook if there is one."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_page
    from posgap.options.report import ReportConfig
    from posgap.verbs.report import READABLE_FILE, report

    report(to_config(ReportConfig, arguments, state=status.state, message=status.error_message or ""))
    show_page(out, READABLE_FILE, summary)
