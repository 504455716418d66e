from posgap.components.rollout_advise.component import rollout_advise

__all__ = ["rollout_advise"]
