"""KFP component of the stage `diagnose`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import DiagnoseConfig


@component(DiagnoseConfig, artifacts=("report",))
def diagnose(
    sweep: dsl.Input[dsl.Artifact],
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    tokens: int,
    attention: int,
    dtype: str,
    batch_tokens: int,
    seed: int,
):
    """Why the model errs where it does; the report shows in the run page."""
    arguments = dict(locals())
    import shutil

    from posgap.config import DiagnoseConfig
    from posgap.kfp_arguments import to_config
    from posgap.stages.diagnose import diagnose

    folder = diagnose(to_config(DiagnoseConfig, arguments))
    shutil.copyfile(folder / "diagnosis.html", report.path)
