"""posgap measures, closes and gates the position gap of long-context language models.

`sweep`, `examples`, `load` and `gate` are described in docs/library.md. `load_model(path)` loads a Hugging Face folder
or a registered version, `models:/name@champion`, with its scaling if it has one; `scale_model(model)` applies the
scaling to a model that transformers loaded.
"""

import importlib

__version__ = "0.2.0.dev0"
# Imported when asked for: they need torch, which takes seconds.
_LAZY = {
    "Answer": "posgap.generation.application",
    "ComparisonResult": "posgap.api.results",
    "Estimate": "posgap.api.results",
    "LengthsResult": "posgap.api.results",
    "Passage": "posgap.generation.application",
    "SweepResult": "posgap.api.results",
    "examples": "posgap.api.library",
    "gate": "posgap.api.library",
    "load": "posgap.api.library",
    "load_model": "posgap.api.library",
    "scale_model": "posgap.mitigations.in_force",
    "sweep": "posgap.api.library",
    "text_of": "posgap.generation.application",
}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
