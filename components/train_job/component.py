"""KFP component of the stage `train_job`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import TrainJobConfig


@component(TrainJobConfig, artifacts=("metrics",))
def train_job(
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
    nodes: int,
    gpus_per_node: int,
    cpus_per_node: int,
    memory_per_node: str,
    runtime: str,
    image: str,
    queue: str,
    namespace: str,
    timeout: int,
    seed: int,
    settings: dict = {},  # noqa: B006  KFP reads the default
):
    """Has a TrainJob of Kubeflow Trainer distil the model on several machines, and follows it."""
    arguments = dict(locals())
    from posgap.config import TrainJobConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_training
    from posgap.stages.train_job import train_job

    train_job(to_config(TrainJobConfig, arguments))
    show_training(out, metrics)
