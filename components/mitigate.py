"""KFP component of the stage `mitigate`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.options.mitigate import MitigateConfig


@component(MitigateConfig, TRAIN)
def mitigate(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
    exclude: dsl.Input[dsl.Dataset] = None,
):
    """Tries the mitigations that suit a model on some examples, and measures the best of them on others."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_mitigate
    from posgap.kubeflow.keeping import keep_work
    from posgap.options.mitigate import MitigateConfig
    from posgap.verbs.mitigate import mitigate

    with keep_work(out):
        mitigate(to_config(MitigateConfig, arguments))
    show_mitigate(out, page, metrics)
