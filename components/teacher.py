"""KFP component of the stage `teacher`."""

from kfp import dsl

from posgap.components.wrapper import SERVE, component
from posgap.options.teacher import TeacherConfig


@component(TeacherConfig, SERVE)
def teacher(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    sweep: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Samples the model's own responses with the gold documents where it answers best."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_responses
    from posgap.kubeflow.keeping import keep_work
    from posgap.options.teacher import TeacherConfig
    from posgap.verbs.teacher import teacher

    with keep_work(out):
        teacher(to_config(TeacherConfig, arguments))
    show_responses(out, metrics)
