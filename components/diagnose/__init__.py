from posgap.components.diagnose.component import diagnose

__all__ = ["diagnose"]
