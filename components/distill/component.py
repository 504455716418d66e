"""KFP component of the stage `distill`."""

from kfp import dsl
from posgap.components.wrapper import TRAIN, component

from posgap.config import DistillConfig


@component(DistillConfig, TRAIN, artifacts=("metrics",))
def distill(
    examples: dsl.Input[dsl.Dataset],
    responses: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    task: str,
    question: str,
    shuffle: int,
    method: str,
    alignment: str,
    anchoring: float,
    k: int,
    epochs: int,
    batch_size: int,
    micro_batch_size: int,
    learning_rate: float,
    warmup_steps: int,
    max_grad_norm: float,
    lora_rank: int,
    lora_alpha: int,
    dtype: str,
    gradient_checkpointing: bool,
    deepspeed: str,
    save_steps: int,
    work: str,
    seed: int,
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Trains the model with its own answers from its best position (Pos2Distill)."""
    arguments = dict(locals())
    from posgap.config import DistillConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_training
    from posgap.kfp_steps.launching import on_all_gpus
    from posgap.stages.distill import distill

    on_all_gpus(distill, to_config(DistillConfig, arguments))
    show_training(out, metrics)
