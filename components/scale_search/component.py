"""KFP component of the stage `scale_search`."""

from kfp import dsl
from posgap.components.wrapper import TRAIN, component

from posgap.config import ScaleSearchConfig


@component(ScaleSearchConfig, TRAIN, artifacts=("picture", "metrics"))
def scale_search(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    task: str,
    n_docs: int,
    max_new_tokens: int,
    question: str,
    shuffle: int,
    metric: str,
    dtype: str,
    batch_tokens: int,
    positions: list,
    limit: int,
    strategy: str,
    curve: str,
    order: int,
    low: float,
    high: float,
    monotone: str,
    population: int,
    generations: int,
    patience: int,
    elite: int,
    tournament: int,
    mutation: float,
    mutation_rate: float,
    objective: str,
    weights: str,
    evaluation: str,
    halving: bool,
    seed: int,
    settings: dict = {},  # noqa: B006  KFP reads the default
    exclude: dsl.Input[dsl.Dataset] = None,
):
    """Searches one RoPE factor per layer under which the model answers best (LPES)."""
    arguments = dict(locals())
    from posgap.config import ScaleSearchConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.kfp_steps.artifacts import show_scaling
    from posgap.stages.scale_search import scale_search

    scale_search(to_config(ScaleSearchConfig, arguments))
    show_scaling(out, picture, metrics)
