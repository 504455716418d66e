"""KFP component of the stage `compare`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.config import CompareConfig


@component(CompareConfig, apart={"sweeps": ("reference", "candidate")})
def compare(
    reference: dsl.Input[dsl.Artifact],
    candidate: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Paired differences of a candidate's sweep from a reference's; the page shows in the run."""
    arguments = dict(locals())
    from posgap.config import CompareConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_page
    from posgap.stages.compare import compare

    compare(to_config(CompareConfig, arguments, sweeps=[reference.path, candidate.path]))
    show_page(out, "comparison.html", page)
