"""KFP component of the stage `gate`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.gating.config import GateConfig


@component(GateConfig)
def gate(
    candidate: dsl.Input[dsl.Artifact],
    base: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    rules: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    champion: dsl.Input[dsl.Artifact] = None,
    examples: dsl.Input[dsl.Artifact] = None,
    policy: dsl.Input[dsl.Artifact] = None,
    settings: dict = {},  # noqa: B006  KFP reads the default
) -> bool:
    """Decides whether the candidate may enter the registry, against its champion; returns the verdict. The run page
    shows why."""
    arguments = dict(locals())
    from posgap.gating.config import GateConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_gate
    from posgap.workflows.admission import admit

    admit(to_config(GateConfig, arguments))
    return show_gate(out, page, rules, metrics)
