from posgap.components.rollout_compare.component import rollout_compare

__all__ = ["rollout_compare"]
