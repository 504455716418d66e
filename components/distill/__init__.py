from posgap.components.distill.component import distill

__all__ = ["distill"]
