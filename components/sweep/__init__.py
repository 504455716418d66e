from posgap.components.sweep.component import sweep

__all__ = ["sweep"]
