from posgap.components.scale_search.component import scale_search

__all__ = ["scale_search"]
