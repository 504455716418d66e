"""KFP component of the stage `preflight`."""

from typing import NamedTuple

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import PreflightConfig
from posgap.preflight.form import STAGES


@component(PreflightConfig, artifacts=("checks", "candidates", "parts", *STAGES))
def preflight(
    train_data: str,
    eval_data: str,
    model: str,
    out: dsl.Output[dsl.Artifact],
    checks: dsl.Output[dsl.Markdown],
    task: str,
    n_docs: int,
    methods: str,
    backend: str,
    shards: int,
    max_gap: float,
    registered_name: str,
    only_new: bool,
    webhook_url: str,
    nodes_train: dict,
    nodes_inference: dict,
    nodes_cpu: dict,
    tolerations: list,
    gpus_train: str,
    overrides: dict,
    trainer: bool,
    gpus_here: int,
    seed: int,
) -> NamedTuple(
    "Plan",
    [
        ("candidates", list),
        ("parts", list),
        ("validate", dict),
        ("sweep", dict),
        ("teacher", dict),
        ("distill", dict),
        ("train_job", dict),
        ("scale_search", dict),
        ("compare", dict),
        ("gate", dict),
    ],
):
    """Checks the form and what the run needs before any GPU time is spent, and says what each stage is given."""
    arguments = dict(locals())
    from posgap.config import PreflightConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_preflight
    from posgap.preflight.form import STAGES
    from posgap.stages.preflight import preflight, read_plan

    plan = read_plan(preflight(to_config(PreflightConfig, arguments)))
    show_preflight(out, checks)
    return plan["candidates"], plan["parts"], *(plan["settings"][stage] for stage in STAGES)
