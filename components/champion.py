"""KFP component of the stage `champion`."""

from kfp import dsl

from posgap.components.wrapper import SERVE, component
from posgap.options.champion import ChampionConfig


@component(ChampionConfig, SERVE)
def champion(
    examples: dsl.Input[dsl.Dataset],
    out: dsl.Output[dsl.Artifact],
    curve: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    like: dsl.Input[dsl.Artifact] = None,
):
    """Sweeps the registered champion, if there is one, in the way that another sweep was asked. The run page shows the
    curve."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_champion
    from posgap.kubeflow.keeping import keep_work
    from posgap.options.champion import ChampionConfig
    from posgap.verbs.champion import champion, swept_champions

    with keep_work(out, below=swept_champions()):
        champion(to_config(ChampionConfig, arguments))
    show_champion(out, curve, metrics)
