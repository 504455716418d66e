"""KFP component of the stage `validate`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.validate import ValidateConfig


@component(ValidateConfig)
def validate(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    settings: dict = {},  # noqa: B006  KFP reads the default
    exclude: dsl.Input[dsl.Dataset] = None,
):
    """Checks examples with Great Expectations. Where they fail, it names the rows and stops the pipeline."""
    arguments = dict(locals())
    import shutil
    from pathlib import Path

    from posgap.foundation.errors import Rejection
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_examples
    from posgap.options.validate import ValidateConfig
    from posgap.verbs.validate import validate

    try:
        validate(to_config(ValidateConfig, arguments))
    except Rejection:
        shutil.copyfile(Path(f"{out.path}.rejected", "validation.html"), page.path)
        raise
    show_examples(out, page, metrics)
