from posgap.components.watch.component import watch

__all__ = ["watch"]
