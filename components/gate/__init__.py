from posgap.components.gate.component import gate

__all__ = ["gate"]
