from posgap.components.data_version.component import data_version

__all__ = ["data_version"]
