from posgap.components.rollout_experiment.component import rollout_experiment

__all__ = ["rollout_experiment"]
