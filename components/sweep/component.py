"""KFP component of the stage `sweep`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import SweepConfig


@component(SweepConfig, artifacts=("curve",))
def sweep(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    task: str,
    n_docs: int,
    max_new_tokens: int,
    question: str,
    shuffle: int,
    metric: str,
    dtype: str,
    backend: str,
    processes: int,
    batch_tokens: int,
    base_url: str,
    endpoint: str,
    concurrency: int,
    timeout: float,
    retries: int,
    positions: list,
    limit: int,
    label: str,
    resamples: int,
    seed: int,
):
    """Accuracy with the gold documents at every position; the curve shows in the run page."""
    arguments = dict(locals())
    import shutil

    from posgap.config import SweepConfig
    from posgap.kfp_arguments import to_config
    from posgap.stages.sweep import sweep

    folder = sweep(to_config(SweepConfig, arguments))
    shutil.copyfile(folder / "sweep.html", curve.path)
