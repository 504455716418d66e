from posgap.components.validate.component import validate

__all__ = ["validate"]
