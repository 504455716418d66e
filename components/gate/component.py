"""KFP component of the stage `gate`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import GateConfig


@component(GateConfig)
def gate(
    candidate: dsl.Input[dsl.Artifact],
    base: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    max_gap: float,
    mean_tolerance: float,
    advantageous_tolerance: float,
    resamples: int,
    seed: int,
    champion: dsl.Input[dsl.Artifact] = None,
) -> bool:
    """Decides whether the candidate may enter the registry; returns the verdict."""
    arguments = dict(locals())
    from posgap.config import GateConfig
    from posgap.kfp_arguments import to_config
    from posgap.stages.gate import gate
    from posgap.tracking.rules import read_verdict

    return read_verdict(gate(to_config(GateConfig, arguments))).passed
