"""KFP component of the stage `compare`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.measurement.config import CompareConfig


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
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_page
    from posgap.measurement.config import CompareConfig
    from posgap.stages.compare import compare

    compare(to_config(CompareConfig, arguments, sweeps=[reference.path, candidate.path]))
    show_page(out, "comparison.html", page)
