from posgap.components.apply.component import apply

__all__ = ["apply"]
