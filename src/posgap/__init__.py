"""posgap measures, closes and gates the position gap of long-context language models.

`posgap.load_model(path)` loads a Hugging Face folder or a registered version, `models:/name@champion`, scaled where it
is a scaled model; `posgap.scale_model(model)` does as much for a model that transformers loaded.
"""

import importlib

__version__ = "0.1.0"
# Imported when asked for: they need torch, which takes seconds.
_LAZY = {"load_model": "posgap.registered", "scale_model": "posgap.models.layer_scaling"}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
