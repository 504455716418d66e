from posgap.components.teacher.component import teacher

__all__ = ["teacher"]
