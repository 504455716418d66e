from posgap.components.champion.component import champion

__all__ = ["champion"]
