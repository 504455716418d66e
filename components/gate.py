"""KFP component of the stage `gate`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.gate import GateConfig


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
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_gate
    from posgap.options.gate import GateConfig
    from posgap.verbs.gate import admit

    admit(to_config(GateConfig, arguments))
    return show_gate(out, page, rules, metrics)
