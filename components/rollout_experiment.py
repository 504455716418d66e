"""KFP component of the stage `rollout_experiment`."""

from kfp import dsl

from posgap.components.wrapper import TRAIN, component
from posgap.options.rollout_experiment import RolloutExperimentConfig


@component(RolloutExperimentConfig, TRAIN)
def rollout_experiment(
    out: dsl.Output[dsl.Artifact],
    picture: dsl.Output[dsl.HTML],
):
    """Trains attention-only networks with one cause of position bias at a time, and shows what bias each makes."""
    arguments = dict(locals())
    from posgap.kubeflow.arguments import to_config
    from posgap.kubeflow.artifacts import show_rollout
    from posgap.options.rollout_experiment import RolloutExperimentConfig
    from posgap.verbs.rollout_experiment import rollout_experiment

    rollout_experiment(to_config(RolloutExperimentConfig, arguments))
    show_rollout(out, picture, "experiment.json", "experiment.png")
