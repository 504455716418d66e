"""KFP component of the stage `compare`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.compare import CompareConfig


@component(CompareConfig, apart={"sweeps": ("reference", "candidate")})
def compare(
    reference: dsl.Input[dsl.Artifact],
    candidate: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Compares a candidate's sweep with a reference's by paired differences. The run page shows the result."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_page
    from posgap.options.compare import CompareConfig
    from posgap.verbs.compare import compare

    compare(to_config(CompareConfig, arguments, sweeps=[reference.path, candidate.path]))
    show_page(out, "comparison.html", page)
