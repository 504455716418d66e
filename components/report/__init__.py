from posgap.components.report.component import report

__all__ = ["report"]
