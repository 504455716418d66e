"""KFP component of the stage `data_version`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.config import DataVersionConfig


@component(DataVersionConfig)
def data_version(
    out: dsl.Output[dsl.Artifact],
    uri: dsl.OutputPath(str),
    version: dsl.OutputPath(str),
) -> bool:
    """Picks the newest data version, and returns whether there is anything to do.

    There is, if the data or the base model changed since the champion was made, or if that does not matter.
    """
    arguments = dict(locals())
    from pathlib import Path

    from posgap.config import DataVersionConfig
    from posgap.kfp_steps.arguments import to_config
    from posgap.stages.data_version import data_version, read_data_version

    found = read_data_version(data_version(to_config(DataVersionConfig, arguments)))
    Path(uri).write_text(found["uri"])
    Path(version).write_text(found["version"])
    return not found["skip"]
