"""KFP component of the stage `validate`."""

from kfp import dsl
from posgap.components.wrapper import component

from posgap.config import ValidateConfig


@component(ValidateConfig)
def validate(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Dataset],
    task: str,
    n_docs: int,
    max_new_tokens: int,
    question: str,
    shuffle: int,
    seed: int,
    exclude: dsl.Input[dsl.Dataset] = None,
):
    """Checks examples with Great Expectations; stops the pipeline, naming the rows, where they fail."""
    arguments = dict(locals())
    from posgap.config import ValidateConfig
    from posgap.kfp_arguments import to_config
    from posgap.stages.validate import validate

    validate(to_config(ValidateConfig, arguments))
