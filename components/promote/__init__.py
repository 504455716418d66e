from posgap.components.promote.component import promote

__all__ = ["promote"]
