"""KFP component of the stage `compare`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import CompareConfig


@component(CompareConfig, artifacts=("page",))
def compare(
    sweeps: dsl.Input[list[dsl.Artifact]],
    out: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    resamples: int,
    seed: int,
):
    """Paired differences between sweeps, the first being the reference; the page shows in the run."""
    arguments = dict(locals())
    import shutil

    from posgap.config import CompareConfig
    from posgap.kfp_arguments import to_config
    from posgap.stages.compare import compare

    folder = compare(to_config(CompareConfig, arguments))
    shutil.copyfile(folder / "comparison.html", page.path)
