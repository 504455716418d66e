from posgap.components.rollout_measure.component import rollout_measure

__all__ = ["rollout_measure"]
