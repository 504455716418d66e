from posgap.components.rollout_predict.component import rollout_predict

__all__ = ["rollout_predict"]
