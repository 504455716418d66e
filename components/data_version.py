"""KFP component of the stage `data_version`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.data_version import DataVersionConfig


@component(DataVersionConfig)
def data_version(
    out: dsl.Output[dsl.Artifact],
    uri: dsl.OutputPath(str),
    version: dsl.OutputPath(str),
    eval_uri: dsl.OutputPath(str),
    eval_key: dsl.OutputPath(str),
    train_key: dsl.OutputPath(str),
    champion_key: dsl.OutputPath(str),
    champion: dsl.OutputPath(str),
) -> bool:
    """Picks the newest data version, and returns whether there is anything to do.

    There is, if data, base model or recipe changed since the champion was made, or if that does not matter. The keys
    are for the steps' `cache_key`: of what is evaluated on, of that and what is trained on, of the champion's sweep.
    """
    arguments = dict(locals())
    from pathlib import Path

    from posgap.kubeflow.arguments import to_config
    from posgap.options.data_version import DataVersionConfig
    from posgap.verbs.data_version import data_version, read_data_version

    found = read_data_version(data_version(to_config(DataVersionConfig, arguments)))
    Path(uri).write_text(found["uri"])
    Path(version).write_text(found["version"])
    Path(eval_uri).write_text(found["eval_uri"])
    Path(eval_key).write_text(found["cache_keys"]["eval"])
    Path(train_key).write_text(found["cache_keys"]["train"])
    Path(champion_key).write_text(found["cache_keys"]["champion"])
    Path(champion).write_text(found["champion"] or "")
    return not found["skip"]
