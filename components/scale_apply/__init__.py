from posgap.components.scale_apply.component import scale_apply

__all__ = ["scale_apply"]
