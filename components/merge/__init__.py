from posgap.components.merge.component import merge

__all__ = ["merge"]
