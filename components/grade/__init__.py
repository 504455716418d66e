from posgap.components.grade.component import grade

__all__ = ["grade"]
