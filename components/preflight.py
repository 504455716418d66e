"""KFP component of the stage `preflight`."""

from typing import NamedTuple

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.preflight import PreflightConfig


@component(PreflightConfig)
def preflight(
    out: dsl.Output[dsl.Artifact],
    checks: dsl.Output[dsl.Markdown],
) -> NamedTuple(
    "Plan",
    [
        ("candidates", list),
        ("layered", bool),
        ("parts", list),
        ("recipe", str),
        ("only_new", bool),
        ("approval", bool),
        ("train_cpu", str),
        ("train_memory", str),
        ("validate", dict),
        ("sweep", dict),
        ("teacher", dict),
        ("distill", dict),
        ("train_job", dict),
        ("mitigate", dict),
        ("on_top", dict),
        ("compare", dict),
        ("gate", dict),
    ],
):
    """Checks the form and the run's prerequisites before any GPU time is spent, and returns each stage's settings."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_preflight
    from posgap.kubeflow.form import STAGES
    from posgap.options.preflight import PreflightConfig
    from posgap.verbs.preflight import preflight, read_plan

    plan = read_plan(preflight(to_config(PreflightConfig, arguments)))
    show_preflight(out, checks)
    names = ("candidates", "layered", "parts", "recipe", "only_new", "approval", "train_cpu", "train_memory")
    return *(plan[name] for name in names), *(plan["settings"].get(stage, {}) for stage in STAGES)
