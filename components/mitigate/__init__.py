from posgap.components.mitigate.component import mitigate

__all__ = ["mitigate"]
