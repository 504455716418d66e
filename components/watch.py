"""KFP component of the stage `watch`."""

from kfp import dsl

from posgap.components.wrapper import component
from posgap.options.watch import WatchConfig


@component(WatchConfig)
def watch(
    champion: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
):
    """Judges the champion's sweep on fresh data by its policy; fails, and starts the mitigation pipeline if it is to,
    where the champion has left that."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_page
    from posgap.options.watch import WatchConfig
    from posgap.verbs.watch import READABLE_FILE, watch

    watch(to_config(WatchConfig, arguments))
    show_page(out, READABLE_FILE, summary)
